"""The steps of a job as people see them, and why a job waits that uses some."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    Child,
    JobFunction,
    JobNotFoundError,
    RetryPolicy,
    Scheduler,
    Sleep,
    Wait,
    call,
    current_job,
)
from pg_scheduler.facts.job_state import state_of
from pg_scheduler.inspect import Inspector, ReasonCode, StepState, Verdict
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.timeline import timeline_of
from pg_scheduler.testing import TestScheduler
from tests.support.codecs import KeyedCodec
from tests.support.world import DAY, SECOND, World

START = datetime(2030, 1, 1, tzinfo=UTC)


async def quote(order: int) -> dict[str, Any]:
    return {"order": order, "price": 9.5}


async def place_order(order: int) -> None:
    steps = current_job().steps
    await steps.run("quote", quote, order)
    async with steps.cursor("lines", start=0) as cursor:
        await cursor.set(3)
    await steps.sleep("cool-off", DAY)
    await steps.wait("approval", timeout=7 * DAY)


async def wait_for_ever() -> None:
    await current_job().steps.wait("approval")


async def receive_orders() -> None:
    while True:
        await current_job().steps.receive("orders")


async def wait_for_a_child() -> None:
    await current_job().steps.child("label", call(quote, 7), delay=DAY)


async def fail_while_asleep() -> None:
    await current_job().steps.sleep("first", DAY)
    raise ValueError("no")


async def deliver_when_approved() -> None:
    steps = current_job().steps
    check = Child("check", call(wait_for_ever))
    await steps.first("decision", Wait("approved"), Wait("withdrawn"), Sleep("limit", DAY), check)
    await steps.sleep("delivery", 2 * DAY)


class BankError(Exception):
    """What `charge()` raises until the bank is open."""


async def charge(order: int) -> str:
    if (await current_job().pool.fetchval("SELECT count(*) FROM scheduler_steps")) < 2:
        raise BankError("closed\ntoday")
    return f"payment-{order}"


async def pay(order: int) -> None:
    steps = current_job().steps
    policy = RetryPolicy(base=timedelta(minutes=1), maximum=DAY, jitter=0)
    await steps.run("charge", charge, order, retry=policy, max_retries=2)
    await steps.sleep("rest", DAY)


async def sleep_after_a_failure() -> None:
    if current_job().attempt == 1:
        raise ValueError("no")
    await current_job().steps.sleep("nap", DAY)


@pytest.fixture
async def kit(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as kit:
        used: list[JobFunction] = [place_order, wait_for_ever, wait_for_a_child, fail_while_asleep]
        used.append(receive_orders)
        used += [sleep_after_a_failure, deliver_when_approved, pay]
        for function in used:
            kit.scheduler.register(function, name=f"steps.{function.__name__}")
        yield kit


async def enqueue(kit: TestScheduler, function: str = "place_order", *args: object, **options: Any) -> None:
    await kit.scheduler.enqueue(f"steps.{function}", args=args, job_id="order", **options)
    await kit.run_until(timedelta(seconds=1))


async def states(inspector: Inspector) -> dict[str, tuple[str, str, Any]]:
    found = await inspector.steps("order")
    assert not found.is_capped
    return {each.name: (each.kind, each.state, each.value) for each in found.items}


async def test_alternatives_that_have_lost_are_no_waits(kit: TestScheduler) -> None:
    inspector = Inspector(kit.scheduler)
    searches = {"signal:withdrawn", "step:limit", "step:delivery", "child:*"}

    async def matching() -> set[str]:
        return {where for where in searches if (await inspector.search_jobs(f"id:order {where}")).items}

    async def state_by_name() -> dict[str, str]:
        return {name: state for name, (_, state, _) in (await states(inspector)).items()}

    await enqueue(kit, "deliver_when_approved")
    assert await matching() == searches - {"step:delivery"}
    waits = {"approved": "waiting", "withdrawn": "waiting", "limit": "sleeping", "check": "waiting"}
    assert await state_by_name() == waits
    await kit.scheduler.signal("order", "approved")
    await kit.run_until(timedelta(seconds=2))
    assert await matching() == {"step:delivery"}
    explanation = await inspector.explain_job("order")
    assert [reason.code for reason in explanation.reasons] == [ReasonCode.SLEEPING]
    assert "'delivery'" in explanation.reasons[0].text
    assert "'limit'" not in explanation.reasons[0].text
    workflows = tables_of(inspector).reads.workflows
    signals = {step.name: step.is_awaited for step in await workflows.open_steps("signal", 9)}
    assert signals == {"approval": True, "withdrawn": False}, "the child waits for its approval"
    assert (await workflows.progress(["order"]))["order"].name == "delivery"
    assert {row.name for row in await workflows.count_open() if row.jobs} == {None, "delivery", "approval"}
    nothing = [step async for step in inspector.cancel_jobs(where="step:limit")]
    assert nothing[-1].done == 0
    alternatives = {"withdrawn": "given_up", "limit": "given_up", "check": "given_up"}
    assert await state_by_name() == {
        "decision": "stored", "approved": "stored", **alternatives, "delivery": "sleeping"
    }  # fmt: skip
    await kit.scheduler.cancel_job("order")
    assert (await state_by_name())["delivery"] == "given_up"


async def test_steps_have_their_kinds_states_and_values(kit: TestScheduler) -> None:
    inspector = Inspector(kit.scheduler)
    await kit.scheduler.enqueue("steps.place_order", args=(7,), job_id="order", delay=60)
    assert (await inspector.steps("order")).items == []
    await kit.run_until(timedelta(seconds=61))
    stored = {
        "quote": ("step", "stored", {"order": 7, "price": 9.5}),
        "lines": ("cursor", "stored", 3),
        "cool-off": ("sleep", "sleeping", None),
    }
    assert await states(inspector) == stored
    await kit.run_until(DAY)
    waiting = ("signal", "waiting", None)
    stored["cool-off"] = ("sleep", "over", None)
    assert await states(inspector) == stored | {"approval": waiting}
    *_, approval = (await inspector.steps("order")).items
    assert approval.until is not None
    assert (approval.until - approval.started_at, approval.ended_at) == (7 * DAY, None)
    await kit.run_until(8 * DAY)
    assert (await states(inspector))["approval"] == ("signal", "timed_out", None)
    assert (await inspector.steps("order")).summary == "4 steps"


async def test_signal_of_null_has_not_timed_out(kit: TestScheduler) -> None:
    await enqueue(kit, "wait_for_ever")
    await kit.scheduler.signal("order", "approval")
    assert await states(Inspector(kit.scheduler)) == {"approval": ("signal", "stored", None)}


async def test_step_of_any_kind_is_shown_and_passed_results_come_last(
    kit: TestScheduler, pool: asyncpg.Pool, world: World
) -> None:
    await enqueue(kit, "wait_for_ever")
    for name, kind, seconds in (("result:ab", "result", -5), ("label", "child", 5), ("later", "other", 9)):
        at = START + seconds * SECOND
        await world.step("order", name, kind, value={"a": [1]}, started=at, ended=at)
    await pool.execute("UPDATE scheduler_steps SET ended_at = NULL, value = NULL WHERE name = 'label'")
    assert list((await states(Inspector(kit.scheduler))).items()) == [
        ("approval", ("signal", "waiting", None)),
        ("label", ("child", "given_up", None)),
        ("later", ("other", "stored", {"a": [1]})),
        ("result:ab", ("result", "stored", {"a": [1]})),
    ]


async def test_large_values_are_read_by_name_only(kit: TestScheduler, world: World) -> None:
    await enqueue(kit, "wait_for_ever")
    inspector = Inspector(kit.scheduler)
    values = {"plain": "".join(map(chr, range(0x100, 0x800))), "compressed": "x" * 100_000}
    for name, value in values.items():
        await world.step("order", name, value=value)
    for name, value in values.items():
        (row,) = [each for each in (await inspector.steps("order")).items if each.name == name]
        assert row.value is None
        assert row.no_value_reason is not None
        assert row.no_value_reason.endswith(f"read it alone: pg-scheduler jobs steps order {name}")
        (row,) = (await inspector.steps("order", name=name)).items
        assert (row.value, row.no_value_reason) == (value, None)
    assert (await inspector.steps("order", name="nothing")).items == []


async def test_steps_of_a_job_that_is_not_marked_belong_to_an_earlier_one(
    kit: TestScheduler, pool: asyncpg.Pool
) -> None:
    await enqueue(kit, "wait_for_ever")
    await pool.execute("UPDATE scheduled_jobs SET options = options - 'steps'")
    assert (await Inspector(kit.scheduler).steps("order")).items == []
    with pytest.raises(JobNotFoundError):
        await Inspector(kit.scheduler).steps("nothing")
    with pytest.raises(ValueError, match="must not be empty"):
        await Inspector(kit.scheduler).steps("order", name="")


async def test_steps_beyond_the_bound_are_announced(kit: TestScheduler, world: World) -> None:
    await enqueue(kit, "wait_for_ever")
    await world.step("order", "result:{}".format, "result", count=1001, attempt=0, ended=None)
    found = await Inspector(kit.scheduler).steps("order")
    assert (found.items[0].name, len(found.items), found.summary) == ("approval", 1000, "1,000+ steps")


async def test_instants_beyond_the_calendar_of_python_are_shown_at_its_end(
    kit: TestScheduler, pool: asyncpg.Pool
) -> None:
    await enqueue(kit, "wait_for_ever")
    await pool.execute(
        "UPDATE scheduler_steps SET until = 'infinity', started_at = '-infinity', ended_at = 'infinity'"
    )
    (found,) = (await Inspector(kit.scheduler).steps("order")).items
    assert [each and each.year for each in (found.until, found.started_at, found.ended_at)] == [9999, 1, 9999]


async def test_values_of_a_codec_are_decoded_by_those_who_have_it(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool, codec=KeyedCodec("k1"))
    scheduler.register(wait_for_ever, name="steps.coded")
    await scheduler.enqueue("steps.coded", job_id="order")
    await scheduler.signal("order", "approval", "secret")
    found: list[StepState] = []
    for source in (scheduler, pool):
        found += (await Inspector(source).steps("order")).items
    decoded, encoded = found
    assert (decoded.value, decoded.no_value_reason) == ("secret", None)
    assert encoded.value is None
    assert "the stored value of step 'approval' cannot be read" in (encoded.no_value_reason or "")


# -- why it waits ------------------------------------------------------------------------------------------


async def test_sleeping_job_is_explained_with_the_end_of_its_sleep(kit: TestScheduler) -> None:
    await enqueue(kit, "place_order", 7)
    found = await Inspector(kit.scheduler).explain_job("order")
    (reason, *_) = found.reasons
    remedy = "wait, or end the sleep now: await scheduler.end_sleep('order')"
    assert (reason.code, reason.remedy) == (ReasonCode.SLEEPING, remedy)
    assert reason.text == "sleeps in the step 'cool-off' until 2030-01-02 00:00:00 UTC (in 24 h)"
    assert (found.verdict, found.eta) == (Verdict.WAITING, START + DAY)


async def test_job_that_waits_for_a_signal_is_explained_with_its_name_and_timeout(kit: TestScheduler) -> None:
    await enqueue(kit, "place_order", 7)
    await kit.run_until(DAY)
    found = await Inspector(kit.scheduler).explain_job("order")
    (reason, *_) = found.reasons
    assert (reason.code, reason.since) == (ReasonCode.SIGNAL, START + DAY)
    assert reason.text.startswith("waits for the signal 'approval' until 2030-01-09 00:00:00 UTC (in 7 d)")
    assert reason.remedy == "send the signal: pg-scheduler jobs signal order approval JSON"
    assert reason.command == "pg-scheduler jobs signal order approval JSON"
    assert (found.verdict, found.eta) == (Verdict.WAITING, None)


async def test_signals_without_a_wait_and_the_missing_timeout_are_named(kit: TestScheduler) -> None:
    await enqueue(kit, "wait_for_ever")
    await kit.scheduler.signal("order", "aproval", True)
    (reason, *_) = (await Inspector(kit.scheduler).explain_job("order")).reasons
    assert reason.text == (
        "waits for the signal 'approval' without a timeout; other signals, sent before a wait: 'aproval'"
    )
    job = await kit.scheduler.get_job("order")
    assert job is not None
    (ahead,) = [each for each in timeline_of(job, START) if each.is_ahead]
    assert (ahead.at, ahead.title) == (None, "continues with the signal that it waits for")


async def test_job_that_waits_for_a_message_is_explained_with_its_number(kit: TestScheduler) -> None:
    await enqueue(kit, "receive_orders")
    for number in range(2):
        assert await kit.scheduler.send("order", "orders", {"n": number})
    await kit.scheduler.signal("order", "orders")
    await kit.run_until(DAY)
    (reason, *_) = (await Inspector(kit.scheduler).explain_job("order")).reasons
    assert reason.code == ReasonCode.SIGNAL
    assert reason.text == (
        "waits for the message 'orders#3' without a timeout; other signals, sent before a wait: 'orders'"
    )
    assert reason.command == "pg-scheduler jobs send order orders JSON"


async def test_messages_are_shown_by_mailbox_and_number(kit: TestScheduler) -> None:
    await enqueue(kit, "receive_orders")
    assert await kit.scheduler.send("order", "orders", "x" * 50_000)
    assert await kit.scheduler.send("order", "orders", 2)
    await kit.run_until(DAY)
    inspector = Inspector(kit.scheduler)
    found = await states(inspector)
    assert {name: (kind, state) for name, (kind, state, _) in found.items()} == {
        "orders#1": ("signal", "stored"),
        "orders#2": ("signal", "stored"),
        "orders#3": ("signal", "waiting"),
    }
    items = (await inspector.steps("order")).items
    assert {step.mailbox for step in items} == {"orders"}
    assert "pg-scheduler jobs steps order 'orders#1'" in str(items[0].no_value_reason)
    (large,) = (await inspector.steps("order", name="orders#1")).items
    assert len(large.value) == 50_000
    for where in ("signal:orders", "step:orders", "signal:ord*"):
        assert [job.job_id for job in (await inspector.search_jobs(where)).items] == ["order"], where
    assert not (await inspector.search_jobs("signal:mail*")).items
    workflows = tables_of(inspector).reads.workflows
    assert [step.job_id for step in await workflows.open_steps("signal", 9, "orders#3")] == ["order"]
    assert "orders#3" in {row.name for row in await workflows.count_open()}
    assert (await workflows.progress(["order"]))["order"].name == "orders#3"


async def test_job_that_waits_for_a_child_is_explained_with_its_id(kit: TestScheduler) -> None:
    await enqueue(kit, "wait_for_a_child")
    (reason,) = (await Inspector(kit.scheduler).explain_job("order")).reasons
    assert (reason.code, reason.text) == (ReasonCode.AFTER, "waits for 1 job: 'order:label' (pending)")


@pytest.mark.parametrize(
    ("function", "waits"),
    [
        ("place_order", ReasonCode.SLEEPING),
        ("wait_for_ever", ReasonCode.SIGNAL),
        ("wait_for_a_child", ReasonCode.AFTER),
    ],
)
async def test_pause_is_the_reason_when_the_suspension_of_a_job_has_ended(
    kit: TestScheduler, function: str, waits: ReasonCode
) -> None:
    await enqueue(kit, function, *([7] if function == "place_order" else []))
    await kit.scheduler.tasks.pause(f"steps.{function}")
    explained = await Inspector(kit.scheduler).explain_job("order")
    assert [reason.code for reason in explained.reasons] == [waits, ReasonCode.TASK_PAUSED]
    await kit.run_until(DAY)
    if waits is ReasonCode.SIGNAL:
        assert await kit.scheduler.signal("order", "approval")
    explained = await Inspector(kit.scheduler).explain_job("order")
    assert [reason.code for reason in explained.reasons] == [ReasonCode.TASK_PAUSED]


async def test_timeline_names_the_step_that_suspended_a_job_between_two_attempts(kit: TestScheduler) -> None:
    await enqueue(kit, "sleep_after_a_failure", max_retries=1)
    await kit.run_until(2 * DAY)
    job = await kit.scheduler.get_job("order")
    assert job is not None
    steps = (await Inspector(kit.scheduler).steps("order")).items
    titles = [each.title for each in timeline_of(job, START, steps)]
    assert [each.partition(" after")[0] for each in titles] == [
        "created",
        "attempt 1: error",
        "attempt 2: suspended",
        "due",
        "attempt 3 started",
        "completed",
    ]


async def test_job_that_failed_after_its_sleep_waits_for_its_retry(
    kit: TestScheduler, pool: asyncpg.Pool
) -> None:
    await enqueue(kit, "fail_while_asleep", max_retries=3)
    await kit.run_until(DAY)
    await pool.execute("UPDATE scheduler_steps SET ended_at = NULL")  # as one beside the step that failed
    (reason, *_) = (await Inspector(kit.scheduler).explain_job("order")).reasons
    assert reason.code is ReasonCode.BACKOFF


async def test_signal_to_a_job_that_is_not_due_does_not_hide_that(kit: TestScheduler) -> None:
    await kit.scheduler.enqueue("steps.wait_for_ever", job_id="order", delay=60)
    await kit.scheduler.signal("order", "approval", 1)
    (reason, *_) = (await Inspector(kit.scheduler).explain_job("order")).reasons
    assert reason.code is ReasonCode.NOT_DUE


async def test_step_that_is_retried_has_its_failures_and_its_next_attempt(
    kit: TestScheduler, pool: asyncpg.Pool
) -> None:
    inspector = Inspector(kit.scheduler)
    await enqueue(kit, "pay", 7)
    (step,) = (await inspector.steps("order")).items
    (error,) = step.errors
    assert (step.name, step.kind, step.state, step.value, step.failures) == (
        "charge",
        "step",
        "retrying",
        None,
        1,
    )
    assert (step.until, step.ended_at, step.attempt) == (START + timedelta(minutes=1), None, 1)
    assert (error.attempt, error.error) == (1, "BankError: closed\ntoday")
    (reason,) = (await inspector.explain_job("order")).reasons
    assert reason.code is ReasonCode.BACKOFF
    assert reason.text == (
        "attempt 2 of the step 'charge' is due at 2030-01-01 00:01:00 UTC, in 59 s; "
        "the attempt before failed: BankError: closed today"
    )
    job = await kit.scheduler.get_job("order")
    assert job
    assert state_of(job, kit.now) == "retrying"
    assert [each.job_id for each in (await inspector.search_jobs("status:retrying step:charge")).items] == [
        "order"
    ]
    assert [each.title for each in timeline_of(job, kit.now, [step])][-1] == (
        "continues with the next attempt of its step"
    )

    # The function succeeds now that the table has another row.
    await pool.execute(
        "INSERT INTO scheduler_steps VALUES ('other', 'a', 'step', NULL, 1, NULL, now(), now())"
    )
    await kit.run_until(timedelta(minutes=2))
    step, rest = (await inspector.steps("order")).items
    assert (step.state, step.value, step.failures, step.until) == ("stored", "payment-7", 1, None)
    assert [each.error for each in step.errors] == ["BankError: closed\ntoday"]
    assert (rest.name, rest.failures, rest.errors) == ("rest", 0, ())
    assert [each.name for each in (await inspector.steps("order", name="charge")).items] == ["charge"]
    assert not (await inspector.search_jobs("step:charge")).items, "the job sleeps in another step"
    assert await pool.fetchval("SELECT ended_at IS NOT NULL FROM scheduler_steps WHERE kind = 'retry'")


async def test_step_whose_retries_are_used_up_has_failed(kit: TestScheduler) -> None:
    await enqueue(kit, "pay", 7, max_retries=1)
    await kit.run_until(timedelta(minutes=3, seconds=30))
    (step,) = (await Inspector(kit.scheduler).steps("order")).items
    assert (step.state, step.failures, step.ended_at is None) == ("failed", 3, False)
    (reason, *_) = (await Inspector(kit.scheduler).explain_job("order")).reasons
    assert reason.code is ReasonCode.BACKOFF
    assert reason.text.startswith("retry 1 of 1 is due")


async def test_retries_of_a_cancelled_job_are_given_up(kit: TestScheduler) -> None:
    await enqueue(kit, "pay", 7)
    await kit.scheduler.cancel_job("order")
    (step,) = (await Inspector(kit.scheduler).steps("order")).items
    assert step.state == "given_up"
