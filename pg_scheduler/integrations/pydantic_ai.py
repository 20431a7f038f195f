"""Make agents of Pydantic AI durable. The extra ``[pydantic-ai]`` installs what this needs.

Each request to a model, each call of a tool and each call of an MCP server becomes a step of the job in which
the agent runs. If the process dies, another attempt of the job runs the agent again: what has been stored is
not requested again, and the agent continues where it was. A call that needs an approval suspends the job
until a person has answered, for days if need be.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias, TypedDict, cast
from weakref import WeakKeyDictionary

from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
    StrictBool,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import ValidatedToolArgs, WrapRunHandler, WrapToolExecuteHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CallableOperationBackend,
    CapabilityOperationId,
    DurabilityCodec,
    DurabilityEngineSpec,
    DurableOperationId,
    EventStreamHandlerId,
    ExternalEventError,
    ExternalEventWaiter,
    JournalOperationNamer,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetKind,
    ToolsetValidateToolArgumentsId,
    conversation_id_from_run_id,
    external_event_scope,
    record_durable_unit,
    replay_scope,
)
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import (
    AgentStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDefinition,
    ToolDenied,
)
from pydantic_core import PydanticSerializationError, to_json

from pg_scheduler import (
    Abort,
    PayloadError,
    RetryPolicy,
    Scheduler,
    SchedulerError,
    StepFailedError,
    Steps,
    current_job,
)
from pg_scheduler.base.text.times import read_timestamp
from pg_scheduler.integrations.model_errors import error_from, stored_error
from pg_scheduler.jobs.model import UNSET
from pg_scheduler.jobs.step_retries import StepRules
from pg_scheduler.jobs.step_values import MAX_NAME_BYTES, check_step_name
from pg_scheduler.jobs.validation import check_job_id
from pg_scheduler.steps.attempt import AttemptSteps
from pg_scheduler.tools import check_scheduler
from pg_scheduler.worker.waiting import awaits_event_of, context_of

__all__ = [
    "Approval",
    "Ask",
    "PgSchedulerDurability",
    "StepOptions",
    "TextItem",
    "fail_event",
    "resolve_event",
    "stream_text",
]

DIGEST_LENGTH: Final = 16
"""Characters of a hash, such as that at the end of the name of a step that would be too long."""

PACKAGES: Final = frozenset({"pydantic_ai", "pydantic_graph"})
"""The packages of the library, whose tasks wait for one another."""

FAILURE: Final = "pg_scheduler_failure"
"""The key of the reason in the value of a signal by which an event fails."""

NOTE: Final = "pg_scheduler"
"""The key of what this integration adds to the stored response of a model."""

TokenKind: TypeAlias = Literal["approval", "result", "event"]
"""What a token resolves: an approval, the result of a call, or an external event."""

Ask: TypeAlias = Callable[[RunContext[Any], ToolCallPart, str], Awaitable[None]]
"""Asks a person about a call of a tool, for example by a message with a link that contains the token."""


class StepOptions(TypedDict, total=False):
    """How a step is executed. Each option is optional, and passed to ``Steps.run()``.

    Example:
        >>> from datetime import timedelta
        >>> from pg_scheduler import RetryPolicy
        >>> from pg_scheduler.integrations.pydantic_ai import PgSchedulerDurability
        >>> patience = RetryPolicy(base=timedelta(seconds=2))
        >>> durability = PgSchedulerDurability(
        ...     model_options={"retry": patience, "max_retries": 4, "timeout": 60},
        ... )
    """

    retry: RetryPolicy
    """When a step that has failed is executed again."""
    max_retries: int
    """How often at most; only with ``retry``."""
    timeout: float | timedelta
    """Seconds or a timedelta for each execution."""


class Approval(BaseModel):
    """The value of a signal that approves or denies the call of a tool.

    Example:
        >>> from pg_scheduler.integrations.pydantic_ai import Approval
        >>> approval = Approval(approved=False, message="too expensive")
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    approved: StrictBool
    """Whether the tool is called."""
    message: str | None = None
    """What the model gets instead of the result of a tool that was denied; None for a default."""
    override_args: dict[str, Any] | None = None
    """The arguments of an approved tool instead of those that the model has chosen; None for these."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        """Refuse what would have no effect, since the person has probably meant the opposite."""
        if self.approved and self.message is not None:
            raise ValueError("message= is for the model of a denied call; pass approved=False, or omit it")
        if not self.approved and self.override_args is not None:
            raise ValueError("override_args= is for an approved call; pass approved=True, or omit it")
        return self


class _AttemptRuns:
    """The runs of agents that one attempt of a job has begun. It gives them their numbers.

    The runs of one agent have numbers in the order in which they begin. If each of them begins when the one
    before it has ended, that is the same order in each attempt. If they run at once, it may be another one.
    """

    def __init__(self) -> None:
        self._counts = Counter[str]()
        # The series of each run that has a number, by the name of the run.
        self._series: dict[str, str] = {}
        self._begun: set[str] = set()
        # How many runs of a series have begun and not ended.
        self._open = Counter[str]()
        self._overlapping: set[str] = set()

    def next_name(self, series: str) -> str:
        """Return the name of the next run of a series, which begins now."""
        self._counts[series] += 1
        self._open[series] += 1
        if self._open[series] > 1:
            self._overlapping.add(series)
        name = f"{series} {self._counts[series]}"
        self._series[name] = series
        return name

    def begin(self, name: str) -> None:
        """Note that a run begins, whose name the application may have chosen.

        Raises:
            Abort: Another run has this name. Both would use the same steps.
        """
        if name in self._begun:
            raise Abort(
                f"run_id={name!r} is that of another run in this attempt of the job, and both would use the "
                "same steps; give each run an id of its own"
            )
        self._begun.add(name)

    def overlaps(self, series: str) -> bool:
        """Return whether runs of this series have run at once."""
        return series in self._overlapping

    def series_of(self, name: str) -> str | None:
        """Return the series of a run; None if the application has chosen its name."""
        return self._series.get(name)

    def end(self, name: str) -> None:
        """Note that a run has ended."""
        series = self._series.get(name)
        if series is not None:
            self._open[series] -= 1


class _Run:
    """One run of an agent in one attempt of a job: it gives its steps their names.

    Attributes:
        steps: The steps of the attempt.
        name: The name of the run, with which the names of its steps begin. It is the same one in each
            attempt of the job.
    """

    def __init__(self, steps: Steps, name: str, runs: _AttemptRuns) -> None:
        self.steps = steps
        self.name = name
        self._runs = runs
        # How often each operation was executed.
        self._counts = Counter[str]()
        # Whether the model was requested.
        self._has_requested = False
        # The errors of requests in this attempt that are not stored, by the names of their steps.
        self._errors: dict[str, Exception] = {}
        self._storing = asyncio.Lock()

    def coordinating(self) -> AbstractContextManager[None]:
        """Let the job be suspended within the block, in which the agent runs.

        Tasks of the library wait for one another by events, which the worker cannot see through. They do no
        work, so they do not keep the job in memory.
        """
        # Steps of a test kit of the application may be another class.
        if not isinstance(self.steps, AttemptSteps):
            return nullcontext()
        return self.steps.standing_still(self._stands_still)

    def _stands_still(self, task: asyncio.Task[Any]) -> bool:
        """Return whether a task belongs to the run, and does no work of its own.

        That is so while it waits for other tasks of the run. A task that a step has begun, and that is not
        the code of a tool, keeps a connection open for further steps, such as that to an MCP server. The code
        of a tool may do anything, so what it waits for decides, as everywhere.
        """
        context = context_of(task)
        if context is None or context.get(_current_run) is not self or context.get(_tool_call) is not None:
            return False
        return context.get(_is_in_step, False) or awaits_event_of(task, PACKAGES)

    def step_name(self, operation: str) -> str:
        """Return the name of the next step for an operation, of at most 200 bytes.

        An operation that is repeated gets a number. Operations that run at once have the id of the call of
        their tool in their text, so their numbers do not depend on which one is first.
        """
        self._counts[operation] += 1
        count = self._counts[operation]
        name = f"{self.name}: {operation}" if count == 1 else f"{self.name}: {operation} #{count}"
        return _shortened(name)

    def note_of_request(self, messages: Any) -> dict[str, Any] | None:
        """Return what is stored with the first request of a run whose number depends on an order.

        It shows in another attempt whether the run of this number still has the same question.
        """
        series = self._runs.series_of(self.name)
        if self._has_requested or series is None:
            return None
        self._has_requested = True
        return {"question": _digest_of(messages), "overlaps": self._runs.overlaps(series)}

    async def check_note(self, note: dict[str, Any], stored: dict[str, Any]) -> None:
        """Check that a stored request has the question of this run.

        A question may change between attempts, for example if it contains the time. So another one matters
        only if runs of the agent overlap, or if another run has stored the question of this one.

        Raises:
            Abort: It is the request of another run, or it may be.
        """
        question = note["question"]
        series = self._runs.series_of(self.name)
        if series is None or stored.get("question") == question:
            return
        is_unclear = stored.get("overlaps") or self._runs.overlaps(series)
        if not is_unclear and isinstance(self.steps, AttemptSteps):
            values = await self.steps.stored_values(f"{series} ")
            is_unclear = any(_note_in(value).get("question") == question for value in values)
        if is_unclear:
            raise Abort(
                f"run {self.name!r} of an agent has another question than in the attempt that stored its "
                "responses, so they may be those of another run; runs of one agent at once need names that "
                "do not depend on their order: pass run_id= to each, such as the id of its customer"
            )

    def note_error(self, step_name: str, error: Exception) -> None:
        """Note that a request has failed. The agent may continue nevertheless, which is not known yet."""
        self._errors[step_name] = error

    async def store_errors(self) -> None:
        """Store the requests that have failed, because the agent has continued after them.

        Otherwise another attempt would repeat them, and take another way if they do not fail again.

        Raises:
            Abort: An error cannot be rebuilt in another attempt.
        """
        # Tools may run at once, and none of them may do anything before the errors are stored.
        async with self._storing:
            for step_name, error in list(self._errors.items()):
                stored = stored_error(error)
                if stored is None:
                    raise Abort(
                        f"the agent has continued after {error!r} of step {step_name!r}, an error that "
                        "another attempt of the job could not raise; let the model raise a ModelAPIError, or "
                        "use FallbackModel, which requests its models in one step"
                    ) from error
                if isinstance(self.steps, AttemptSteps):
                    self.steps.free_failed(step_name)
                await self.steps.run(step_name, _returning({NOTE: {"error": stored}}))
                del self._errors[step_name]

    async def error_of_retries(self, error: StepFailedError) -> Exception:
        """Return the error of the model that a request raises whose retries are used up.

        It has the same class in each attempt, so that what handles it takes the same way. Without it, such as
        after a crash at the wrong time, return the error of the step.
        """
        cause = error.__cause__
        stored = stored_error(cause) if isinstance(cause, Exception) else None
        # The text distinguishes this failure from that after a retry of the job.
        digest = hashlib.sha256(str(error).encode()).hexdigest()[:DIGEST_LENGTH]
        name = _shortened(f"{error.step} error {digest}")
        stored = await self.steps.run(name, _returning(stored))
        rebuilt = None if stored is None else error_from(stored)
        if rebuilt is None:
            return error
        rebuilt.__cause__ = error
        return rebuilt


def _returning(value: Any) -> Callable[[], Awaitable[Any]]:
    """Return a function for a step that has a value already."""

    async def get_value() -> Any:
        return value

    return get_value


def _shortened(name: str) -> str:
    """Return the name of a step, of at most 200 bytes. A longer one gets a hash instead of its end."""
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_LENGTH]
    beginning = name.encode()[: MAX_NAME_BYTES - DIGEST_LENGTH - 1].decode(errors="ignore")
    return f"{beginning}~{digest}"


def _digest_of(messages: Any) -> str:
    """Return a hash of the question and the conversation before it, without what differs in each attempt.

    That is all that has a time or an id, and the instructions, which often contain the date.
    """
    parts = [
        (part.part_kind, getattr(part, "content", None), getattr(part, "args", None))
        for message in messages
        for part in message.parts
        if part.part_kind not in {"system-prompt", "instruction"}
    ]
    text = to_json(parts, bytes_mode="base64", inf_nan_mode="constants", fallback=_type_name)
    return hashlib.sha256(text).hexdigest()[:DIGEST_LENGTH]


def _type_name(value: object) -> str:
    """Return what a hash contains instead of a value that JSON cannot represent."""
    return type(value).__name__


_current_run: Final[ContextVar[_Run | None]] = ContextVar("pg_scheduler_agent_run", default=None)
"""The run of an agent in whose context this code runs."""

_is_in_step: Final[ContextVar[bool]] = ContextVar("pg_scheduler_agent_step", default=False)
"""Whether this code runs in a step of an agent. What a tool runs belongs to the step of that tool."""


class _RunningStep(NamedTuple):
    """A step whose function is called.

    Attributes:
        name: Its name.
        call: How often the function was called in this attempt of the job, this call included.
    """

    name: str
    call: int


_running_step: Final[ContextVar[_RunningStep]] = ContextVar("pg_scheduler_agent_running_step")
"""The step in which this code runs."""

_tool_call: Final[ContextVar[str | None]] = ContextVar("pg_scheduler_agent_tool_call", default=None)
"""The id of the call of a tool in whose code this code runs; None outside of tools."""

_attempt_runs: Final[WeakKeyDictionary[Steps, _AttemptRuns]] = WeakKeyDictionary()
"""The runs of each attempt, by its steps."""


def _runs_of(steps: Steps) -> _AttemptRuns:
    """Return the runs of the attempt of these steps."""
    return _attempt_runs.setdefault(steps, _AttemptRuns())


def _durable_steps() -> Steps | None:
    """Return the steps of the job that this code belongs to; None outside of a job, and within a step.

    Raises:
        NotRunningError: The code runs in a thread or a process of a job.
    """
    if _is_in_step.get():
        return None
    try:
        job = current_job()
    except LookupError:
        return None
    return job.steps


class _StrictJson(DurabilityCodec):
    """Carries values as JSON. It refuses numbers that JSON would turn into null."""

    def dump(self, tp: Any, value: Any) -> Any:
        """Return a value as JSON represents it."""
        if _has_special_number(getattr(value, "result", None)):
            raise PydanticSerializationError("a tool has returned NaN or infinity; return None or a text")
        return JSON_CODEC.dump(tp, value)

    def load(self, tp: Any, payload: Any) -> Any:
        """Return the value that JSON represents."""
        return JSON_CODEC.load(tp, payload)


def _has_special_number(value: Any) -> bool:
    """Return whether a value of a tool is or contains NaN or an infinite number."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_has_special_number, value.values()))
    return isinstance(value, list | tuple | set) and any(map(_has_special_number, value))


