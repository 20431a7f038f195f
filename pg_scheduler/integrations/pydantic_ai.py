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
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, TypedDict, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CallableOperationBackend,
    CapabilityOperationId,
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
    ToolDenied,
)

from pg_scheduler import Abort, RetryPolicy, Scheduler, Steps, current_job
from pg_scheduler.jobs.step_values import MAX_NAME_BYTES
from pg_scheduler.steps.attempt import AttemptSteps
from pg_scheduler.worker.waiting import context_of

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
"""Characters of the hash at the end of the name of a step that would be too long."""

FAILURE: Final = "pg_scheduler_failure"
"""The key of the reason in the value of a signal by which an event fails."""

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

    approved: bool = True
    """Whether the tool is called."""
    message: str | None = None
    """What the model gets instead of the result of a tool that was denied; None for a default."""
    override_args: dict[str, Any] | None = None
    """The arguments of the tool instead of those that the model has chosen; None for these."""


class _Run:
    """One run of an agent in one attempt of a job: it gives its steps their names.

    Attributes:
        steps: The steps of the attempt.
        host: The task that awaits the run; None if that is unknown.
        name: The name of the run, with which the names of its steps begin. It is the same one in each
            attempt of the job.
    """

    def __init__(self, steps: Steps, name: str, host: asyncio.Task[Any] | None) -> None:
        self.steps = steps
        self.name = name
        self.host = host
        # How often each operation was executed.
        self._counts = Counter[str]()

    def waiting(self) -> AbstractContextManager[None]:
        """Let the job be suspended while code of the run waits for a signal within the block.

        The run does nothing else meanwhile. But its tasks wait for one another by events and queues, of which
        the worker does not know what they wait for.
        """
        # Steps of a test kit of the application may be another class.
        if not isinstance(self.steps, AttemptSteps):
            return nullcontext()
        return self.steps.standing_still(self._stands_still)

    def _stands_still(self, task: asyncio.Task[Any]) -> bool:
        """Return whether a task belongs to the run, or awaits it."""
        context = context_of(task)
        return task is self.host or (context is not None and context.get(_current_run) is self)

    def step_name(self, operation: str) -> str:
        """Return the name of the next step for an operation, of at most 200 bytes.

        An operation that is repeated gets a number. Operations that run at once have the id of the call of
        their tool in their text, so their numbers do not depend on which one is first.
        """
        self._counts[operation] += 1
        count = self._counts[operation]
        name = f"{self.name}: {operation}" if count == 1 else f"{self.name}: {operation} #{count}"
        if len(name.encode()) <= MAX_NAME_BYTES:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_LENGTH]
        beginning = name.encode()[: MAX_NAME_BYTES - DIGEST_LENGTH - 1].decode(errors="ignore")
        return f"{beginning}~{digest}"


_current_run: Final[ContextVar[_Run | None]] = ContextVar("pg_scheduler_agent_run", default=None)
"""The run of an agent in whose context this code runs."""

_is_in_step: Final[ContextVar[bool]] = ContextVar("pg_scheduler_agent_step", default=False)
"""Whether this code runs in a step of an agent. What a tool runs belongs to the step of that tool."""

_step_name: Final[ContextVar[str]] = ContextVar("pg_scheduler_agent_step_name")
"""The name of the step in which this code runs."""

_host: Final[ContextVar[asyncio.Task[Any] | None]] = ContextVar("pg_scheduler_agent_host", default=None)
"""The task that has begun the run of an agent, which awaits it."""

