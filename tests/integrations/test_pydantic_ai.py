"""Durable agents of Pydantic AI, with the test models of that library."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

pytest.importorskip("pydantic_ai", exc_type=ImportError, reason="dev.py has not updated this environment")

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.external_events import ExternalEventError, wait_for_external_event
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.toolsets import FunctionToolset

from pg_scheduler import JobStatus, Scheduler, current_job
from pg_scheduler.integrations.pydantic_ai import (
    Approval,
    PgSchedulerDurability,
    fail_event,
    resolve_event,
    stream_text,
)
from pg_scheduler.testing import TestScheduler
from tests.docs.snippets import ROOT
from tests.support.worker import PATIENCE

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
        (Approval(override_args={"amount": 10}), [10], "refunded"),
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


@pytest.mark.parametrize("token", ["", "?", "bm8gSlNPTg==", "WzFd"])
async def test_text_that_is_no_token_is_refused(t: TestScheduler, token: str) -> None:
    with pytest.raises(ValueError, match="is no token"):
        await resolve_event(t.scheduler, token)


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