class _Backend(CallableOperationBackend[StepOptions]):
    """Executes each operation of an agent as a step of the job."""

    def __init__(
        self, agent_name: str, default_model_id: str | None, config: RoleBasedOperationConfig[StepOptions]
    ) -> None:
        # The base class requires names that are unique in the process. Steps have names of their own.
        super().__init__(namer=JournalOperationNamer(agent_name), config=config)
        self._default_model_id = default_model_id

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,  # noqa: ARG002 - see above
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        """Execute an operation as a step, or return what an earlier attempt has stored."""
        run = _current_run.get()
        # An operation outside of a run, such as the discovery of tools by the application, is not durable.
        if run is None or _is_in_step.get():
            return await body()
        step_name = run.step_name(self._operation_text(operation_id, cache_key))
        is_request = isinstance(operation_id, ModelRequestId)
        note = run.note_of_request(cache_key[1]) if is_request else None
        calls = 0
        has_value = False

        async def execute_body() -> Any:
            nonlocal calls, has_value
            calls += 1
            has_value = False
            token, step_token = _is_in_step.set(True), _running_step.set(_RunningStep(step_name, calls))
            # The code of a tool of an MCP server is not here.
            is_remote = getattr(operation_id, "toolset_kind", None) == "mcp"
            call_token = _tool_call.set(None if is_remote else _tool_call.get())
            try:
                payload = await body()
            finally:
                _tool_call.reset(call_token)
                _running_step.reset(step_token)
                _is_in_step.reset(token)
            await run.store_errors()
            has_value = True
            return {**payload, NOTE: note} if note is not None and isinstance(payload, dict) else payload

        try:
            payload = await run.steps.run(step_name, execute_body, **config)
        except StepFailedError as error:
            if not is_request:
                raise
            error_of_model = await run.error_of_retries(error)
            run.note_error(step_name, error_of_model)
            raise error_of_model from None
        except PayloadError as error:
            # Without an end of the job, each attempt would pay for a value that cannot be stored.
            if has_value:
                raise Abort(f"{error}; then retry the job") from error
            raise
        except (SchedulerError, Abort):
            raise
        except Exception as error:
            if is_request:
                run.note_error(step_name, error)
            raise
        # Otherwise the telemetry of the library would count the requests of earlier attempts once more.
        record_durable_unit(executed=calls > 0)
        return await _checked_response(run, payload, note) if is_request else payload

    def _operation_text(self, operation_id: DurableOperationId, cache_key: tuple[object, ...]) -> str:
        """Return the text of an operation in the name of its step, as people read it in the dashboard.

        Tools may run at once, so the text of their operations has the id of the call: each attempt finds the
        same step by it.
        """
        # Later releases of the library may have further kinds of operations.
        text = type(operation_id).__name__
        match operation_id:
            case ModelRequestId(model_id=model_id):
                text = self._with_model("model request", model_id)
            case ModelCancelSuspendedResponseId(model_id=model_id):
                text = self._with_model("model cancellation", model_id)
            case ModelCompactMessagesId(model_id=model_id):
                text = self._with_model("model compaction", model_id)
            case ToolsetCallToolId():
                text = f"tool {cache_key[0]} {_call_id(cache_key)}"
            case ToolsetValidateToolArgumentsId():
                text = f"arguments of {cache_key[0]} {_call_id(cache_key)}"
            case ToolsetGetToolsId(toolset_id=toolset_id):
                text = f"tools of {toolset_id}"
            case ToolsetGetInstructionsId(toolset_id=toolset_id):
                text = f"instructions of {toolset_id}"
            case EventStreamHandlerId():
                text = f"event {_call_id(cache_key)}".rstrip()
            case CapabilityOperationId(capability_id=capability_id, operation=operation):
                text = f"{capability_id}.{operation}"
        return text

    def _with_model(self, operation: str, model_id: str | None) -> str:
        """Return the text of an operation, with the model unless it is the default one of the agent."""
        return operation if model_id in {None, self._default_model_id} else f"{operation} {model_id}"


