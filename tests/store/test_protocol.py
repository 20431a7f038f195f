"""Claims, leases and fencing tokens hold in every interleaving of statements and commits.

For pairs of operations that order is exhausted; for long stories hypothesis chooses it. With
PG_SCHEDULER_PROTOCOL=long three operations play at a time, and stories are longer: that takes an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from itertools import combinations, combinations_with_replacement
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from pg_scheduler import JobStatus
from tests.store.protocol import (
    ENDED,
    EXTENSION,
    GRACE,
    Actor,
    Cancel,
    Deregister,
    ExchangeOp,
    Expire,
    HoldRow,
    MarkStopping,
    Op,
    Register,
    Renew,
    RetryJob,
    SetStatus,
    Vacuum,
    World,
    interleave,
)
from tests.support.inside import COMPLETE, RELEASE, Claim, Outcome
from tests.support.store import LEASE, SECOND
from tests.support.stories import LONG

pytestmark = pytest.mark.slow

AT_ONCE = 3 if LONG else 2

Make = Callable[[World], Op]


def first(world: World) -> Claim:
    return world.claims[0][1]


def ended_by(outcome: Any) -> Make:
    return lambda world: world.finish("w1", outcome, *world.claims_of("w1"))


def renew(world: World) -> Op:
    return world.renew("w1")


def exchange(world: World) -> Op:
    return ExchangeOp("w1", world.claims_of("w1"))


def by_hand(status: JobStatus) -> Make:
    return lambda _: SetStatus("a", status)


CANCEL: dict[str, Make] = {"cancel": lambda _: Cancel("a")}
REPLACE: dict[str, Make] = {"replace": lambda world: world.replace(priority=1)}
RESCUE: dict[str, Make] = {"rescue": lambda world: world.rescue("w1")}
CLAIMS: dict[str, Make] = {"claim": lambda _: ExchangeOp("w1"), "claim by w2": lambda _: ExchangeOp("w2")}
HAND: dict[str, Make] = {
    "set pending": by_hand(JobStatus.PENDING),
    "set running": by_hand(JobStatus.RUNNING),
    "set failed": by_hand(JobStatus.FAILED),
}
WORK: dict[str, Make] = {
    "complete": ended_by(COMPLETE),
    "retry": ended_by(Outcome.retry(SECOND, "no")),
    "exchange": exchange,
    "renew": renew,
}
RUNNING: dict[str, Make] = {
    **WORK,
    "fail": ended_by(Outcome.fail("no")),
    "release": ended_by(RELEASE),
    "give back": lambda world: world.give_back("w1"),
}
AGAIN: dict[str, Make] = {"retry job": lambda _: RetryJob("a"), "vacuum": lambda _: Vacuum("failed")}
EXPIRE: dict[str, Make] = {"expire": lambda _: Expire()}


async def workers(world: World) -> None:
    for worker_id in ("w1", "w2"):
        await world.live(worker_id)
        await world.do(Register(worker_id))


async def waiting(world: World) -> None:
    await workers(world)
    await world.do(world.insert())


async def running(world: World) -> None:
    await waiting(world)
    await world.do(ExchangeOp("w1"))


async def dead(world: World) -> None:
    """The process ended, and its lease is valid."""
    await running(world)
    await world.die("w1")


async def extended(world: World) -> None:
    """The lease expired, and the process is alive: it may hold the GIL."""
    await running(world)
    world.now += LEASE * SECOND / 2
    await world.do(Register("w2"))
    world.now += LEASE * SECOND / 2 + SECOND


async def lapsed(world: World) -> None:
    """The lease and its extension expired, and the process is alive."""
    await running(world)
    world.now += EXTENSION * SECOND
    await world.do(Register("w2"))
    world.now += LEASE * SECOND


async def replaced(world: World) -> None:
    """A replacement waits, and the lease and its extension expired."""
    await running(world)
    await world.do(world.replace())
    world.now += (LEASE + EXTENSION) * SECOND + SECOND


async def ended(world: World) -> None:
    await running(world)
    await world.do(world.finish("w1", Outcome.fail("no"), first(world)))


async def late(world: World) -> None:
    """The job is past its misfire grace time."""
    await workers(world)
    await world.do(world.insert(misfire_grace_time=0))
    world.now += SECOND


async def twice(world: World) -> None:
    """The same worker holds it again, and still knows its first attempt."""
    await running(world)
    await world.do(SetStatus("a", JobStatus.PENDING))
    await world.do(ExchangeOp("w1"))


async def two(world: World) -> None:
    """One job runs, and one is pending."""
    await running(world)
    await world.do(world.insert("b"))


async def crashed(world: World) -> None:
    """Two jobs are pending again whose worker died, and one that is new."""
    await workers(world)
    for job_id in "ab":
        await world.do(world.insert(job_id))
    await world.do(ExchangeOp("w1"))
    await world.die("w1")
    await world.do(world.rescue("w1"))
    await world.live("w1")
    await world.do(Register("w1"))
    await world.do(world.insert("c"))


async def beat_for_two_leases(world: World) -> None:
    """Let the lease of w1 expire in a row that no heartbeat renews."""
    for _ in range(4):
        world.now += LEASE * SECOND / 2
        await world.do(world.renew("w1"))


async def stopping(world: World) -> None:
    """A row was locked for longer than the lease, and its worker is stopping while the thread runs on."""
    await running(world)
    await world.do(world.insert("b"))
    await world.do(ExchangeOp("w1"))
    held = world.actors[1]
    await world.begin(HoldRow("a"), held)
    await world.step(held)
    await beat_for_two_leases(world)
    await world.do(MarkStopping("w1"))
    world.ended.add(("b", 1))
    await beat_for_two_leases(world)
    await world.do(Register("w2"))
    await world.step(held)


SCENES: Mapping[str, tuple[Callable[[World], Any], Mapping[str, Make]]] = {
    "waiting": (waiting, {**CLAIMS, **CANCEL, **REPLACE, **HAND, "leave": lambda _: Deregister("w1")}),
    "running": (running, {**RUNNING, **CANCEL, **REPLACE, **HAND, "leave": lambda _: Deregister("w1")}),
    "dead": (dead, {**RESCUE, "exchange": exchange, "renew": renew, "join": lambda _: Register("w1")}),
    "extended": (extended, {**RESCUE, **CLAIMS, "rescue all": lambda world: world.rescue(), **WORK}),
    "lapsed": (lapsed, {**WORK, **RESCUE, **CANCEL, **REPLACE, "claim by w2": CLAIMS["claim by w2"]}),
    "replaced": (replaced, {**WORK, **RESCUE, **CANCEL, **REPLACE, "set pending": HAND["set pending"]}),
    "ended": (
        ended,
        {
            **AGAIN,
            **REPLACE,
            "claim": CLAIMS["claim"],
            "set failed": HAND["set failed"],
            "insert": lambda world: world.insert(),
        },
    ),
    "late": (late, {**EXPIRE, **CLAIMS, **CANCEL, **REPLACE}),
    "twice": (
        twice,
        {
            "complete the old": lambda world: world.finish("w1", COMPLETE, first(world)),
            "exchange the old": lambda world: ExchangeOp("w1", [first(world)]),
            "renew the old": lambda _: Renew("w1", {"a": 1}),
            "complete": WORK["complete"],
            **REPLACE,
        },
    ),
    "crashed": (
        crashed,
        {
            "claim": CLAIMS["claim"],
            "claim by w2": CLAIMS["claim by w2"],
            "claim no crashed job": lambda _: ExchangeOp("w1", crashed=False),
            **CANCEL,
            **REPLACE,
            **EXPIRE,
        },
    ),
    "stopping": (
        stopping,
        {
            "rescue": lambda world: world.rescue(),
            "rescue by w2": lambda world: world.rescue_own("w2"),
            "renew": renew,
            "hold": lambda _: HoldRow("a"),
            **CANCEL,
            **REPLACE,
        },
    ),
    "two": (two, {"exchange": exchange, "claim by w2": CLAIMS["claim by w2"], **CANCEL, **REPLACE, **RESCUE}),
}


async def play(scene: str, dsn: str) -> None:
    set_up, makes = SCENES[scene]
    plays = combinations if AT_ONCE > 2 else combinations_with_replacement
    async with World.on(dsn, AT_ONCE) as world:
        await set_up(world)
        restore = await world.save()
        for names in plays(makes, AT_ONCE):
            try:
                await interleave(world, restore, lambda: [makes[name](world) for name in names])  # noqa: B023
            except AssertionError as error:
                error.add_note(f"{scene}: {' | '.join(names)}")
                raise


@pytest.mark.timeout(3600 if LONG else 180)
@pytest.mark.parametrize("scene", SCENES)
def test_store_matches_the_protocol_model_in_every_interleaving_of_statements(scene: str, dsn: str) -> None:
    # A loop of its own: with asyncio's debugging, as other tests have it, this takes five times as long.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(play(scene, dsn))


WORKERS = st.sampled_from(["w1", "w2"])
JOBS = st.sampled_from(["a", "b"])
OUTCOMES: st.SearchStrategy[Outcome] = st.sampled_from(
    [
        COMPLETE,
        Outcome.fail("no"),
        Outcome.retry(SECOND, "no"),
        Outcome.retry(0 * SECOND, "no"),
        Outcome.skip("no"),
        Outcome.snooze(SECOND),
        RELEASE,
    ]
)
GRACES = st.sampled_from([None, 0, GRACE])
AT_ONCE_OR_NOT = st.booleans()
TURNS = st.integers(0, 11)
"""Select one of several. The server decides how many there are, and what is drawn must not depend on that."""


class Story(RuleBasedStateMachine):
    """Two jobs, two workers that may be zombies, three sessions, and time."""

    world: World
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.run(self.world.reset())
        self.run(workers(self.world))

    def teardown(self) -> None:
        self.run(self.world.finish_all(set()))

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        self.runner.run(work)

    def idle(self) -> list[Actor]:
        return [actor for actor in self.world.actors if not actor.is_busy]

    def ready(self) -> list[Actor]:
        return [actor for actor in self.world.actors if actor.can_go]

    def start(self, op: Op, at_once: bool) -> None:
        """In a session that has nothing to do, if there is one: up to its end, or only its beginning."""
        if idle := self.idle():
            self.run(self.world.do(op, idle[0]) if at_once else self.world.begin(op, idle[0]))

    # -- turns, faults and time ----------------------------------------------------------------------------

    @rule(turn=TURNS)
    def go_on(self, turn: int) -> None:
        if ready := self.ready():
            self.run(self.world.step(ready[turn % len(ready)]))

    @rule(turn=TURNS)
    def break_off(self, turn: int) -> None:
        if ready := self.ready():
            self.run(self.world.fall(ready[turn % len(ready)]))

    @rule(seconds=st.sampled_from([1, LEASE / 3, LEASE, LEASE + 1]))
    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds * SECOND

    @rule(worker_id=WORKERS)
    def die(self, worker_id: str) -> None:
        self.run(self.world.die(worker_id))

    @rule(worker_id=WORKERS)
    def live(self, worker_id: str) -> None:
        self.run(self.world.live(worker_id))

    # -- workers -------------------------------------------------------------------------------------------

    @rule(worker_id=WORKERS, at_once=AT_ONCE_OR_NOT)
    def register(self, worker_id: str, at_once: bool) -> None:
        self.start(Register(worker_id), at_once)

    @rule(worker_id=WORKERS, at_once=AT_ONCE_OR_NOT)
    def deregister(self, worker_id: str, at_once: bool) -> None:
        self.start(Deregister(worker_id), at_once)

    @rule(worker_id=WORKERS, at_once=AT_ONCE_OR_NOT, crashed=st.booleans())
    def claim(self, worker_id: str, at_once: bool, crashed: bool) -> None:
        self.start(ExchangeOp(worker_id, crashed=crashed), at_once)

    @rule(
        worker_id=WORKERS, at_once=AT_ONCE_OR_NOT, attempt=st.integers(1, 4), limit=st.sampled_from([0, 10])
    )
    def exchange(self, worker_id: str, at_once: bool, attempt: int, limit: int) -> None:
        claims = [claim for claim in self.world.claims_of(worker_id) if claim.attempt == attempt]
        self.start(ExchangeOp(worker_id, claims, limit), at_once)

    @rule(worker_id=WORKERS, at_once=AT_ONCE_OR_NOT)
    def renew(self, worker_id: str, at_once: bool) -> None:
        self.start(self.world.renew(worker_id), at_once)

    @rule(worker_id=WORKERS, at_once=AT_ONCE_OR_NOT)
    def mark_stopping(self, worker_id: str, at_once: bool) -> None:
        self.start(MarkStopping(worker_id), at_once)

    @rule(turn=TURNS)
    def end_thread(self, turn: int) -> None:
        if claims := self.world.claims:
            worker_id, claim = claims[turn % len(claims)]
            lease = self.world.state.workers.get(worker_id)
            if lease is not None and lease.stopping:
                self.world.ended.add((claim.job_id, claim.attempt))

    @rule(worker_id=WORKERS, at_once=AT_ONCE_OR_NOT, outcome=OUTCOMES, some=st.lists(TURNS, min_size=1))
    def finish(self, worker_id: str, at_once: bool, outcome: Outcome, some: list[int]) -> None:
        if claims := self.world.claims_of(worker_id):  # old tokens too
            chosen = {claim.job_id: claim for claim in (claims[turn % len(claims)] for turn in some)}
            self.start(self.world.finish(worker_id, outcome, *chosen.values()), at_once)

    @rule(worker_id=WORKERS, at_once=AT_ONCE_OR_NOT, knows=st.booleans())
    def give_back(self, worker_id: str, at_once: bool, knows: bool) -> None:
        claims = self.world.claims_of(worker_id) if knows else []
        self.start(self.world.give_back(worker_id, claims), at_once)

    @rule(worker_id=WORKERS, at_once=AT_ONCE_OR_NOT, knows=st.booleans())
    def rescue_own(self, worker_id: str, at_once: bool, knows: bool) -> None:
        known = self.world.claims_of(worker_id) if knows else []
        self.start(self.world.rescue_own(worker_id, known), at_once)

    # -- callers ------------------------------------------------------------------------------------------

    @rule(job_id=JOBS, at_once=AT_ONCE_OR_NOT, grace=GRACES)
    def insert(self, job_id: str, at_once: bool, grace: int | None) -> None:
        self.start(self.world.insert(job_id, misfire_grace_time=grace), at_once)

    @rule(job_id=JOBS, at_once=AT_ONCE_OR_NOT, grace=GRACES, delay=st.sampled_from([0, 1, 61]))
    def replace(self, job_id: str, at_once: bool, grace: int | None, delay: int) -> None:
        due = self.world.now + delay * SECOND
        self.start(self.world.replace(job_id, misfire_grace_time=grace, execution_time=due), at_once)

    @rule(job_id=JOBS, at_once=AT_ONCE_OR_NOT)
    def cancel(self, job_id: str, at_once: bool) -> None:
        self.start(Cancel(job_id), at_once)

    @rule(job_id=JOBS, at_once=AT_ONCE_OR_NOT)
    def hold_row(self, job_id: str, at_once: bool) -> None:
        self.start(HoldRow(job_id), at_once)

    @rule(job_id=JOBS, at_once=AT_ONCE_OR_NOT)
    def retry_job(self, job_id: str, at_once: bool) -> None:
        self.start(RetryJob(job_id), at_once)

    @rule(job_id=JOBS, at_once=AT_ONCE_OR_NOT, status=st.sampled_from(JobStatus))
    def set_status(self, job_id: str, at_once: bool, status: JobStatus) -> None:
        self.start(SetStatus(job_id, status), at_once)

    @rule(at_once=AT_ONCE_OR_NOT, suspects=st.sets(WORKERS))
    def rescue(self, at_once: bool, suspects: set[str]) -> None:
        self.start(self.world.rescue(*sorted(suspects)), at_once)

    @rule(at_once=AT_ONCE_OR_NOT)
    def expire(self, at_once: bool) -> None:
        self.start(Expire(), at_once)

    @rule(status=st.sampled_from(sorted(ENDED)), at_once=AT_ONCE_OR_NOT)
    def vacuum(self, status: str, at_once: bool) -> None:
        self.start(Vacuum(status), at_once)


@pytest.mark.timeout(1800 if LONG else 900)  # a failure is made smaller for five minutes
def test_store_matches_the_protocol_model_in_long_random_sequences(dsn: str) -> None:
    settings = hypothesis.settings(
        max_examples=2000 if LONG else 40,
        stateful_step_count=80 if LONG else 40,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        context = World.on(dsn, 3)

        class StatusChange(Story):
            world = runner.run(context.__aenter__())

        StatusChange.runner = runner
        try:
            run_state_machine_as_test(StatusChange, settings=settings)
        finally:
            runner.run(context.__aexit__(None, None, None))
