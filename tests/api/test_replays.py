"""A model of durable steps: random programs whose workers crash between any two statements.

A program is a list of operations: steps, transactions, sleeps, waits for signals, children, cursors, and
several of them at once. A story lets time pass, sends signals in any order, cancels and retries jobs, and
lets workers stop, or crash before or after one of their statements. Each call of a step's function returns
another number, so whatever is called again, lost or mixed up shows.
With PG_SCHEDULER_PROTOCOL=long there are more and longer stories.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from pg_scheduler import Child, Connection, JobFailedError, RetryPolicy, Sleep, Wait, call, current_job
from pg_scheduler.testing import TestScheduler
from tests.support.crash_stories import CrashStory, run_stories
from tests.support.crashes import NumberedCrash
from tests.support.stories import LONG, NIGHTLY

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
YEAR: Final = timedelta(days=365)
AFTER_A_SECOND: Final = RetryPolicy(base=timedelta(seconds=1), maximum=timedelta(seconds=1), jitter=0)

JOBS = st.sampled_from(["a", "b"])
Operation = list[Any]

SIMPLE: Final[list[Operation]] = [
    *(["run"], ["fails once"], ["transaction"], ["sleep"]),
    *(["wait"], ["wait", 300], ["child"], ["failing child"]),
]
OPERATIONS: Final[list[Operation]] = [
    *SIMPLE,
    *(["gather"], ["cursor"], ["first"], ["first child"], ["remind"]),
]
TOGETHER = st.lists(st.sampled_from(SIMPLE), min_size=2, max_size=3).map(
    lambda operations: ["together", *operations]
)
PROGRAMS = st.lists(
    st.sampled_from(OPERATIONS) | st.sampled_from(OPERATIONS) | TOGETHER, min_size=1, max_size=5
)

NAP_S: Final = 40
ITEMS: Final = 3
"""The length of each counted loop."""


class World:
    """The jobs, what their functions have seen, and what was wrong."""

    def __init__(self, t: TestScheduler) -> None:
        self.t = t
        self.pool = t.pool
        self.programs: dict[str, list[Operation]] = {}
        self.numbers = Counter[str]()
        self.seen: dict[tuple[str, str], Any] = {}
        """The values that a job has got, by job and name."""
        self.accepted: dict[tuple[str, str], int] = {}
        """The values of the signals that signal() has accepted."""
        self.failed_once: set[tuple[str, str]] = set()
        self.repeats: Counter[tuple[str, str]] = Counter()
        """How often a retry has repeated a step that was stored."""
        self.child_values: dict[tuple[str, str], Any] = {}
        """The values of children, which no retry of their parent repeats."""
        self.began: dict[tuple[str, str], datetime] = {}
        self.positions: dict[tuple[str, str], int] = {}
        """The last position of each cursor whose call has returned."""
        self.cancelled: set[str] = set()
        self.faults: list[str] = []
        register = t.scheduler.register
        register(self.program, name="replays.program", max_retries=1000, keep_result=YEAR)
        register(self.leaf, name="replays.leaf", max_retries=5)
        register(self.failing_leaf, name="replays.failing_leaf", max_retries=0)

    def check(self, subject: str, value: object, expected: object) -> None:
        if value != expected:
            self.faults.append(f"{subject}: {value!r}, not {expected!r}")

    def next_number(self) -> int:
        self.numbers["calls"] += 1
        return self.numbers["calls"]

    # -- the functions of jobs and steps -------------------------------------------------------------------

    async def program(self, job_id: str, operations: list[Operation]) -> list[Any]:
        return [
            await self.perform(job_id, f"s{number}", operation) for number, operation in enumerate(operations)
        ]

    async def perform(self, job_id: str, name: str, operation: Operation) -> Any:
        """Perform an operation, whose value is the same in each attempt once it was seen."""
        match operation[0]:
            case "together":
                names = [f"{name}.{number}" for number in range(len(operation) - 1)]
                work = (
                    self.perform(job_id, name, part) for name, part in zip(names, operation[1:], strict=True)
                )
                return await asyncio.gather(*work)
            case "cursor":
                return await self.loop(job_id, name)
            case kind:
                value = await self.step(job_id, name, kind, *operation[1:])
        self.check(f"{name} of {job_id}", value, self.seen.setdefault((job_id, name), value))
        return value

    async def step(self, job_id: str, name: str, kind: str, *timeout: int) -> Any:
        steps = current_job().steps
        functions = {"run": self.count, "fails once": self.fail_once}
        if kind in functions:
            return await steps.run(name, functions[kind], job_id, name)
        if kind == "transaction":
            return await steps.transaction(name, self.write, job_id, name)
        others: dict[str, Callable[..., Awaitable[Any]]] = {
            "sleep": self.sleep,
            "wait": self.wait,
            "first": self.first,
            "remind": self.remind,
        }
        return await others.get(kind, partial(self.children, kind))(job_id, name, *timeout)

    async def children(self, kind: str, job_id: str, name: str) -> Any:
        steps = current_job().steps
        leaf = call(self.leaf, job_id, name)
        if kind == "first child":
            child = Child(f"{name}.child", call(self.leaf, job_id, f"{name}.child"))
            winner = await steps.first(name, Sleep(f"{name}.nap", NAP_S), child)
            return [winner.name, winner.value]
        if kind == "failing child":
            try:
                return await steps.child(name, call(self.failing_leaf))
            except JobFailedError:
                return "failed"
        value: Any = await (
            steps.gather(name, [leaf] * ITEMS) if kind == "gather" else steps.child(name, leaf)
        )
        self.check(f"children of {job_id}", value, self.child_values.setdefault((job_id, name), value))
        return value

    async def sleep(self, job_id: str, name: str) -> None:
        began = self.began.setdefault((job_id, name), self.t.now)
        await current_job().steps.sleep(name, NAP_S)
        if self.t.now < began + timedelta(seconds=NAP_S):
            self.faults.append(f"{name} of {job_id} slept from {began} to {self.t.now}")

    async def first(self, job_id: str, name: str) -> list[Any]:
        wait = Wait(f"{name}.go")
        winner = await current_job().steps.first(name, wait, Sleep(f"{name}.nap", NAP_S))
        if winner.name == wait.name:
            value = self.accepted.get((job_id, wait.name))
            self.check(f"{wait.name} of {job_id}", winner.value, value)
        return [winner.name, winner.value]

    async def wait(self, job_id: str, name: str, timeout: int | None = None) -> Any:
        try:
            value = await current_job().steps.wait(name, timeout=timeout)
        except TimeoutError:
            self.check(
                f"the signal {name} of {job_id}", "timeout", self.accepted.get((job_id, name), "timeout")
            )
            return "timeout"
        self.check(f"the signal {name} of {job_id}", value, self.accepted.get((job_id, name)))
        return value

    async def remind(self, job_id: str, name: str) -> Any:
        """Wait, send a mail, and wait for the same signal again."""
        steps = current_job().steps
        try:
            value = await steps.wait(name, timeout=100)
        except TimeoutError:
            await steps.run(f"{name}.mail", self.count, job_id, f"{name}.mail")
            return await self.wait(job_id, name, 200)
        self.check(f"the signal {name} of {job_id}", value, self.accepted.get((job_id, name)))
        return value

    async def loop(self, job_id: str, name: str) -> int:
        """Count to a number; a position that was saved is never repeated."""
        async with current_job().steps.cursor(name, start=0) as cursor:
            saved = self.positions.get((job_id, name), 0)
            if cursor.value < saved:
                self.faults.append(f"cursor {name} of {job_id} begins at {cursor.value}, not at {saved}")
            for position in range(cursor.value, ITEMS):
                await cursor.save(position + 1)
                self.positions[job_id, name] = position + 1
            return int(cursor.value)

    async def count(self, job_id: str, name: str) -> int:
        """Return another number at each call, of which there is none once a value was stored."""
        await self.check_not_stored(job_id, name)
        return self.next_number()

    async def fail_once(self, job_id: str, name: str) -> int:
        if (job_id, name) not in self.failed_once:
            self.failed_once.add((job_id, name))
            raise ValueError(name)
        return await self.count(job_id, name)

    async def write(self, connection: Connection, job_id: str, name: str) -> int:
        await self.check_not_stored(job_id, name)
        await connection.execute("INSERT INTO effect VALUES ($1, $2)", job_id, name)
        return self.next_number()

    async def leaf(self, job_id: str, name: str) -> int:
        """Return another number for each attempt, of which there is none once the parent has a value."""
        if (job_id, name) in self.child_values:
            self.faults.append(f"a child {name} of {job_id} runs again")
        return self.next_number()

    async def failing_leaf(self) -> int:
        raise ValueError("as it should")

    async def check_not_stored(self, job_id: str, name: str) -> None:
        if name in await self.stored(job_id):
            self.faults.append(f"{name} of {job_id} is stored and called again")

    async def stored(self, job_id: str) -> dict[str, str]:
        """Return the names of the stored steps, and their kinds."""
        rows = await self.pool.fetch(
            "SELECT name, kind FROM scheduler_steps WHERE job_id = $1 AND ended_at IS NOT NULL", job_id
        )
        return {row["name"]: row["kind"] for row in rows}

    # -- what callers and workers do -----------------------------------------------------------------------

    async def enqueue(self, job_id: str, operations: list[Operation]) -> None:
        self.programs[job_id] = operations
        await self.t.scheduler.enqueue(
            "replays.program", args=(job_id, operations), job_id=job_id, misfire_grace_time=None
        )

    def signals_of(self, job_id: str) -> dict[str, int | None]:
        """Return the names of the signals that a program waits for, and the timeouts."""
        signals: dict[str, int | None] = {}
        for number, operation in enumerate(self.programs[job_id]):
            parts = (
                {f"s{number}.{place}": part for place, part in enumerate(operation[1:])}
                if operation[0] == "together"
                else {f"s{number}": operation}
            )
            for name, part in parts.items():
                if part[0] in {"wait", "remind"}:
                    signals[name] = 100 if part[0] == "remind" else part[1] if part[1:] else None
                elif part[0] == "first":
                    signals[f"{name}.go"] = None
        return signals

    async def has_ended(self, job_id: str) -> bool:
        job = await self.t.scheduler.get_job(job_id)
        assert job is not None
        return job.status not in {"pending", "running"}

    async def signal(self, job_id: str, turn: int) -> None:
        """Send a value, which is refused after another one, after a timeout, and after the end of the job."""
        signals = self.signals_of(job_id)
        if not signals:
            return
        name = sorted(signals)[turn % len(signals)]
        has_ended, value = await self.has_ended(job_id), self.next_number()
        accepted = await self.t.scheduler.signal(job_id, name, value)
        if has_ended or (job_id, name) in self.accepted:
            self.check(f"a signal {name} to {job_id} is accepted", accepted, False)
        elif signals[name] is None:
            self.check(f"a signal {name} to {job_id} is accepted", accepted, True)
        if accepted:
            self.accepted[job_id, name] = value

    async def cancel(self, job_id: str) -> None:
        has_ended = await self.has_ended(job_id)
        self.check("cancel", await self.t.scheduler.cancel_job(job_id), not has_ended)
        if not has_ended:
            self.cancelled.add(job_id)

    async def retry(self, job_id: str, turn: int | None) -> None:
        """Retry a job that has ended, at its next step or from one that is stored."""
        has_ended, before = await self.has_ended(job_id), await self.stored(job_id)
        named = [name for name in before if name.startswith("s")]
        name = None if turn is None or not named else sorted(named)[turn % len(named)]
        retried = await self.t.scheduler.retry_job(job_id, from_step=name)
        self.check("retry", retried, has_ended)
        after = await self.stored(job_id)
        gone = before.keys() - after.keys()
        if retried:
            self.cancelled.discard(job_id)
        if name is None or not retried:
            self.check("steps without their values", sorted(gone), [])
            return
        self.check_repeated(job_id, name, before, gone)
        self.forget(job_id, gone)

    def check_repeated(self, job_id: str, name: str, before: dict[str, str], gone: set[str]) -> None:
        """Check which steps a retry repeats. A signal is stored since it came, maybe before other steps."""
        number = number_of(name)
        if name not in gone:
            self.faults.append(f"the step {name} of {job_id} is not repeated")
        for other, kind in before.items():
            if kind == "signal" and other != name and (job_id, other) in self.accepted and other in gone:
                self.faults.append(f"the signal {other} of {job_id} is gone")
            if not other.startswith("s") or kind == "signal":
                continue
            is_later = number_of(other) > number
            if is_later and other not in gone:
                self.faults.append(f"{other} of {job_id} is not repeated from {name}")
            if number_of(other) < number and other in gone and before[name] != "signal":
                self.faults.append(f"{other} of {job_id} is repeated from {name}")

    def forget(self, job_id: str, gone: set[str]) -> None:
        """Expect new values for steps that are repeated, and for all that has not been stored."""
        for name in gone:
            self.accepted.pop((job_id, name), None)
            self.positions.pop((job_id, name), None)
            self.began.pop((job_id, name), None)
            self.repeats[job_id, name] += 1
        for key in [key for key in self.seen if key[0] == job_id and key[1] in gone]:
            del self.seen[key]
        for job, name in list(self.seen):  # a timeout is repeated if its wait began after the step
            if job == job_id and self.seen[job, name] == "timeout":
                del self.seen[job, name]

    async def run(self, span: timedelta) -> None:
        await self.t.run_until(span)

    async def crash(self, span: timedelta, number: int, moment: Literal["before", "after"]) -> None:
        """Let the worker crash at a statement, if it executes so many."""
        await NumberedCrash(self.t, number, moment, plans=False).run(span)

    async def stop(self) -> None:
        await self.t.scheduler.shutdown()

    async def finish(self) -> None:
        """Send all signals, let the jobs end, and compare their results."""
        for job_id in self.programs:
            if job_id in self.cancelled:
                await self.retry(job_id, None)
            for turn in range(len(self.signals_of(job_id))):
                await self.signal(job_id, turn)
        await self.run(timedelta(days=2))
        assert self.faults == []
        for job_id, operations in self.programs.items():
            result = await self.t.scheduler.get_job_result(job_id, wait=False)
            assert result is not None
            self.check(f"the status of {job_id}", str(result.status), "completed")
            self.check(f"the result of {job_id}", result.value, self.expected_result(job_id, operations))
            rows = await self.pool.fetch("SELECT name FROM effect WHERE job_id = $1", job_id)
            written = Counter(row["name"] for row in rows)
            for name in written:
                self.check(f"effects of {name}", written[name], 1 + self.repeats[job_id, name])
        assert self.faults == []

    def expected_result(self, job_id: str, operations: list[Operation]) -> list[Any]:
        def value_of(name: str, operation: Operation) -> Any:
            match operation[0]:
                case "together":
                    return [value_of(f"{name}.{place}", part) for place, part in enumerate(operation[1:])]
                case "cursor":
                    return ITEMS
                case "failing child":
                    return "failed"
            return self.seen[job_id, name]

        return [value_of(f"s{number}", operation) for number, operation in enumerate(operations)]


def number_of(name: str) -> int:
    return int(name[1:].partition(".")[0])


EFFECT_TABLE: Final = "CREATE TABLE effect (job_id text, name text)"


class Story(CrashStory):
    """Random operations on one world."""

    world: World

    @initialize(first=PROGRAMS, second=PROGRAMS)
    def start(self, first: list[Operation], second: list[Operation]) -> None:
        self.do(self.begin(first, second))

    async def begin(self, *programs: list[Operation]) -> None:
        await self.pool.execute(
            "TRUNCATE scheduled_jobs, scheduler_steps, scheduler_after, scheduler_results, "
            "scheduler_workers, effect"
        )
        t = TestScheduler(
            self.pool,
            now=START,
            vacuum_enabled=False,
            max_crashes=None,
            retry_policy=AFTER_A_SECOND,
            misfire_grace_time=None,
        )
        self.world = World(await self.stack.enter_async_context(t))
        for job_id, operations in zip("ab", programs, strict=True):
            await self.world.enqueue(job_id, operations)

    @rule(job_id=JOBS, turn=st.integers(0, 5))
    def signal(self, job_id: str, turn: int) -> None:
        self.do(self.world.signal(job_id, turn))

    @rule(job_id=JOBS)
    def cancel(self, job_id: str) -> None:
        self.do(self.world.cancel(job_id))

    @rule(job_id=JOBS, turn=st.none() | st.integers(0, 9))
    def retry(self, job_id: str, turn: int | None) -> None:
        self.do(self.world.retry(job_id, turn))

    @rule(seconds=st.sampled_from([0, 30, 50, 400]))
    def run_until(self, seconds: int) -> None:
        self.do(self.world.run(timedelta(seconds=seconds)))

    @rule(
        seconds=st.sampled_from([0, 50, 400]),
        number=st.integers(0, 30),
        moment=st.sampled_from(["before", "after"]),
    )
    def crash(self, seconds: int, number: int, moment: Literal["before", "after"]) -> None:
        self.do(self.world.crash(timedelta(seconds=seconds), number, moment))

    @rule(job_id=JOBS)
    def send_all_signals(self, job_id: str) -> None:
        for turn in range(len(self.world.signals_of(job_id))):
            self.do(self.world.signal(job_id, turn))

    @rule(job_id=JOBS, turn=st.integers(0, 9))
    def retry_after_the_end(self, job_id: str, turn: int) -> None:
        self.send_all_signals(job_id)
        self.do(self.world.run(timedelta(seconds=600)))
        self.do(self.world.retry(job_id, turn))

    @rule()
    def stop(self) -> None:
        self.do(self.world.stop())

    @invariant()
    def nothing_is_lost_or_called_again(self) -> None:
        if hasattr(self, "world"):
            assert self.world.faults == []

    def teardown(self) -> None:
        try:
            if hasattr(self, "world") and not self.world.faults:
                self.do(self.world.finish())
        finally:
            self.do(self.stack.aclose())


@pytest.mark.timeout(7200 if LONG else 600)
def test_random_programs_see_each_value_once_wherever_workers_crash(dsn: str) -> None:
    run_stories(Story, dsn, examples=300 if LONG else 5, steps=60 if LONG else 10, preparation=EFFECT_TABLE)


@NIGHTLY
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_random_programs_see_each_value_once_wherever_workers_crash(dsn: str) -> None:
    run_stories(Story, dsn, examples=15, steps=20, preparation=EFFECT_TABLE)