def _note_in(value: Any) -> dict[str, Any]:
    """Return the note that is stored with a response; an empty one if there is none."""
    note = value.get(NOTE) if isinstance(value, dict) else None
    return note if isinstance(note, dict) else {}


async def _checked_response(run: _Run, payload: Any, note: dict[str, Any] | None) -> Any:
    """Return the response of a model without the note that is stored with it; raise an error that is stored.

    Raises:
        Abort: It is the response to another run, or an error that cannot be rebuilt.
    """
    stored_note = _note_in(payload)
    if not stored_note:
        return payload
    if (stored := stored_note.get("error")) is not None:
        error = error_from(stored)
        if error is None:
            raise Abort(f"the stored error of the model, {stored!r}, cannot be rebuilt")
        raise error
    if note is not None:
        await run.check_note(note, stored_note)
    return {name: value for name, value in payload.items() if name != NOTE}


def _call_id(cache_key: tuple[object, ...]) -> str:
    """Return the id of the call of a tool that an operation belongs to; an empty text if there is none."""
    for value in cache_key:
        call_id = getattr(value, "tool_call_id", None) or getattr(
            getattr(value, "part", None), "tool_call_id", None
        )
        if isinstance(call_id, str):
            return call_id
    return ""


class _Events(ExternalEventWaiter):
    """Waits for external events by signals to the job."""

    def __init__(self, run: _Run, job_id: str) -> None:
        self._run = run
        self._job_id = job_id

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[JsonValue]], timeout: timedelta | None
    ) -> JsonValue:
        """Call ``ask`` with a token, as a step. Unless it answers, wait until the token is resolved."""
        steps = self._run.steps
        await self._run.store_errors()
        # Tools that run at once may wait for events of one name.
        text = " ".join(filter(None, (name, _tool_call.get())))
        signal_name = self._run.step_name(f"event {text}")
        token = _token_of(self._job_id, signal_name, "event")

        async def ask_once() -> Any:
            in_step = _is_in_step.set(True)
            try:
                return await ask(token)
            finally:
                _is_in_step.reset(in_step)

        answer: JsonValue = await steps.run(self._run.step_name(f"question {text}"), ask_once)
        if answer is not None:
            return answer
        try:
            payload: JsonValue = await steps.wait(signal_name, timeout=timeout)
        except TimeoutError:
            raise ExternalEventError(f"no answer arrived within {timeout}") from None
        if (reason := _reason_of(payload)) is not None:
            raise ExternalEventError(reason)
        return payload