_run_numbers: Final[WeakKeyDictionary[Steps, Counter[str]]] = WeakKeyDictionary()
"""How many runs of each agent an attempt has begun."""


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
        was_executed = False

        step_name = run.step_name(self._operation_text(operation_id, cache_key))

        async def execute_body() -> Any:
            nonlocal was_executed
            was_executed = True
            token, name_token = _is_in_step.set(True), _step_name.set(step_name)
            try:
                return await body()
            finally:
                _is_in_step.reset(token)
                _step_name.reset(name_token)

        payload = await run.steps.run(step_name, execute_body, **config)
        # Otherwise the telemetry of the library would count the requests of earlier attempts once more.
        record_durable_unit(executed=was_executed)
        return payload

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
        signal_name = self._run.step_name(f"event {name}")
        token = _token_of(self._job_id, signal_name)

        async def ask_once() -> Any:
            in_step = _is_in_step.set(True)
            try:
                return await ask(token)
            finally:
                _is_in_step.reset(in_step)

        answer: JsonValue = await steps.run(self._run.step_name(f"question {name}"), ask_once)
        if answer is not None:
            return answer
        try:
            with self._run.waiting():
                payload: JsonValue = await steps.wait(signal_name, timeout=timeout)
        except TimeoutError:
            raise ExternalEventError(f"no answer arrived within {timeout}") from None
        if isinstance(payload, dict) and payload.keys() == {FAILURE}:
            raise ExternalEventError(str(payload[FAILURE]))
        return payload


def _token_of(job_id: str, signal_name: str) -> str:
    """Return the token by which others resolve an event: characters that an address may contain."""
    return base64.urlsafe_b64encode(json.dumps([job_id, signal_name]).encode()).decode()


def _target_of(token: str) -> tuple[str, str]:
    """Return the id of the job and the name of the signal in a token.

    Raises:
        ValueError: It is no token.
    """
    try:
        job_id, signal_name = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{token!r} is no token of an event; pass the one that ask() has got") from error
    return job_id, signal_name


