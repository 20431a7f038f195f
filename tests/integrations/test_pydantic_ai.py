"""Durable agents of Pydantic AI, with the test models of that library."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

pytest.importorskip("pydantic_ai", exc_type=ImportError, reason="dev.py has not updated this environment")

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.capabilities import AbstractCapability, ModelFallback
from pydantic_ai.exceptions import (
    CallDeferred,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelRequestTimeout,
    ModelUnavailableError,
    UnexpectedModelBehavior,
)
from pydantic_ai.external_events import ExternalEventError, wait_for_external_event
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import Model as AnyModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.toolsets import FunctionToolset

from pg_scheduler import JobStatus, RetryPolicy, Scheduler, StepFailedError, current_job, job
from pg_scheduler import call as call_of
from pg_scheduler.integrations.model_errors import error_from, stored_error
from pg_scheduler.integrations.pydantic_ai import (
    Approval,
    PgSchedulerDurability,
    StepOptions,
    fail_event,
    resolve_event,
    stream_text,
)
from pg_scheduler.testing import TestScheduler
from tests.docs.snippets import ROOT
from tests.support.patience import PATIENCE

NOW = datetime(2030, 1, 1, tzinfo=UTC)
KEEP = timedelta(hours=1)


@pytest.fixture
async def t(dsn: str) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(dsn, now=NOW) as kit:
        yield kit


class Model:
    """A model that answers with the calls and texts that the test gives it, and counts its requests."""

    def __init__(self, *responses: ModelResponse) -> None:
        self.responses = responses
        self.requests = 0

    def respond(self, messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        self.requests += 1
        # The responses so far decide which one is next, as in a conversation.
        return self.responses[sum(isinstance(message, ModelResponse) for message in messages)]

    def agent(self, **settings: Any) -> Agent[None, Any]:
        durability = settings.pop("durability", None) or PgSchedulerDurability()
        return Agent(FunctionModel(self.respond), name="support", capabilities=[durability], **settings)


def call(tool: str, call_id: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments, call_id)


def says(text: str) -> ModelResponse:
    return ModelResponse([TextPart(text)])


async def steps_of(t: TestScheduler, job_id: str) -> list[str]:
    rows = await t.pool.fetch(
        "SELECT name FROM scheduler_steps WHERE job_id = $1 AND kind = 'step' ORDER BY started_at", job_id
    )
    return [row["name"] for row in rows]


async def test_agent_runs_without_a_job_as_without_the_capability() -> None:
    agent = Agent(TestModel(), name="support", capabilities=[PgSchedulerDurability()])

    @agent.tool_plain
    async def weather(city: str) -> str:
        return f"rain in {city}"

    result = await agent.run("What is the weather?")
    assert result.output == '{"weather":"rain in a"}'


async def test_retry_requests_nothing_again_that_has_been_stored(t: TestScheduler) -> None:
    model = Model(ModelResponse([call("weather", "c1", city="Ulm")]), says("Take an umbrella."))
    calls: list[str] = []
    agent = model.agent()

    @agent.tool_plain
    async def weather(city: str) -> str:
        calls.append(city)
        return f"rain in {city}"

    failures = [True]

    async def answer(question: str) -> str:
        result = await agent.run(question)
        if failures.pop():
            failures.append(False)
            raise ConnectionError("after the run")
        output: str = result.output
        return output

    job_id = await t.scheduler.enqueue(answer, args=("Rain?",), max_retries=1, keep_result=KEEP)
    await t.run_until(timedelta(hours=1))
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == "Take an umbrella."
    assert (model.requests, calls) == (2, ["Ulm"])
    assert await steps_of(t, job_id) == [
        "support 1: model request",
        "support 1: tool weather c1",
        "support 1: model request #2",
    ]


async def test_tools_that_run_at_once_find_their_own_results_in_another_attempt(
    pool: asyncpg.Pool, t: TestScheduler
) -> None:
    """The first attempt ends while one of two tools has been stored, and it is not always the first one."""
    model = Model(
        ModelResponse([call("look_up", "c1", word="slow"), call("look_up", "c2", word="quick")]), says("done")
    )
    agent = model.agent()
    calls: list[str] = []
    failures = {"slow"}

    @agent.tool_plain
    async def look_up(word: str) -> str:
        calls.append(word)
        if word in failures:
            await until_there_is(pool, "SELECT count(*) FROM scheduler_steps WHERE name LIKE '% c2'")
            failures.clear()
            raise ConnectionError("the service is down")
        return f"{word}!"

    async def answer() -> list[str]:
        result = await agent.run("Look up.")
        returns = [
            part
            for message in result.all_messages()
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]
        return [f"{part.tool_call_id} {part.content}" for part in returns]

    job_id = await t.scheduler.enqueue(answer, max_retries=1, keep_result=KEEP)
    await t.run_until(timedelta(hours=1))
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == ["c1 slow!", "c2 quick!"]
    assert model.requests == 2
    assert sorted(calls) == ["quick", "slow", "slow"], "only the one that failed is called again"


async def test_job_waits_two_days_for_an_approval_and_asks_once(t: TestScheduler) -> None:
    model = Model(ModelResponse([call("refund", "c1", amount=90)]), says("Refunded."))
    asked: list[tuple[str, str]] = []
    refunds: list[int] = []

    async def ask(_ctx: RunContext[None], tool_call: ToolCallPart, token: str) -> None:
        asked.append((tool_call.tool_name, token))

    agent = model.agent(durability=PgSchedulerDurability(ask=ask))

    @agent.tool_plain(requires_approval=True)
    async def refund(amount: int) -> str:
        refunds.append(amount)
        return "refunded"

    async def answer() -> str:
        result = await agent.run("I want my money back.")
        output: str = result.output
        return output

    job_id = await t.scheduler.enqueue(answer, keep_result=KEEP)
    await t.drain()
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    assert job.status is JobStatus.PENDING
    assert refunds == []
    ((tool, token),) = asked
    assert tool == "refund"
    await t.run_until(timedelta(days=2))
    assert await resolve_event(t.scheduler, token, True)
    assert not await resolve_event(t.scheduler, token, False), "the first answer counts"
    await t.drain()
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == "Refunded."
    assert (refunds, len(asked), model.requests) == ([90], 1, 2)


@pytest.mark.parametrize(
    ("answer_of_person", "refunded", "message"),
    [
        (False, [], "The tool call was denied."),
        (Approval(approved=False, message="too much"), [], "too much"),
        (Approval(approved=True, override_args={"amount": 10}), [10], "refunded"),
    ],
)
async def test_person_denies_a_call_or_changes_its_arguments(
    t: TestScheduler, answer_of_person: bool | Approval, refunded: list[int], message: str
) -> None:
    model = Model(ModelResponse([call("refund", "c1", amount=90)]), says("Done."))
    tokens: list[str] = []
    refunds: list[int] = []

    async def ask(_ctx: RunContext[None], _call: ToolCallPart, token: str) -> None:
        tokens.append(token)

    agent = model.agent(durability=PgSchedulerDurability(ask=ask))

    @agent.tool_plain(requires_approval=True)
    async def refund(amount: int) -> str:
        refunds.append(amount)
        return "refunded"

    async def answer() -> list[Any]:
        result = await agent.run("I want my money back.")
        return [
            part.content
            for returned in result.all_messages()
            for part in returned.parts
            if isinstance(part, ToolReturnPart)
        ]

    job_id = await t.scheduler.enqueue(answer, keep_result=KEEP)
    await t.drain()
    await resolve_event(t.scheduler, tokens[0], answer_of_person)
    await t.drain()
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == [message]
    assert refunds == refunded


async def test_job_fails_with_the_remedy_when_an_approval_is_something_else(t: TestScheduler) -> None:
    model = Model(ModelResponse([call("refund", "c1")]), says("Done."))
    agent = model.agent()

    @agent.tool_plain(requires_approval=True)
    async def refund() -> str:
        return "refunded"

    async def answer() -> None:
        await agent.run("I want my money back.")

    job_id = await t.scheduler.enqueue(answer, max_retries=5)
    await t.drain()
    await t.scheduler.signal(job_id, "support 1: answer c1", "yes")
    await t.drain()
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    assert job.status is JobStatus.FAILED
    assert "neither a bool nor an Approval" in (job.error_message or "")
    # The remedy that the message names.
    await t.scheduler.retry_job(job_id, from_step="support 1: answer c1")
    await t.drain()
    await t.scheduler.signal(job_id, "support 1: answer c1", True)
    await t.drain()
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    assert job.status is JobStatus.COMPLETED


async def test_run_ends_with_deferred_requests_when_the_job_does_not_wait_for_approvals(
    t: TestScheduler,
) -> None:
    model = Model(ModelResponse([call("refund", "c1")]))
    durability = PgSchedulerDurability(waits_for_approvals=False)
    agent = model.agent(durability=durability, output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    async def refund() -> str:
        return "refunded"

    async def answer() -> list[str]:
        result = await agent.run("I want my money back.")
        return [tool_call.tool_call_id for tool_call in result.output.approvals]

    job_id = await t.scheduler.enqueue(answer, keep_result=KEEP)
    await t.drain()
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == ["c1"]


async def test_tool_waits_for_an_external_event_outside_of_a_step(t: TestScheduler) -> None:
    model = Model(ModelResponse([call("review", "c1")]), says("Done."))
    tokens: list[str] = []
    agent = model.agent()

    @agent.tool_plain(metadata={"pg_scheduler": False})
    async def review() -> str:
        payload = await wait_for_external_event("review", ask=tokens.append, timeout=timedelta(days=1))
        return f"reviewed: {payload}"

    async def answer() -> Any:
        result = await agent.run("Review it.")
        return [
            part.content
            for returned in result.all_messages()
            for part in returned.parts
            if isinstance(part, ToolReturnPart)
        ]

    job_id = await t.scheduler.enqueue(answer, keep_result=KEEP)
    await t.drain()
    await resolve_event(t.scheduler, tokens[0], {"stars": 5})
    await t.drain()
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == ["reviewed: {'stars': 5}"]
    assert len(tokens) == 1


@pytest.mark.parametrize("times_out", [False, True])
async def test_external_event_fails_with_a_reason_or_when_its_time_is_over(
    t: TestScheduler, times_out: bool
) -> None:
    model = Model(ModelResponse([call("review", "c1")]), says("Done."))
    tokens: list[str] = []
    reasons: list[str] = []
    agent = model.agent()

    @agent.tool_plain(metadata={"pg_scheduler": False})
    async def review() -> str:
        try:
            await wait_for_external_event("review", ask=tokens.append, timeout=timedelta(hours=1))
        except ExternalEventError as error:
            reasons.append(str(error))
        return "no review"

    async def answer() -> None:
        await agent.run("Review it.")

    await t.scheduler.enqueue(answer)
    await t.drain()
    if times_out:
        await t.run_until(timedelta(hours=2))
    else:
        await fail_event(t.scheduler, tokens[0], "nobody is there")
        await t.drain()
    assert reasons[-1] == ("no answer arrived within 1:00:00" if times_out else "nobody is there")


async def test_call_id_that_a_model_uses_again_gets_a_question_of_its_own(t: TestScheduler) -> None:
    model = Model(
        ModelResponse([call("refund", "call_0", amount=10)]),
        ModelResponse([call("refund", "call_0", amount=9999)]),
        says("Done."),
    )
    tokens: list[str] = []
    refunds: list[int] = []

    async def ask(_ctx: RunContext[None], _call: ToolCallPart, token: str) -> None:
        tokens.append(token)

    agent = model.agent(durability=PgSchedulerDurability(ask=ask))

    @agent.tool_plain(requires_approval=True)
    async def refund(amount: int) -> str:
        refunds.append(amount)
        return "refunded"

    async def answer() -> None:
        await agent.run("I want my money back.")

    await t.scheduler.enqueue(answer)
    await t.drain()
    assert await resolve_event(t.scheduler, tokens[0], True)
    await t.drain()
    assert refunds == [10], "the first approval is not that of the second call"
    assert await resolve_event(t.scheduler, tokens[1], False)
    await t.drain()
    assert (refunds, len(set(tokens)), model.requests) == ([10], 2, 3)


async def test_long_call_id_can_be_approved(t: TestScheduler) -> None:
    model = Model(ModelResponse([call("refund", "c" * 300)]), says("Done."))
    tokens: list[str] = []

    async def ask(_ctx: RunContext[None], _call: ToolCallPart, token: str) -> None:
        tokens.append(token)

    agent = model.agent(durability=PgSchedulerDurability(ask=ask))

    @agent.tool_plain(requires_approval=True)
    async def refund() -> str:
        return "refunded"

    async def answer() -> str:
        result = await agent.run("Go.")
        output: str = result.output
        return output

    job_id = await t.scheduler.enqueue(answer, keep_result=KEEP)
    await t.drain()
    assert await resolve_event(t.scheduler, tokens[0], True)
    await t.drain()
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == "Done."


UNCLEAR_APPROVALS: tuple[Any, ...] = (
    {},
    {"message": "no, too expensive"},
    {"approved": "yes"},
    {"approved": 1},
    {"approved": True, "message": "no, too expensive"},
    {"approved": False, "override_args": {"amount": 1}},
    {"approved": True, "comment": "fine"},
    None,
    1,
    "true",
    [True],
)


@pytest.mark.parametrize("value", UNCLEAR_APPROVALS, ids=str)
async def test_unclear_approval_is_refused_at_the_call_and_approves_nothing(
    t: TestScheduler, value: Any
) -> None:
    model = Model(ModelResponse([call("refund", "c1")]), says("Done."))
    tokens: list[str] = []
    refunds: list[bool] = []

    async def ask(_ctx: RunContext[None], _call: ToolCallPart, token: str) -> None:
        tokens.append(token)

    agent = model.agent(durability=PgSchedulerDurability(ask=ask))

    @agent.tool_plain(requires_approval=True)
    async def refund() -> str:
        refunds.append(True)
        return "refunded"

    async def answer() -> None:
        await agent.run("Go.")

    job_id = await t.scheduler.enqueue(answer, max_retries=5)
    await t.drain()
    with pytest.raises(ValueError, match="neither a bool nor an Approval"):
        await resolve_event(t.scheduler, tokens[0], value)
    # The dashboard sends any value.
    await t.scheduler.signal(job_id, "support 1: answer c1", value)
    await t.drain()
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    assert (job.status, job.attempt) == (JobStatus.FAILED, 2)
    assert refunds == []


@pytest.mark.parametrize(
    "fields",
    [{}, {"approved": 1}, {"approved": True, "message": "no"}, {"approved": False, "override_args": {}}],
    ids=str,
)
def test_unclear_approval_cannot_be_written(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="approved"):
        Approval(**fields)


@pytest.mark.parametrize("is_approval", [False, True])
async def test_event_that_fails_is_a_failure_for_the_model(t: TestScheduler, is_approval: bool) -> None:
    model = Model(ModelResponse([call("transfer", "c1")]), says("Done."))
    tokens: list[str] = []

    async def ask(_ctx: RunContext[None], _call: ToolCallPart, token: str) -> None:
        tokens.append(token)

    agent = model.agent(durability=PgSchedulerDurability(ask=ask))

    @agent.tool_plain(requires_approval=is_approval)
    async def transfer() -> str:
        raise CallDeferred

    async def answer() -> list[str]:
        result = await agent.run("Go.")
        return [
            f"{part.content} {part.outcome}"
            for message in result.all_messages()
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]

    job_id = await t.scheduler.enqueue(answer, keep_result=KEEP)
    await t.drain()
    if not is_approval:
        with pytest.raises(ValueError, match="an Approval does not answer"):
            await resolve_event(t.scheduler, tokens[0], Approval(approved=True))
    await fail_event(t.scheduler, tokens[0], "the bank is closed")
    await t.drain()
    outcome = "denied" if is_approval else "failed"
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == [f"the bank is closed {outcome}"]


async def test_result_of_a_deferred_call_is_what_the_other_system_sends(t: TestScheduler) -> None:
    model = Model(ModelResponse([call("transfer", "c1")]), says("Done."))
    agent = model.agent()

    @agent.tool_plain
    async def transfer() -> str:
        raise CallDeferred

    async def answer() -> list[Any]:
        result = await agent.run("Go.")
        return [
            part.content
            for message in result.all_messages()
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]

    job_id = await t.scheduler.enqueue(answer, keep_result=KEEP)
    await t.drain()
    await t.scheduler.signal(job_id, "support 1: result c1", {"paid": True})
    await t.drain()
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == [{"paid": True}]


# -- errors of models ----------------------------------------------------------------------------------


class Providers:
    """Two models, of which the first one is down until the test starts it."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.requests: list[str] = []
        self.first = FunctionModel(self._first, model_name="first")
        self.second = FunctionModel(self._second, model_name="second")

    def _first(self, messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        self.requests.append("first")
        if self.error is not None:
            raise self.error
        return self._respond(messages, "first")

    def _second(self, messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        self.requests.append("second")
        return self._respond(messages, "second")

    def _respond(self, messages: list[ModelMessage], name: str) -> ModelResponse:
        return ModelResponse([call("pay", f"of {name}")]) if len(messages) == 1 else says(name)


RETRY: StepOptions = {"retry": RetryPolicy(base=timedelta(milliseconds=1)), "max_retries": 1}


def unavailable() -> ModelHTTPError:
    return ModelHTTPError.for_category(ModelUnavailableError, status_code=503, model_name="first")


@pytest.mark.parametrize("fails_in", ["output validator", "job"])
@pytest.mark.parametrize("fallback", ["capability", "capability with retries", "model"])
async def test_fallback_takes_the_same_way_in_another_attempt(
    t: TestScheduler, fallback: str, fails_in: str
) -> None:
    """The first model works again when the job is retried. It must not call the tool once more."""
    providers = Providers(unavailable())
    model: AnyModel = providers.first
    durability: PgSchedulerDurability[None] = PgSchedulerDurability(models={"second": providers.second})
    capabilities: list[Any] = [durability, ModelFallback(providers.second)]
    if fallback == "capability with retries":
        capabilities[0] = PgSchedulerDurability(models={"second": providers.second}, model_options=RETRY)
    if fallback == "model":
        model, capabilities = FallbackModel(model, providers.second), [PgSchedulerDurability()]
    agent = Agent(model, name="support", capabilities=capabilities)
    payments: list[str] = []
    failures = [True]

    def fail(place: str) -> None:
        if failures and fails_in == place:
            failures.clear()
            providers.error = None
            raise ConnectionError(f"in the {place}")

    @agent.output_validator
    async def validate(output: str) -> str:
        fail("output validator")
        return output

    @agent.tool
    async def pay(ctx: RunContext[None]) -> str:
        payments.append(ctx.tool_call_id or "")
        return "paid"

    async def answer() -> str:
        result = await agent.run("Go.")
        fail("job")
        return result.output

    job_id = await t.scheduler.enqueue(answer, max_retries=1, keep_result=KEEP)
    await t.run_until(timedelta(hours=1))
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == "second"
    assert payments == ["of second"]


@pytest.mark.parametrize("options", [{}, RETRY], ids=["without retries", "with retries"])
async def test_all_models_are_requested_again_in_another_attempt_when_all_have_failed(
    t: TestScheduler, options: StepOptions
) -> None:
    providers = Providers(unavailable())
    third = FunctionModel(providers._first, model_name="third")
    agent = Agent(
        providers.first,
        name="support",
        capabilities=[
            PgSchedulerDurability(models={"third": third}, model_options=options),
            ModelFallback(third),
        ],
    )

    @agent.tool_plain
    async def pay() -> str:
        return "paid"

    async def answer() -> str:
        try:
            result = await agent.run("Go.")
        finally:
            providers.error = None
        return result.output

    job_id = await t.scheduler.enqueue(answer, max_retries=1, keep_result=KEEP)
    await t.run_until(timedelta(hours=1))
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == "first"


async def test_job_fails_with_the_remedy_when_an_agent_continues_after_an_error_that_cannot_be_stored(
    t: TestScheduler,
) -> None:
    class ProviderError(Exception):
        """An error of a library of the application."""

    providers = Providers(ProviderError("down"))
    capabilities: list[Any] = [
        PgSchedulerDurability(models={"second": providers.second}),
        ModelFallback(providers.second, fallback_on=(ProviderError,)),
    ]
    agent = Agent(providers.first, name="support", capabilities=capabilities)
    payments: list[bool] = []

    @agent.tool_plain
    async def pay() -> str:
        payments.append(True)
        return "paid"

    async def answer() -> None:
        await agent.run("Go.")

    job_id = await t.scheduler.enqueue(answer, max_retries=3)
    await t.run_until(timedelta(hours=1))
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    assert (job.status, job.attempt, payments) == (JobStatus.FAILED, 1, [])
    assert "FallbackModel" in (job.error_message or "")


async def test_used_up_retries_raise_the_error_of_the_model_in_each_attempt(t: TestScheduler) -> None:
    providers = Providers(unavailable())
    agent = Agent(providers.first, name="support", capabilities=[PgSchedulerDurability(model_options=RETRY)])
    errors: list[tuple[type[Exception], int]] = []

    async def answer() -> None:
        try:
            await agent.run("Go.")
        except ModelHTTPError as error:
            errors.append((type(error), error.status_code))
        await current_job().steps.sleep("night", timedelta(days=1))

    await t.scheduler.enqueue(answer)
    await t.run_until(timedelta(days=2))
    assert len(errors) == 2
    assert len(set(errors)) == 1
    assert isinstance(unavailable(), errors[0][0])
    assert providers.requests == ["first", "first"]


ERRORS: tuple[Exception, ...] = (
    unavailable(),
    ModelHTTPError(418, "m", {"error": "teapot"}, headers={"Retry-After": "3"}, hint="drink coffee"),
    ModelAPIError("m", "no answer"),
    ModelConnectionError("m", "no answer", phase="read"),
    ModelRequestTimeout("m", 3.0),
    UnexpectedModelBehavior("odd", "body"),
    ConnectionError("reset"),
    FileNotFoundError(2, "no file"),
    TimeoutError(),
    StepFailedError("a", "ValueError: b", 3),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_stored_error_is_the_same_one_again(error: Exception) -> None:
    stored = stored_error(error)
    assert stored is not None
    rebuilt = error_from(json.loads(json.dumps(stored)))
    assert type(rebuilt) is type(error)
    assert str(rebuilt) == str(error)


# -- runs and their steps ------------------------------------------------------------------------------


def agent_that_echoes(name: str = "echo") -> Agent[None, Any]:
    def respond(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        return says(f"answer to {messages[0].parts[-1].content}")  # type: ignore[union-attr]

    return Agent(FunctionModel(respond), name=name, capabilities=[PgSchedulerDurability()])


@pytest.mark.parametrize("has_ids", [False, True])
async def test_runs_at_once_never_get_the_responses_of_one_another(
    pool: asyncpg.Pool, t: TestScheduler, has_ids: bool
) -> None:
    """Bob's run begins first in the first attempt, and Ann's in the second one, where all is stored."""
    agent = agent_that_echoes()
    failures = [True]
    answers: list[str] = []

    async def fetch(customer: str) -> str:
        if customer == "Ann":
            await until_there_is(
                pool, "SELECT count(*) FROM scheduler_steps WHERE name LIKE '%model request'"
            )
        return customer

    async def answer_customer(customer: str) -> None:
        question = await current_job().steps.run(f"fetch {customer}", fetch, customer)
        result = await agent.run(question, run_id=customer if has_ids else None)
        answers.append(f"{customer}: {result.output}")

    async def answer() -> None:
        answers.clear()
        await asyncio.gather(answer_customer("Ann"), answer_customer("Bob"))
        if failures:
            failures.clear()
            raise ConnectionError("after the runs")

    job_id = await t.scheduler.enqueue(answer, max_retries=3)
    await t.run_until(timedelta(hours=1))
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    if has_ids:
        assert job.status is JobStatus.COMPLETED
        assert sorted(answers) == ["Ann: answer to Ann", "Bob: answer to Bob"]
    else:
        assert (job.status, job.attempt) == (JobStatus.FAILED, 2)
        assert "pass run_id= to each" in (job.error_message or "")
        assert answers == []


async def test_runs_in_another_order_never_get_the_responses_of_one_another(t: TestScheduler) -> None:
    """The runs do not overlap, as behind a semaphore."""
    agent = agent_that_echoes()
    orders = [("Ann", "Bob"), ("Bob", "Ann")]
    answers: list[str] = []

    async def answer() -> None:
        customers = orders.pop(0)
        answers.clear()
        answers.extend([(await agent.run(customer)).output for customer in customers])
        if orders:
            raise ConnectionError("after the runs")

    job_id = await t.scheduler.enqueue(answer, max_retries=1)
    await t.run_until(timedelta(hours=1))
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    assert job.status is JobStatus.FAILED
    assert "pass run_id= to each" in (job.error_message or "")
    assert answers == []


async def test_question_with_the_time_gets_its_stored_response(t: TestScheduler) -> None:
    """Runs one after the other have the same numbers in each attempt, so their questions may differ."""
    agent = agent_that_echoes()
    attempts: list[list[str]] = []

    async def answer() -> None:
        number = len(attempts)
        runs = [await agent.run(f"question {index} of attempt {number}") for index in range(2)]
        attempts.append([run.output for run in runs])
        if number == 0:
            raise ConnectionError("after the runs")

    await t.scheduler.enqueue(answer, max_retries=1)
    await t.run_until(timedelta(hours=1))
    assert attempts[0] == attempts[1]


async def test_agents_that_tools_run_at_once_have_the_calls_in_the_names_of_their_steps(
    pool: asyncpg.Pool, t: TestScheduler
) -> None:
    inner = agent_that_echoes("inner")
    model = Model(
        ModelResponse([call("research", "c1", name="Ann"), call("research", "c2", name="Bob")]), says("done")
    )
    agent = model.agent()
    failures = [True]
    reports: list[list[Any]] = []

    @agent.tool_plain(metadata={"pg_scheduler": False})
    async def research(name: str) -> str:
        if name == "Ann" and failures:
            await until_there_is(pool, "SELECT count(*) FROM scheduler_steps WHERE name LIKE '%c2/inner%'")
        result = await inner.run(name)
        return f"{name}: {result.output}"

    async def answer() -> None:
        result = await agent.run("Go.")
        reports.append(
            [
                part.content
                for message in result.all_messages()
                for part in message.parts
                if isinstance(part, ToolReturnPart)
            ]
        )
        if failures:
            failures.clear()
            raise ConnectionError("after the run")

    job_id = await t.scheduler.enqueue(answer, max_retries=1)
    await t.run_until(timedelta(hours=1))
    assert reports == [["Ann: answer to Ann", "Bob: answer to Bob"]] * 2
    assert set(await steps_of(t, job_id)) == {
        "support 1: model request",
        "support 1/c1/inner 1: model request",
        "support 1/c2/inner 1: model request",
        "support 1: model request #2",
    }


async def test_tools_at_once_get_the_events_of_their_own_calls(t: TestScheduler) -> None:
    model = Model(ModelResponse([call("review", f"c{number}") for number in range(2)]), says("done"))
    agent = model.agent()

    @agent.tool_plain(metadata={"pg_scheduler": False})
    async def review() -> str:
        return str(await wait_for_external_event("review", ask=lambda _token: None))

    async def answer() -> None:
        await agent.run("Go.")

    job_id = await t.scheduler.enqueue(answer)
    await t.drain()
    waits = await t.pool.fetch(
        "SELECT name FROM scheduler_steps WHERE job_id = $1 AND kind = 'signal' ORDER BY name", job_id
    )
    assert [wait["name"] for wait in waits] == ["support 1: event review c0", "support 1: event review c1"]


async def test_long_id_of_a_run_gives_its_steps_short_names(t: TestScheduler) -> None:
    agent = agent_that_echoes()

    async def answer() -> str:
        result = await agent.run("one", run_id="ü" * 200, timeout=3600)
        output: str = result.output
        return output

    job_id = await t.scheduler.enqueue(answer, keep_result=KEEP)
    await t.drain()
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == "answer to one"
    assert len(await steps_of(t, job_id)) == 2


async def test_id_of_a_run_is_refused_when_it_is_used_twice(t: TestScheduler) -> None:
    agent = agent_that_echoes()

    async def answer() -> None:
        await agent.run("one", run_id="mine")
        await agent.run("two", run_id="mine")

    job_id = await t.scheduler.enqueue(answer, max_retries=3)
    await t.drain()
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert "give each run an id of its own" in (job.error_message or "")


@pytest.mark.parametrize("value", ["a\0b", "a\ud800b", float("nan"), [{"a": float("inf")}]], ids=ascii)
async def test_value_that_cannot_be_stored_ends_the_job_at_once(t: TestScheduler, value: Any) -> None:
    model = Model(ModelResponse([call("look", "c1")]), says("done"))
    agent = model.agent()
    calls: list[bool] = []

    @agent.tool_plain
    async def look() -> Any:
        calls.append(True)
        return value

    async def answer() -> None:
        await agent.run("Go.")

    job_id = await t.scheduler.enqueue(answer, max_retries=3)
    await t.run_until(timedelta(hours=1))
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    assert (job.status, job.attempt, len(calls), model.requests) == (JobStatus.FAILED, 1, 1, 1)
    assert "Abort" in (job.error_message or "")


WRONG_OPTIONS: tuple[Any, ...] = (
    {"retries": 3},
    {"max_retries": 3},
    {"timeout": "5 s"},
    {"timeout": -1},
    {"retry": 3},
)


@pytest.mark.parametrize("options", WRONG_OPTIONS, ids=str)
@pytest.mark.parametrize("role", ["model_options", "tool_options", "mcp_options"])
def test_wrong_options_are_refused_when_the_agent_is_built(role: str, options: Any) -> None:
    arguments: Any = {role: options}
    with pytest.raises((TypeError, ValueError)):
        PgSchedulerDurability(**arguments)


# -- when the job leaves its slot ----------------------------------------------------------------------


def agent_that_asks(name: str = "support") -> Agent[None, Any]:
    """An agent that waits for an approval."""
    model = Model(ModelResponse([call("refund", "c1", amount=90)]), says("Refunded."))
    agent = Agent(FunctionModel(model.respond), name=name, capabilities=[PgSchedulerDurability()])

    @agent.tool_plain(requires_approval=True)
    async def refund(amount: int) -> str:
        return f"refunded {amount}"

    return agent


async def run_alone(agent: Agent[None, Any]) -> None:
    await agent.run("Go.")


async def run_in_task(agent: Agent[None, Any]) -> None:
    await asyncio.create_task(agent.run("Go."))


async def run_in_gather(agent: Agent[None, Any]) -> None:
    await asyncio.gather(agent.run("Go."), agent.run("Go.", run_id="second"))


async def run_in_group(agent: Agent[None, Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.run("Go."))
        group.create_task(agent.run("Go.", run_id="second"))


async def run_by_nodes(agent: Agent[None, Any]) -> None:
    async with agent.iter("Go.") as run:
        async for _node in run:
            pass


async def run_in_conversation(agent: Agent[None, Any]) -> None:
    await agent.run("Go.", conversation_id="customer 7", run_id="mine")


async def run_with_timeout(agent: Agent[None, Any]) -> None:
    await agent.run("Go.", timeout=3600)


WAYS_TO_RUN = (
    run_alone,
    run_in_task,
    run_in_gather,
    run_in_group,
    run_by_nodes,
    run_in_conversation,
    run_with_timeout,
)


async def is_suspended(t: TestScheduler, job_id: str) -> bool:
    job = await t.scheduler.get_job(job_id)
    return job is not None and job.status is JobStatus.PENDING


@pytest.mark.parametrize("run", WAYS_TO_RUN, ids=lambda run: run.__name__)
async def test_approval_suspends_the_job_however_it_awaits_the_run(
    t: TestScheduler, run: Callable[[Agent[None, Any]], Awaitable[None]]
) -> None:
    agent = agent_that_asks()

    async def answer() -> None:
        await run(agent)

    job_id = await t.scheduler.enqueue(answer)
    await t.drain()
    assert await is_suspended(t, job_id)
    waits = await t.pool.fetch(
        "SELECT name FROM scheduler_steps WHERE job_id = $1 AND kind = 'signal'", job_id
    )
    for wait in waits:
        await t.scheduler.signal(job_id, wait["name"], True)
    await t.drain()
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    assert job.status is JobStatus.COMPLETED


async def wait_for_signal() -> None:
    await current_job().steps.wait("delivery")


async def sleep_a_day() -> None:
    await current_job().steps.sleep("night", timedelta(days=1))


async def await_child() -> None:
    await current_job().steps.child("warehouse", call_of(waiting_child))


async def run_agent_that_asks() -> None:
    await agent_that_asks("inner").run("Go.")


async def await_external_event() -> None:
    await wait_for_external_event("review", ask=lambda _token: None)


@job(name="warehouse")
async def waiting_child() -> None:
    await current_job().steps.wait("never")


WAITS = (wait_for_signal, sleep_a_day, await_child, run_agent_that_asks, await_external_event)
PLACES = ("tool", "output function", "output validator")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
async def test_any_wait_of_code_that_an_agent_calls_suspends_the_job(
    t: TestScheduler, wait: Callable[[], Awaitable[None]], place: str
) -> None:
    """Another tool has a step of its own meanwhile, and ends."""

    async def publish(text: str) -> str:
        await wait()
        return text

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([call("pause", "c1"), call("look", "c2")])
        if place == "output function":
            return ModelResponse([call(info.output_tools[0].name, "o1", text="done")])
        return says("done")

    agent = Agent(
        FunctionModel(respond),
        name="support",
        output_type=publish if place == "output function" else str,
        capabilities=[PgSchedulerDurability()],
    )

    @agent.tool_plain(metadata={"pg_scheduler": False})
    async def pause() -> str:
        if place == "tool":
            await wait()
        return "paused"

    @agent.tool_plain
    async def look() -> str:
        return "seen"

    @agent.output_validator
    async def validate(output: str) -> str:
        if place == "output validator":
            await wait()
        return output

    async def answer() -> None:
        await agent.run("Go.")

    job_id = await t.scheduler.enqueue(answer)
    await t.drain()
    assert await is_suspended(t, job_id)
    assert "support 1: tool look c2" in await steps_of(t, job_id)


async def test_connection_that_a_request_has_opened_does_not_keep_the_job_in_memory(t: TestScheduler) -> None:
    """The client of an MCP server has a task that reads what the server sends. The test model has one too."""
    readers: list[asyncio.Task[Any]] = []

    async def read() -> None:
        await asyncio.get_running_loop().create_future()

    async def respond(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        readers.append(asyncio.create_task(read()))
        return ModelResponse([call("refund", "c1")])

    agent = Agent(FunctionModel(respond), name="support", capabilities=[PgSchedulerDurability()])

    @agent.tool_plain(requires_approval=True)
    async def refund() -> str:
        return "refunded"

    async def answer() -> None:
        await agent.run("Go.")

    job_id = await t.scheduler.enqueue(answer)
    await t.drain()
    assert await is_suspended(t, job_id)
    for reader in readers:
        reader.cancel()


async def work_in_a_thread(pool: asyncpg.Pool) -> None:
    """Work for a while as a library may: a thread sets an event at its end, and no task works meanwhile."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()

    def work() -> None:
        # The worker looks several times meanwhile whether the attempt only waits.
        for _ in range(50):
            asyncio.run_coroutine_threadsafe(pool.fetchval("SELECT 1"), loop).result(PATIENCE)
        loop.call_soon_threadsafe(ready.set)

    await until_there_is(pool, "SELECT count(*) FROM scheduler_steps WHERE kind = 'signal'")
    thread = threading.Thread(target=work)
    thread.start()
    await ready.wait()
    thread.join()


class Guard(AbstractCapability[None]):
    """Does something around each call of the tool ``charge``."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        if call.tool_name == "charge":
            await self._work()
        return await handler(args)


@pytest.mark.parametrize("works_in", ["tool", "task of a tool", "capability"])
@pytest.mark.parametrize("waits_in", ["tool", "nested agent"])
async def test_code_that_works_is_not_cancelled_because_a_tool_waits(
    pool: asyncpg.Pool, t: TestScheduler, waits_in: str, works_in: str
) -> None:
    model = Model(ModelResponse([call("pause", "c1"), call("charge", "c2")]), says("done"))
    wait = wait_for_signal if waits_in == "tool" else run_agent_that_asks
    endings: list[str] = []

    async def work() -> None:
        try:
            await work_in_a_thread(pool)
        except BaseException as error:
            endings.append(type(error).__name__)
            raise
        endings.append("charged")

    capabilities: list[Any] = [PgSchedulerDurability()]
    if works_in == "capability":
        capabilities.append(Guard(work))
    agent = Agent(FunctionModel(model.respond), name="support", capabilities=capabilities)

    @agent.tool_plain(metadata={"pg_scheduler": False})
    async def pause() -> str:
        await wait()
        return "paused"

    @agent.tool_plain(metadata={"pg_scheduler": False})
    async def charge() -> str:
        if works_in == "tool":
            await work()
        if works_in == "task of a tool":
            ended = asyncio.Event()
            task = asyncio.create_task(ended.wait())
            asyncio.get_running_loop().call_soon(lambda: Context().run(start_elsewhere, ended))
            await task
        return "charged"

    elsewhere: list[asyncio.Task[None]] = []

    def start_elsewhere(ended: asyncio.Event) -> None:
        async def work_and_end() -> None:
            await work()
            ended.set()

        elsewhere.append(asyncio.get_running_loop().create_task(work_and_end()))

    async def answer() -> None:
        await agent.run("Go.")

    job_id = await t.scheduler.enqueue(answer)
    await t.drain()
    assert endings == ["charged"]
    assert await is_suspended(t, job_id)


def encoded(target: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(target).encode()).decode()


WRONG_TOKENS: tuple[Any, ...] = (
    *("", "?", "ä", "bm8gSlNPTg==", None),
    *map(
        encoded,
        (
            [1],
            "ab",
            {"a": 1, "b": 2, "c": 3},
            ["a", "b"],
            [1, "b", "event"],
            [None, "b", "event"],
            ["", "b", "event"],
            ["a", "b\0", "event"],
            ["a", "b", "party"],
        ),
    ),
)


@pytest.mark.parametrize("token", WRONG_TOKENS, ids=ascii)
async def test_text_that_is_no_token_is_refused(t: TestScheduler, token: Any) -> None:
    with pytest.raises(ValueError, match="is no token"):
        await resolve_event(t.scheduler, token)
    with pytest.raises(ValueError, match="is no token"):
        await fail_event(t.scheduler, token, "nobody is there")


async def test_agents_and_runs_of_one_job_have_steps_of_their_own(t: TestScheduler) -> None:
    first = Model(says("one"), says("two"))
    second = Model(says("three"))
    writer, critic = (
        first.agent(),
        Agent(FunctionModel(second.respond), name="critic", capabilities=[PgSchedulerDurability()]),
    )

    async def answer() -> list[str]:
        draft = await writer.run("Write.")
        review = await critic.run("Review.")
        final = await writer.run("Write again.", message_history=draft.all_messages())
        return [draft.output, review.output, final.output]

    job_id = await t.scheduler.enqueue(answer, keep_result=KEEP)
    await t.drain()
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == ["one", "three", "two"]
    assert await steps_of(t, job_id) == [
        "support 1: model request",
        "critic 1: model request",
        "support 2: model request",
    ]


async def test_agent_that_a_tool_runs_belongs_to_the_step_of_the_tool(t: TestScheduler) -> None:
    inner_model = Model(says("42"))
    inner = Agent(FunctionModel(inner_model.respond), name="inner", capabilities=[PgSchedulerDurability()])
    model = Model(ModelResponse([call("delegate", "c1")]), says("The answer is 42."))
    agent = model.agent()

    @agent.tool_plain
    async def delegate() -> str:
        result = await inner.run("Compute.")
        return result.output

    async def answer() -> str:
        result = await agent.run("What is the answer?")
        output: str = result.output
        return output

    job_id = await t.scheduler.enqueue(answer)
    await t.drain()
    assert await steps_of(t, job_id) == [
        "support 1: model request",
        "support 1: tool delegate c1",
        "support 1: model request #2",
    ]
    assert inner_model.requests == 1


async def test_model_is_told_to_correct_a_call_and_both_calls_are_stored(t: TestScheduler) -> None:
    model = Model(
        ModelResponse([call("weather", "c1", city="?")]),
        ModelResponse([call("weather", "c2", city="Ulm")]),
        says("Rain."),
    )
    agent = model.agent()

    @agent.tool_plain(retries=2)
    async def weather(city: str) -> str:
        if city == "?":
            raise ModelRetry("name a city")
        return f"rain in {city}"

    async def answer() -> str:
        result = await agent.run("Rain?")
        output: str = result.output
        return output

    job_id = await t.scheduler.enqueue(answer, keep_result=KEEP)
    await t.drain()
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == "Rain."
    assert len(await steps_of(t, job_id)) == 5


async def test_long_names_of_steps_are_shortened_and_stay_distinct(t: TestScheduler) -> None:
    model = Model(
        ModelResponse([call("weather", f"{'ü' * 120}-{number}", city="Ulm") for number in range(2)]),
        says("Rain."),
    )
    agent = model.agent()

    @agent.tool_plain
    async def weather(city: str) -> str:
        return city

    async def answer() -> None:
        await agent.run("Rain?")

    job_id = await t.scheduler.enqueue(answer)
    await t.drain()
    names = await steps_of(t, job_id)
    assert len(set(names)) == 4
    assert max(len(name.encode()) for name in names) <= 200


class Verdict(BaseModel):
    guilty: bool


async def test_output_of_a_type_and_a_toolset_work_as_steps(t: TestScheduler) -> None:
    toolset: FunctionToolset[None] = FunctionToolset(id="law")

    @toolset.tool_plain
    async def paragraph(number: int) -> str:
        return f"§ {number}"

    agent = Agent(
        TestModel(custom_output_args={"guilty": True}),
        name="judge",
        output_type=Verdict,
        toolsets=[toolset],
        capabilities=[PgSchedulerDurability()],
    )

    async def judge() -> bool:
        result = await agent.run("Judge.")
        return result.output.guilty

    job_id = await t.scheduler.enqueue(judge, keep_result=KEEP)
    await t.drain()
    assert (await t.scheduler.get_job_result(job_id)).unwrap() is True


async def test_run_id_and_start_of_the_timeout_are_the_same_in_each_attempt(t: TestScheduler) -> None:
    model = Model(says("done"))
    agent = model.agent()
    runs: list[tuple[str, str]] = []

    async def answer() -> None:
        result = await agent.run("Go.", timeout=3600)
        runs.append((result.run_id, result.conversation_id))
        if len(runs) == 1:
            raise ConnectionError
        assert result.run_id == f"{current_job().job_id}:support 1"

    job_id = await t.scheduler.enqueue(answer, max_retries=1)
    await t.run_until(timedelta(hours=1))
    assert runs[0] == runs[1]
    assert (await steps_of(t, job_id))[0] == "support 1: start"
    assert model.requests == 1


async def test_text_is_streamed_with_the_attempt_that_received_it(t: TestScheduler) -> None:
    """The first attempt loses its connection to the model in the middle of the second request."""
    failures = ["in the middle of an answer"]

    async def stream_response(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
        if len(messages) == 1:
            yield {0: DeltaToolCall("look", "{}", tool_call_id="c1")}
            return
        yield "Take "
        if failures:
            raise ConnectionError(failures.pop())
        yield "an umbrella."

    durability: PgSchedulerDurability[None] = PgSchedulerDurability(event_stream_handler=stream_text("words"))
    agent = Agent(FunctionModel(stream_function=stream_response), name="support", capabilities=[durability])

    @agent.tool_plain
    async def look() -> str:
        return "rain"

    async def answer() -> str:
        result = await agent.run("Rain?")
        return result.output

    job_id = await t.scheduler.enqueue(answer, max_retries=1, keep_result=KEEP)
    await t.run_until(timedelta(hours=1))
    assert (await t.scheduler.get_job_result(job_id)).unwrap() == "Take an umbrella."
    items = [item.value async for item in t.scheduler.stream(job_id, "words")]
    assert {item["step"] for item in items} == {"support 1: model request #2"}
    texts = {
        attempt: "".join(item["text"] for item in items if item["attempt"] == attempt) for attempt in (1, 2)
    }
    assert texts == {1: "Take ", 2: "Take an umbrella."}
    outside = await agent.run("Rain?")
    assert outside.output == "Take an umbrella."


async def test_items_of_a_repeated_request_have_the_number_of_its_call(pool: asyncpg.Pool) -> None:
    """The first call fails in the middle of its text. The step repeats it in the same attempt of the job."""
    failures = [True]

    async def stream_response(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
        yield "Take "
        if failures:
            failures.clear()
            raise ConnectionError("in the middle of an answer")
        yield "an umbrella."

    durability: PgSchedulerDurability[None] = PgSchedulerDurability(
        event_stream_handler=stream_text("words"), model_options=RETRY
    )
    agent = Agent(FunctionModel(stream_function=stream_response), name="support", capabilities=[durability])

    @job(name="support.repeat")
    async def answer() -> None:
        await agent.run("Rain?")

    async with Scheduler(pool) as scheduler:
        job_id = await scheduler.enqueue(answer)
        async with asyncio.timeout(PATIENCE):
            items = [item.value async for item in scheduler.stream(job_id, "words")]
    texts = [(item["attempt"], item["call"], item["text"]) for item in items]
    assert texts == [(1, 1, "Take "), (1, 2, "Take "), (1, 2, "an umbrella.")]


async def test_handler_of_a_run_is_refused_since_its_stream_would_stay_empty(t: TestScheduler) -> None:
    async def stream_response(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
        yield "done"

    agent = Agent(
        FunctionModel(stream_function=stream_response), name="support", capabilities=[PgSchedulerDurability()]
    )

    async def answer() -> None:
        await agent.run("Go.", event_stream_handler=stream_text("words"))

    job_id = await t.scheduler.enqueue(answer, max_retries=3)
    await t.drain()
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert "pass it to PgSchedulerDurability(event_stream_handler=...)" in (job.error_message or "")
    outside = await agent.run("Go.", event_stream_handler=stream_text("words"))
    assert outside.output == "done"


@pytest.mark.parametrize("has_handler", [False, True])
async def test_events_of_tools_are_steps_only_for_a_handler_that_reads_them(
    t: TestScheduler, has_handler: bool
) -> None:
    async def stream_response(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
        if len(messages) == 1:
            yield {0: DeltaToolCall("look", "{}", tool_call_id="c1")}
        else:
            yield "done"

    async def read_all(_ctx: RunContext[None], events: AsyncIterable[Any]) -> None:
        async for _event in events:
            pass

    handler = read_all if has_handler else stream_text("words")
    durability: PgSchedulerDurability[None] = PgSchedulerDurability(event_stream_handler=handler)
    agent = Agent(FunctionModel(stream_function=stream_response), name="support", capabilities=[durability])

    @agent.tool_plain
    async def look() -> str:
        return "rain"

    async def answer() -> None:
        await agent.run("Rain?")

    job_id = await t.scheduler.enqueue(answer)
    await t.drain()
    names = await steps_of(t, job_id)
    assert any("event" in name for name in names) is has_handler


# -- the example ---------------------------------------------------------------------------------------

EXAMPLE = "examples.support_agent.agent"

BLOCKED = """
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO tool_call%'
"""


@asynccontextmanager
async def worker_of_the_example(dsn: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pg_scheduler", "worker", EXAMPLE, "--dsn", dsn), cwd=ROOT
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def until_there_is(pool: asyncpg.Pool, statement: str) -> Any:
    """Execute a statement until its first value is true; return it."""
    async with asyncio.timeout(PATIENCE):
        while not (value := await pool.fetchval(statement)):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
    return value


@pytest.mark.slow
async def test_agent_survives_a_kill_in_the_middle_of_a_tool(dsn: str, pool: asyncpg.Pool) -> None:
    await pool.execute((ROOT / "examples/support_agent/schema.sql").read_text(encoding="utf-8"))
    scheduler = Scheduler(pool)
    # The first tool cannot end while this transaction has the lock.
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("LOCK TABLE tool_call IN ACCESS EXCLUSIVE MODE")
        async with worker_of_the_example(dsn) as worker:
            job_id = await scheduler.enqueue("support.answer", args=("I want my money back.",))
            await until_there_is(pool, BLOCKED)
            worker.kill()
            await worker.wait()
    async with worker_of_the_example(dsn):
        token = await until_there_is(pool, "SELECT token FROM question")
        assert await resolve_event(scheduler, token, True)
        await until_there_is(pool, "SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'")
    rows = await pool.fetch("SELECT name, attempt FROM scheduler_steps WHERE job_id = $1", job_id)
    attempts = {row["name"]: row["attempt"] for row in rows}
    assert attempts.get("support 1: model request") == 1, (
        f"the request before the kill is repeated: {attempts}"
    )
    (tool_attempt,) = (attempt for name, attempt in attempts.items() if "tool find_order" in name)
    assert tool_attempt == 2
    assert await pool.fetchval("SELECT count(*) FROM refund") == 1
    await scheduler.shutdown()