class _Target(NamedTuple):
    """What a token names: a signal to a job, and what it stands for."""

    job_id: str
    signal_name: str
    kind: TokenKind


def _token_of(job_id: str, signal_name: str, kind: TokenKind) -> str:
    """Return the token by which others resolve an event: characters that an address may contain."""
    return base64.urlsafe_b64encode(json.dumps([job_id, signal_name, kind]).encode()).decode()


MAX_TOKEN_LENGTH: Final = 40_000
"""Characters of a token. The id of a job has 2,000 bytes, each of which JSON may write as six characters."""

_TARGET: Final = TypeAdapter(_Target, config=ConfigDict(strict=True))


def _target_of(token: str) -> _Target:
    """Return what a token names.

    Raises:
        ValueError: It is no token.
    """
    try:
        if len(token) > MAX_TOKEN_LENGTH:
            raise ValueError(len(token))  # noqa: TRY301 - as any other mistake
        target = _TARGET.validate_json(base64.urlsafe_b64decode(token.encode()))
        check_job_id(target.job_id)
        check_step_name(target.signal_name, noun="signal")
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{repr(token)[:100]} is no token of an event; pass the one that ask() has got"
        ) from error
    return target


class TextItem(TypedDict):
    """An item of a stream into which ``stream_text()`` writes."""

    step: str
    """The step of the request, such as ``support 1: model request``."""
    attempt: int
    """The attempt of the job. If a crash interrupts a request, a later attempt repeats it from its beginning,
    so show only the items of the highest attempt of each step, and of the highest call in it."""
    call: int
    """The number of the call of the model in this attempt, from 1. With ``retry``, a request that has failed
    is repeated within an attempt."""
    text: str
    """What the model has added to its response."""