class TextItem(TypedDict):
    """An item of a stream into which ``stream_text()`` writes."""

    step: str
    """The step of the request, such as ``support 1: model request``."""
    attempt: int
    """The attempt of the job. If a crash interrupts a request, a later attempt repeats it from its beginning,
    so show only the items of the highest attempt of each step."""
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

    async def append_text(_ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        step_name = _step_name.get(None)
        async for event in events:
            text = _text_of(event)
            # Without a step, the agent runs outside of a job.
            if text and step_name is not None:
                job = current_job()
                item: TextItem = {"step": step_name, "attempt": job.attempt, "text": text}
                await job.stream(name).append(item)

    return append_text


def _text_of(event: AgentStreamEvent) -> str:
    """Return the text that an event adds to the response of a model; an empty one for other events."""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


async def resolve_event(scheduler: Scheduler, token: str, payload: JsonValue | Approval = None) -> bool:
    """Answer what an agent waits for in a job: an approval, the result of a call, or an external event.

    Args:
        scheduler: A Scheduler of the database in which the job is.
        token: The token that ``ask`` has got.
        payload: The answer, which JSON can represent. An approval is True, False or an `Approval`.

    Returns:
        False if the event was resolved before, its wait has timed out, or the job has ended.

    Raises:
        ValueError: It is no token of an event.
        JobNotFoundError: The job does not exist any more.
        PayloadError: JSON cannot represent the payload, or it is too large.

    Example:
        >>> from pg_scheduler import Scheduler
        >>> from pg_scheduler.integrations.pydantic_ai import resolve_event
        >>> async def answer(scheduler: Scheduler, token: str, text: str) -> None:
        ...     await resolve_event(scheduler, token, text)
    """
    job_id, signal_name = _target_of(token)
    return await scheduler.signal(job_id, signal_name, payload)


async def fail_event(scheduler: Scheduler, token: str, reason: str) -> bool:
    """Let the wait for an external event raise ``ExternalEventError`` with a reason.

    Its other arguments, and its errors, are those of ``resolve_event()``.
    """
    job_id, signal_name = _target_of(token)
    return await scheduler.signal(job_id, signal_name, {FAILURE: reason})


class PgSchedulerDurability(BaseDurabilityCapability[AgentDepsT]):
    """Make the runs of an agent durable in jobs: attach it to the agent as a capability.

    Outside of a job the agent runs as it does without this capability. In a coroutine function that runs as
    a job, each request to a model and each call of a tool is a step, so a retry of the job after a crash
    requests nothing again. A step that a crash has interrupted is executed again, so tools must bear that:
    pass the id of the call to other services as an idempotency key.

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
        codec=JSON_CODEC,
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
        self._model_options: StepOptions = model_options or {}
        self._tool_options: StepOptions = tool_options or {}
        self._mcp_options: StepOptions = mcp_options or {}
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
        numbers = _run_numbers.setdefault(steps, Counter())
        numbers[self.name] += 1
        return f"{current_job().job_id}:{self.name} {numbers[self.name]}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of the conversation of a run: the same one in each attempt of the job."""
        if not self.in_durable_context:
            return None
        # The library calls this method for each run, in the task that awaits it, but wrap_run() in another.
        _host.set(asyncio.current_task())
        return conversation_id_from_run_id(run_id)

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when the first attempt of the job began a run, from which its timeout counts."""
        steps = _durable_steps()
        if steps is None:
            return None

        async def read_clock() -> str:
            return datetime.now(UTC).isoformat()

        return datetime.fromisoformat(await steps.run(f"{_run_name(run_id)}: start", read_clock))

    def get_durable_operation_backend(self) -> _Backend:
        """Return what executes operations as steps."""

        def tool_options(
            operation_id: DurableOperationId, tool: Any, tool_name: str
        ) -> StepOptions | Literal[False]:
            kind: ToolsetKind = getattr(operation_id, "toolset_kind", "function")
            options = self._build_resolve_tool_config(self._toolset_base_config(kind))(tool, tool_name)
            return cast("StepOptions | Literal[False]", options)

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
        run = _Run(steps, _run_name(ctx.run_id or ""), _host.get())
        token = _current_run.set(run)
        try:
            with replay_scope(), external_event_scope(_Events(run, current_job().job_id)):
                return await super().wrap_run(ctx, handler=handler)
        finally:
            _current_run.reset(token)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Wait for the signals that approve, deny or answer calls of tools."""
        run = _current_run.get()
        if run is None or _is_in_step.get() or not self._waits_for_approvals:
            return None
        signals = {
            call.tool_call_id: f"{run.name}: answer {call.tool_call_id}"
            for call in (*requests.approvals, *requests.calls)
        }
        for call in (*requests.approvals, *requests.calls):
            await self._ask_about(ctx, run, call, signals[call.tool_call_id])
        # The job waits for all of them at once, so that people may answer in any order.
        with run.waiting():
            answers = await asyncio.gather(*map(run.steps.wait, signals.values()))
        answer_of = dict(zip(signals, answers, strict=True))
        return requests.build_results(
            approvals={
                call.tool_call_id: _approval_of(signals[call.tool_call_id], answer_of[call.tool_call_id])
                for call in requests.approvals
            },
            calls={call.tool_call_id: answer_of[call.tool_call_id] for call in requests.calls},
        )

    async def _ask_about(
        self, ctx: RunContext[AgentDepsT], run: _Run, call: ToolCallPart, signal_name: str
    ) -> None:
        """Ask a person about a call, and store what it is, for the pages of the job."""
        token = _token_of(current_job().job_id, signal_name)

        async def ask() -> Any:
            if self._ask is not None:
                await self._ask(ctx, call, token)
            return {"tool": call.tool_name, "arguments": call.args_as_dict(), "token": token}

        await run.steps.run(run.step_name(f"question {call.tool_name} {call.tool_call_id}"), ask)


def _approval_of(signal_name: str, value: Any) -> ToolApproved | ToolDenied:
    """Return the approval that the value of a signal stands for.

    Raises:
        Abort: It is neither a bool nor an `Approval`, so that each attempt would fail.
    """
    try:
        approval = Approval(approved=value) if isinstance(value, bool) else Approval.model_validate(value)
    except ValidationError as error:
        raise Abort(
            f"the signal {signal_name!r} has the value {value!r}, which is neither a bool nor an Approval; "
            f"send another one after retry_job(from_step={signal_name!r})"
        ) from error
    if approval.approved:
        return ToolApproved(override_args=approval.override_args)
    return ToolDenied() if approval.message is None else ToolDenied(approval.message)


def _run_name(run_id: str) -> str:
    """Return the name of a run in the names of its steps: its id without that of the job."""
    return run_id.removeprefix(f"{current_job().job_id}:")