def stream_text(name: str) -> EventStreamHandler[Any]:
    """Return a handler that appends the text of a model to a stream of the job while it arrives.

    The items are `TextItem`. Outside of a job the handler does nothing.

    Args:
        name: The name of the stream, for ``scheduler.stream(job_id, name)``.

    Example:
        >>> from pydantic_ai import Agent
        >>> from pg_scheduler.integrations.pydantic_ai import PgSchedulerDurability, stream_text
        >>> durability = PgSchedulerDurability(event_stream_handler=stream_text("answer"))
        >>> agent = Agent("test", name="support", capabilities=[durability])
    """
    return _TextStream(name)


class _TextStream:
    """A handler that appends the text of a model to a stream of the job."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __call__(self, _ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        """Append what the events add to the response of a model."""
        step = _running_step.get(None)
        if step is None and _current_run.get() is not None:
            raise Abort(
                f"stream_text({self._name!r}) is passed to run(), where it would get the text only after the "
                "response; pass it to PgSchedulerDurability(event_stream_handler=...)"
            )
        async for event in events:
            text = _text_of(event)
            # Without a step, the agent runs outside of a job.
            if text and step is not None:
                job = current_job()
                item: TextItem = {
                    "step": step.name,
                    "attempt": job.attempt,
                    "call": step.call,
                    "text": text,
                }
                await job.stream(self._name).append(item)


def _text_of(event: AgentStreamEvent) -> str:
    """Return the text that an event adds to the response of a model; an empty one for other events."""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


async def resolve_event(scheduler: Scheduler, token: str, payload: JsonValue | Approval = None) -> bool:
    """Answer what an agent waits for in a job: an approval, the result of a call, or an external event.

    A token is not signed: it has the id of the job and the name of the signal. Check who answers before you
    call this function, as before any other change of a job.

    Args:
        scheduler: A Scheduler of the database in which the job is.
        token: The token that ``ask`` has got.
        payload: The answer, which JSON can represent. An approval is True, False or an `Approval`.

    Returns:
        False if the event was resolved before, its wait has timed out, or the job has ended.

    Raises:
        ValueError: It is no token of an event, or the payload does not fit it: an approval needs True, False
            or an `Approval`, which in turn answers nothing else.
        JobNotFoundError: The job does not exist any more.
        PayloadError: JSON cannot represent the payload, or it is too large.
        TypeError: ``scheduler`` is no Scheduler.

    Example:
        >>> from pg_scheduler import Scheduler
        >>> from pg_scheduler.integrations.pydantic_ai import resolve_event
        >>> async def answer(scheduler: Scheduler, token: str, text: str) -> None:
        ...     await resolve_event(scheduler, token, text)
    """
    check_scheduler(scheduler)
    job_id, signal_name, kind = _target_of(token)
    if kind == "approval":
        _approval_from(payload)
    elif isinstance(payload, Approval):
        noun = "the result of a call" if kind == "result" else "an external event"
        raise ValueError(
            f"the token is that of {noun}, which an Approval does not answer: {payload!r}; pass the value"
        )
    return await scheduler.signal(job_id, signal_name, payload)


async def fail_event(scheduler: Scheduler, token: str, reason: str) -> bool:
    """Let what an agent waits for fail, with a reason that the model gets.

    The model gets the reason as the failure of a call whose result another system owes, or as that of a call
    which needed an approval and was not approved. The wait for an external event raises
    ``ExternalEventError`` with the reason. The other arguments, and the errors, are those of
    ``resolve_event()``.
    """
    check_scheduler(scheduler)
    job_id, signal_name, _kind = _target_of(token)
    return await scheduler.signal(job_id, signal_name, {FAILURE: reason})


class PgSchedulerDurability(BaseDurabilityCapability[AgentDepsT]):
    """Make the runs of an agent durable in jobs: attach it to the agent as a capability.

    Outside of a job the agent runs as it does without this capability. In a coroutine function that runs as
    a job, each request to a model and each call of a tool is a step, so a retry of the job after a crash
    requests nothing again. A step that a crash has interrupted is executed again, so give other services an
    idempotency key, with the id of the job, the step of the run and the id of the call.

    A tool that needs an approval suspends the job until ``resolve_event()`` is called with the token that
    ``ask`` has got, or until an operator sends the signal in the dashboard.

    Args:
        models: Further models by id, which a run may select.
        event_stream_handler: Gets the events of model responses while they arrive, and those of tools.
        name: A name that is unique among the agents of a job; None for that of the agent. Stored steps have
            it in their names, so do not change it while jobs are unfinished.
        model_options: How requests to models are executed as steps.
        tool_options: The same for calls of tools. A tool may have its own in its metadata, under the key
            ``pg_scheduler``, or ``False`` there to run outside of a step, so that it may wait.
        mcp_options: The same for MCP servers.
        ask: Asks a person about a call that needs an approval, or an answer, in a step of its own.
        waits_for_approvals: Whether calls that need an approval, or an external result, suspend the job.
            Otherwise the run ends with ``DeferredToolRequests``, if that is an output type of the agent.

    Raises:
        TypeError: An option of a step is unknown, or has the wrong type.
        ConfigurationError: A number among these options is out of range.

    Example:
        >>> from pydantic_ai import Agent
        >>> from pg_scheduler import job
        >>> from pg_scheduler.integrations.pydantic_ai import PgSchedulerDurability
        >>> agent = Agent("test", name="support", capabilities=[PgSchedulerDurability()])
        >>> @job(max_retries=5)
        ... async def answer(question: str) -> str:
        ...     result = await agent.run(question)
        ...     return result.output
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="pg_scheduler",
        durable_unit_noun="step",
        durable_container_noun="job",
        codec=_StrictJson(),
        # A value that JSON cannot represent fails in each attempt.
        serialization_failure=lambda error: Abort(f"the value of a step is no JSON: {error}"),
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key="pg_scheduler",
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        model_options: StepOptions | None = None,
        tool_options: StepOptions | None = None,
        mcp_options: StepOptions | None = None,
        ask: Ask | None = None,
        waits_for_approvals: bool = True,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model_options = _checked_options("model_options", model_options)
        self._tool_options = _checked_options("tool_options", tool_options)
        self._mcp_options = _checked_options("mcp_options", mcp_options)
        self._ask = ask
        self._waits_for_approvals = waits_for_approvals

    @property
    def in_durable_context(self) -> bool:
        """Whether this code runs in a job, and not in a step of an agent."""
        return _durable_steps() is not None

    def get_default_run_id(self) -> str | None:
        """Return the id of a run that begins: the same one in each attempt of the job."""
        steps = _durable_steps()
        if steps is None:
            return None
        # An agent that code of another run begins has numbers of its own within that run. Tools may run at
        # once, so those that one of them begins have the id of its call.
        outer_run = _current_run.get()
        places = [] if outer_run is None else [outer_run.name, _tool_call.get()]
        series = "/".join(filter(None, (*places, self.name)))
        return f"{current_job().job_id}:{_runs_of(steps).next_name(series)}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of the conversation of a run: the same one in each attempt of the job."""
        if not self.in_durable_context:
            return None
        return conversation_id_from_run_id(run_id)

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when the first attempt of the job began a run, from which its timeout counts."""
        steps = _durable_steps()
        if steps is None:
            return None

        async def read_clock() -> str:
            return datetime.now(UTC).isoformat()

        return read_timestamp(await steps.run(_shortened(f"{_run_name(run_id)}: start"), read_clock))

    async def _dispatch_event_stream_event(
        self, ctx: RunContext[AgentDepsT], event: AgentStreamEvent
    ) -> None:
        """Pass an event that is not of a model to the handler in a step, unless the handler ignores it."""
        if not isinstance(self._effective_event_stream_handler(), _TextStream):
            await super()._dispatch_event_stream_event(ctx, event)

    def get_durable_operation_backend(self) -> _Backend:
        """Return what executes operations as steps."""

        def tool_options(
            operation_id: DurableOperationId, tool: Any, tool_name: str
        ) -> StepOptions | Literal[False]:
            kind: ToolsetKind = getattr(operation_id, "toolset_kind", "function")
            options = self._build_resolve_tool_config(self._toolset_base_config(kind))(tool, tool_name)
            if options is False:
                return False
            return _checked_options(f"the metadata of tool {tool_name!r}", cast("StepOptions", options))

        return _Backend(
            self.name,
            self.default_model_id,
            RoleBasedOperationConfig(
                model=self._model_options,
                event={},
                capability={},
                tool=self._tool_options,
                resolve_tool=tool_options,
            ),
        )

    def _toolset_base_config(self, kind: ToolsetKind) -> StepOptions:
        return self._mcp_options if kind == "mcp" else self._tool_options

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Give the steps of a run their names, and let it wait for signals."""
        steps = _durable_steps()
        if steps is None:
            return await handler()
        name, runs = _run_name(ctx.run_id or ""), _runs_of(steps)
        runs.begin(name)
        run = _Run(steps, name, runs)
        # An agent that a tool runs has tools of its own.
        token, call_token = _current_run.set(run), _tool_call.set(None)
        try:
            with (
                run.coordinating(),
                replay_scope(),
                external_event_scope(_Events(run, current_job().job_id)),
            ):
                result = await super().wrap_run(ctx, handler=handler)
                await run.store_errors()
                return result
        finally:
            _tool_call.reset(call_token)
            _current_run.reset(token)
            runs.end(name)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: ValidatedToolArgs,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Note the call of a tool in the context of its code."""
        run = _current_run.get()
        if run is not None and not _is_in_step.get():
            await run.store_errors()
        token = _tool_call.set(call.tool_call_id)
        try:
            return await super().wrap_tool_execute(
                ctx, call=call, tool_def=tool_def, args=args, handler=handler
            )
        finally:
            _tool_call.reset(token)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Wait for the signals that approve, deny or answer calls of tools."""
        run = _current_run.get()
        if run is None or _is_in_step.get() or not self._waits_for_approvals:
            return None
        await run.store_errors()
        # A model may use an id again in a later response, so the names of the signals have numbers too.
        approvals = {
            call.tool_call_id: run.step_name(f"answer {call.tool_call_id}") for call in requests.approvals
        }
        results = {call.tool_call_id: run.step_name(f"result {call.tool_call_id}") for call in requests.calls}
        for call in requests.approvals:
            await self._ask_about(ctx, run, call, approvals[call.tool_call_id], "approval")
        for call in requests.calls:
            await self._ask_about(ctx, run, call, results[call.tool_call_id], "result")
        # The job waits for all of them at once, so that people may answer in any order.
        names = [*approvals.values(), *results.values()]
        value_of = dict(zip(names, await asyncio.gather(*map(run.steps.wait, names)), strict=True))
        return requests.build_results(
            approvals={
                call_id: _approval_of(signal_name, value_of[signal_name])
                for call_id, signal_name in approvals.items()
            },
            calls={call_id: _result_of(value_of[signal_name]) for call_id, signal_name in results.items()},
        )

    async def _ask_about(
        self, ctx: RunContext[AgentDepsT], run: _Run, call: ToolCallPart, signal_name: str, kind: TokenKind
    ) -> None:
        """Ask a person about a call, and store what it is, for the pages of the job."""
        token = _token_of(current_job().job_id, signal_name, kind)

        async def ask() -> Any:
            if self._ask is not None:
                await self._ask(ctx, call, token)
            return {"tool": call.tool_name, "arguments": call.args_as_dict(), "token": token}

        await run.steps.run(run.step_name(f"question {call.tool_name} {call.tool_call_id}"), ask)


def _approval_from(value: Any) -> Approval:
    """Return the approval that a value stands for.

    Raises:
        ValueError: It is neither a bool nor an `Approval`.
    """
    if isinstance(value, bool):
        return Approval(approved=value)
    try:
        return Approval.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        problems = "; ".join(detail["msg"] for detail in details)
        raise ValueError(
            f"{value!r} is neither a bool nor an Approval ({problems}); pass True, False or an Approval"
        ) from error


def _approval_of(signal_name: str, value: Any) -> ToolApproved | ToolDenied:
    """Return what the library does by the value of the signal that answers a call.

    Raises:
        Abort: It is neither a bool nor an `Approval`, so that each attempt would fail.
    """
    if (reason := _reason_of(value)) is not None:
        return ToolDenied(reason)
    try:
        approval = _approval_from(value)
    except ValueError as error:
        raise Abort(
            f"the signal {signal_name!r} has the wrong value: {error}; send another one after "
            f"retry_job(from_step={signal_name!r})"
        ) from error
    if approval.approved:
        return ToolApproved(override_args=approval.override_args)
    return ToolDenied() if approval.message is None else ToolDenied(approval.message)


def _result_of(value: Any) -> Any:
    """Return the result of a call that another system has executed, or its failure."""
    reason = _reason_of(value)
    return value if reason is None else ToolFailed(reason)


def _reason_of(value: Any) -> str | None:
    """Return the reason for which an event has failed, if the value of its signal is one."""
    return str(value[FAILURE]) if isinstance(value, dict) and value.keys() == {FAILURE} else None


def _checked_options(source: str, options: StepOptions | None) -> StepOptions:
    """Return the options of a step, which are checked before any request is paid.

    Raises:
        TypeError: An option is unknown, or has the wrong type.
        ConfigurationError: A number is out of range.
    """
    checked: StepOptions = options or {}
    option_names = sorted(StepOptions.__optional_keys__)
    for name in checked:
        if name not in option_names:
            raise TypeError(
                f"{name!r} of {source} is no option of a step; these are: {', '.join(option_names)}"
            )
    rules: dict[str, Any] = {name: checked.get(name, UNSET) for name in option_names}
    StepRules.of(_checked_options, rules["retry"], rules["max_retries"], rules["timeout"])
    return checked


def _run_name(run_id: str) -> str:
    """Return the name of a run in the names of its steps: its id without that of the job."""
    return run_id.removeprefix(f"{current_job().job_id}:")
