"""The same word means one thing everywhere: worlds, and what every front end reports about each of them.

A world is a database in a situation. Terminal, dashboard, doctor and metrics are asked about it, and have to
agree on whether all is well, on what is due, late, overdue and blocked, on the failure rate, and on the state
of each job and of each schedule.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pg_scheduler import Scheduler, call, current_job
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.facts.lateness import LATE_S, OVERDUE_S
from pg_scheduler.facts.outcomes import DECIDED_ATTEMPTS, FAILED_ATTEMPTS
from pg_scheduler.facts.schedule_state import SCHEDULE_STATES
from pg_scheduler.inspect import Inspector, Severity, Status, Thresholds
from pg_scheduler.inspect.jobs import count_states
from pg_scheduler.inspect.status import STATUS_CODES, problems_of
from pg_scheduler.telemetry.cluster import ClusterCollector
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, request
from tests.support.inside import OUTCOMES, Connections, JobFigures, Store, run_command
from tests.support.patience import PATIENCE
from tests.support.prometheus import Exposition
from tests.support.world import HOUR, MINUTE, SECOND, World

C = "pg_scheduler_cluster_"
TASK = "bank.transfer"


async def part() -> None:
    """Suspend the job, which is the child of another one, for an hour."""
    await current_job().steps.sleep("night", HOUR)


@dataclass
class ExpectedWorld(World):
    """A database that a test fills.

    Attributes:
        states: The states that jobs have, by id.
        schedules: The states that schedules have, by id.
    """

    scheduler: Scheduler
    stack: AsyncExitStack
    states: dict[str, str] = field(default_factory=dict)
    schedules: dict[str, str] = field(default_factory=dict)

    async def worker(self, worker_id: str = "w1", **columns: Any) -> None:
        """Add a worker that claims the jobs of the task."""
        defaults = {"names": [TASK], "max_concurrent_jobs": 25, "running_jobs": 0}
        await super().worker(worker_id, **{**defaults, **columns})

    async def count(self, **outcomes: int) -> None:
        """Count attempts of the task by outcome, as a worker does."""
        ended = tuple(outcomes.get(outcome, 0) for outcome in OUTCOMES)
        figures = JobFigures(started=sum(ended), ended=ended)
        assert await Store(Connections(self.pool)).statistics.add("w1", 1, {TASK: figures})

    async def job(self, job_id: str = "due", name: str = TASK, **columns: Any) -> None:
        """Add a job; the id of a pending one is the state that it is expected to have."""
        await super().job(job_id, name, **columns)
        self.states[job_id] = columns.get("status", job_id)

    async def schedule(self, state: str, change: str = "") -> None:
        """Add a schedule, whose id is the state that it is expected to have, and change its row."""
        await self.scheduler.schedules.add(TASK, Every(HOUR), schedule_id=state)
        if change:
            await self.pool.execute(f"UPDATE scheduler_schedules SET {change} WHERE schedule_id = $1", state)
        self.schedules[state] = state

    async def run_job(self, function: Callable[[], Awaitable[None]], state: str) -> None:
        """Run a job on a worker until it is suspended, as is its child if it has one."""
        worker = Scheduler(self.pool, shutdown_timeout=0.05)
        self.stack.push_async_callback(worker.shutdown)
        worker.register(function, name=TASK)
        worker.register(part, name="bank.part")
        await worker.start()
        await worker.enqueue(TASK, job_id="waiting")
        suspended = "SELECT bool_and(status = 'pending' AND attempt = 1) FROM scheduled_jobs"
        async with asyncio.timeout(PATIENCE):
            while not await self.pool.fetchval(suspended):  # noqa: ASYNC110 - the row sends no event
                await asyncio.sleep(0.02)
        for row in await self.pool.fetch("SELECT job_id FROM scheduled_jobs"):
            self.states[row["job_id"]] = "sleeping"
        self.states["waiting"] = state


# -- worlds: what is built, and the codes of the findings because of which not all is well ------------------


async def nothing_at_all(world: ExpectedWorld) -> None:
    """Leave the database as a migration leaves it."""


async def one_worker(world: ExpectedWorld) -> None:
    await world.worker()
    await world.job("due", due=-5 * SECOND)
    await world.count(completed=1000)


async def all_attempts_lost(world: ExpectedWorld) -> None:
    await world.worker()
    await world.count(lost=1000)


async def all_jobs_expired(world: ExpectedWorld) -> None:
    await world.worker()
    await world.count(expired=1000)
    await world.job("of-the-thousand", status="expired")


async def all_attempts_retried(world: ExpectedWorld) -> None:
    await world.worker()
    await world.count(retried=1000)
    await world.job("scheduled", due=HOUR)


async def half_failed(world: ExpectedWorld) -> None:
    await world.worker()
    await world.count(completed=500, failed=500, snoozed=3000, released=100)
    await world.job("of-the-half", status="failed")


async def half_failed_and_were_retried(world: ExpectedWorld) -> None:
    await world.worker()
    await world.count(completed=500, retried=480, lost=20, skipped=4000)


async def durable_jobs_that_are_well(world: ExpectedWorld) -> None:
    """Most of their attempts were suspended as planned, some were retried, and no job has ended yet."""
    await world.worker()
    await world.count(suspended=1000, retried=50)


async def durable_jobs_that_fail(world: ExpectedWorld) -> None:
    await world.worker()
    await world.count(suspended=100, retried=50)


async def few_failed(world: ExpectedWorld) -> None:
    await world.worker()
    await world.count(completed=1000, failed=2, retried=2, cancelled=100)


async def jobs_wait_late(world: ExpectedWorld) -> None:
    await world.worker(running_jobs=25)
    await world.job("due", due=-10 * MINUTE)


async def paused_and_overdue(world: ExpectedWorld) -> None:
    await world.worker()
    await world.job("due", due=-10 * MINUTE)
    await world.scheduler.tasks.pause(TASK, note="the bank is down")


async def draining(world: ExpectedWorld) -> None:
    await world.worker(wanted="drain", state="draining", running_jobs=1)
    await world.job("due", due=-10 * MINUTE)


async def one_of_two_drains(world: ExpectedWorld) -> None:
    await world.worker()
    await world.worker("w2", wanted="drain", state="draining", names=["bank.old"], running_jobs=1)
    await world.job("due", name="bank.old", due=-5 * SECOND)


async def a_dead_worker(world: ExpectedWorld) -> None:
    await world.worker()
    await world.worker("dead", lease=-3 * HOUR)


async def no_worker_is_left(world: ExpectedWorld) -> None:
    await world.worker("dead", lease=-3 * HOUR)
    await world.job("due", due=-10 * MINUTE)


async def a_full_limit(world: ExpectedWorld) -> None:
    limit = {"task": TASK, "name": "bank", "max_running": 1}
    await world.worker(settings={"limits": [limit]})
    await world.job("blocked", due=-10 * MINUTE, blocked_on="limit:bank")


async def a_share_that_starves(world: ExpectedWorld) -> None:
    await world.worker(settings={"shares": [{"task": TASK, "name": "tenants"}]})
    await world.job("blocked", due=-10 * MINUTE, blocked_on="share:tenants:acme")


async def an_unknown_name(world: ExpectedWorld) -> None:
    await world.worker()
    await world.job("due", name="bank.renamed", due=-10 * MINUTE)


async def a_paused_unknown_name(world: ExpectedWorld) -> None:
    await world.worker()
    await world.job("due", name="bank.renamed", due=-10 * MINUTE)
    await world.scheduler.tasks.pause("bank.renamed")


async def schedules_that_fail(world: ExpectedWorld) -> None:
    await world.worker()
    await world.job("newest", status="expired")
    await world.schedule("active")
    await world.schedule("failing", "last_job_id = 'newest'")
    await world.schedule("paused", "last_job_id = 'newest', paused_at = now()")
    await world.schedule("finished", "last_job_id = 'newest', finished_at = now(), next_fire_at = NULL")
    await world.schedule("retired", "retired_at = now(), next_fire_at = now() - interval '1 hour'")


async def an_overdue_schedule(world: ExpectedWorld) -> None:
    await world.worker()
    await world.schedule("overdue", "next_fire_at = now() - interval '1 hour'")


async def a_pause_that_should_have_ended(world: ExpectedWorld) -> None:
    await world.worker()
    change = "paused_at = now() - interval '2 hours', paused_until = now() - interval '1 hour'"
    await world.schedule("overdue", change)


async def a_job_that_sleeps(world: ExpectedWorld) -> None:
    async def work() -> None:
        await current_job().steps.sleep("night", HOUR)

    await world.run_job(work, "sleeping")


async def a_job_that_waits_for_a_signal(world: ExpectedWorld) -> None:
    async def work() -> None:
        await current_job().steps.wait("approval")

    await world.run_job(work, "awaiting")


async def a_job_that_waits_for_a_child(world: ExpectedWorld) -> None:
    async def work() -> None:
        await current_job().steps.child("part", call(part))

    await world.run_job(work, "blocked")


WORLDS: dict[Callable[[ExpectedWorld], Awaitable[None]], Sequence[str]] = {
    nothing_at_all: ["WORKER-NONE"],
    one_worker: [],
    all_attempts_lost: ["FAILING"],
    all_jobs_expired: ["JOBS-EXPIRED"],
    all_attempts_retried: ["FAILING"],
    half_failed: ["FAILING"],
    half_failed_and_were_retried: ["FAILING"],
    durable_jobs_that_are_well: [],
    durable_jobs_that_fail: ["FAILING"],
    few_failed: [],
    jobs_wait_late: ["LATE"],
    paused_and_overdue: [],
    draining: ["WORKER-DRAINING"],
    one_of_two_drains: [],
    a_dead_worker: ["WORKER-DEAD"],
    no_worker_is_left: ["WORKER-NONE", "WORKER-DEAD"],
    a_full_limit: [],
    a_share_that_starves: [],
    an_unknown_name: ["NAME-UNKNOWN"],
    a_paused_unknown_name: [],
    schedules_that_fail: [],
    an_overdue_schedule: ["SCHED-OVERDUE"],
    a_pause_that_should_have_ended: ["SCHED-OVERDUE"],
    a_job_that_sleeps: [],
    a_job_that_waits_for_a_signal: [],
    a_job_that_waits_for_a_child: [],
}


# -- what the front ends report -----------------------------------------------------------------------------


class Terminal:
    """The command line, with JSON as its output."""

    def __init__(self, dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._dsn = dsn
        self._capsys = capsys

    async def list(self, *words: str) -> dict[str, Any]:
        """Return what a command prints."""
        self._capsys.readouterr()
        await asyncio.to_thread(run_command, [*words, "-o", "json", "--dsn", self._dsn])
        document: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return document


@dataclass
class Voices:
    """What each front end reports about a world."""

    codes: list[str]
    status: Status
    terminal: dict[str, Any]
    terminal_codes: list[str]
    terminal_tasks: dict[str, Any]
    terminal_figures: dict[str, Any]
    overview: Any
    tasks: dict[str, Any]
    schedules: Any
    metrics: Exposition

    def total(self, metric: str, label: str = "job_name") -> float:
        """Return the sum of a metric over the values of a label."""
        return sum(self.metrics.by(C + metric, label).values())

    def largest(self, metric: str, label: str) -> float:
        """Return the largest value of a metric."""
        return max(self.metrics.by(C + metric, label).values(), default=0.0)

    def ended(self, name: str, outcomes: Sequence[str]) -> float:
        """Return how many attempts of a task ended with one of these outcomes, by the metrics."""
        return sum(
            self.metrics.get(C + "jobs_ended_total", job_name=name, outcome=outcome) or 0.0
            for outcome in outcomes
        )


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def world(pool: asyncpg.Pool, stack: AsyncExitStack) -> ExpectedWorld:
    return ExpectedWorld(pool, Scheduler(pool), stack)


def app_of(world: ExpectedWorld) -> Any:
    return dashboard(world.scheduler, authorize=lambda _: Access("ada"))


async def page(app: Any, path: str) -> Any:
    return (await request(app, path, headers=JSON)).data


async def ask(world: ExpectedWorld, terminal: Terminal) -> Voices:
    """Ask every front end."""
    inspector, app = Inspector(world.scheduler), app_of(world)
    findings = problems_of((await inspector.doctor(only=STATUS_CODES)).findings)
    registry = CollectorRegistry()
    registry.register(ClusterCollector(inspector))
    codes = [word for code in STATUS_CODES for word in ("--only", code)]
    of_terminal = (await terminal.list("doctor", *codes))["items"]
    return Voices(
        codes=sorted(each.code.value for each in findings),
        status=await inspector.status(),
        terminal=await terminal.list("status"),
        terminal_codes=sorted(each["code"] for each in of_terminal if each["severity"] != "info"),
        terminal_tasks={each["name"]: each for each in (await terminal.list("tasks", "list"))["items"]},
        terminal_figures={each["name"]: each for each in (await terminal.list("stats"))["items"]},
        overview=await page(app, "/"),
        tasks={each["name"]: each for each in (await page(app, "/tasks"))["items"]},
        schedules=await page(app, "/schedules"),
        metrics=Exposition((await asyncio.to_thread(generate_latest, registry)).decode()),
    )


@pytest.mark.parametrize("build", WORLDS, ids=lambda build: build.__name__)
async def test_front_ends_agree(
    world: ExpectedWorld,
    dsn: str,
    capsys: pytest.CaptureFixture[str],
    build: Callable[[ExpectedWorld], Awaitable[None]],
) -> None:
    await build(world)
    told = await ask(world, Terminal(dsn, capsys))
    assert told.codes == sorted(WORLDS[build])
    agree_on_whether_all_is_well(told)
    agree_on_failures(told)
    agree_on_what_is_late(told)
    agree_on_workers(told)
    await agree_on_jobs(world, told)
    await agree_on_schedules(world, told)


def agree_on_whether_all_is_well(told: Voices) -> None:
    """The sentence is the same in the status, on the terminal and in the browser, as are the findings."""
    is_well = not told.codes
    assert told.status.sentences[0].startswith("All is well") == is_well
    assert tuple(told.terminal["sentences"]) == told.status.sentences
    assert (told.terminal["severity"] in {"ok", "info"}) == is_well
    assert told.terminal_codes == told.codes
    assert told.overview["is_well"] == is_well
    assert told.overview["sentence"].startswith("All is well") == is_well
    assert sorted(each["code"] for each in told.overview["problems"]) == told.codes
    if not is_well:
        assert sorted(each.partition(":")[0] for each in told.status.sentences) == told.codes
    else:
        of_terminal = told.status.sentences[0].partition("nothing late")[2]
        assert told.overview["sentence"].partition("nothing late")[2] == of_terminal


def agree_on_failures(told: Voices) -> None:
    """A rate is the same on the terminal, on the page of tasks, in the metrics and in the finding."""
    results = {area.area: area.text for area in told.status.areas}["results"]
    for name, task in told.tasks.items():
        if not any(told.ended(name, [outcome]) for outcome in OUTCOMES):
            continue
        failed, decided = (told.ended(name, outcomes) for outcomes in (FAILED_ATTEMPTS, DECIDED_ATTEMPTS))
        rate = failed / decided if decided else None
        of_terminal = told.terminal_tasks[name]
        assert (task["failed"], of_terminal["failed"]) == (failed, failed)
        assert task["failed_share"] == rate
        assert of_terminal["failure_rate"] == (None if rate is None else round(rate, 3))
        assert told.terminal_figures[name]["failed"] == failed
        assert (f"{failed:,.0f} failed" in results) == (failed > 0)
        limits = Thresholds()
        is_failing = rate is not None and rate > limits.failure_ratio and failed >= limits.failures
        assert is_failing == ("FAILING" in told.codes)
        assert (told.ended(name, ["expired"]) > 0) == ("JOBS-EXPIRED" in told.codes)
    severity = {area.area: area.severity for area in told.status.areas}["results"]
    assert (severity is Severity.WARNING) == bool({"FAILING", "JOBS-EXPIRED"} & set(told.codes))


def agree_on_what_is_late(told: Voices) -> None:
    """Alerts and the autoscaler see late jobs if and only if the doctor reports why they wait."""
    due, blocked = told.overview["due"], told.overview["blocked"]
    assert (told.total("jobs_due"), sum(each["due"] for each in told.tasks.values())) == (due, due)
    assert sum(each["due"] for each in told.terminal_tasks.values()) == due
    assert sum(each["blocked"] for each in told.tasks.values()) == blocked
    assert sum(each["blocked"] for each in told.terminal_tasks.values()) == blocked
    waiting = f"waiting {due + blocked}: due {due}, blocked {blocked}"
    (tile,) = [tile for tile in told.overview["tiles"] if tile["label"] == "Waiting"]
    assert (tile["value"], tile["unit"]) == (str(due + blocked), f"{due} due, {blocked} blocked")
    jobs = {area.area: area.text for area in told.status.areas}["jobs"]
    assert jobs.startswith(waiting if due or blocked else "none waiting")
    reasons = {"LATE", "NAME-UNKNOWN", "WORKER-NONE", "WORKER-DRAINING"} & set(told.codes)
    is_late = told.largest("oldest_due_seconds", "job_name") > LATE_S
    assert is_late == bool(reasons and due)
    assert (told.total("jobs_unknown_name") > 0) == ("NAME-UNKNOWN" in told.codes)


def agree_on_workers(told: Voices) -> None:
    states = told.metrics.by(C + "workers", "state")
    alive = int(states["alive"] + states["draining"])
    assert told.overview["workers"] == alive
    assert told.overview["dead_workers"] == states["dead"] == told.codes.count("WORKER-DEAD")
    workers = {area.area: area.text for area in told.status.areas}["workers"]
    assert workers.startswith(f"{alive} alive, ")
    assert ("1 draining" in workers) == (states["draining"] == 1)


async def agree_on_jobs(world: ExpectedWorld, told: Voices) -> None:
    """A job has the state of its badge in searches too, and the numbers of the tabs are those of the jobs."""
    inspector, app = Inspector(world.scheduler), app_of(world)
    for job_id, state in world.states.items():
        (row,) = (await page(app, f"/jobs?q=id:{job_id}"))["items"]
        assert row["state"] == state
        found = await inspector.search_jobs(f"status:{state} id:{job_id}")
        assert [job.job_id for job in found.items] == [job_id]
    counts = {state: count.number for state, count in (await count_states(inspector)).items()}
    assert {state: counts[state] for state in set(world.states.values())} == Counter(world.states.values())
    assert counts["due"] == told.overview["due"]
    assert counts["blocked"] == told.overview["blocked"] == told.total("jobs_blocked", "on")


async def agree_on_schedules(world: ExpectedWorld, told: Voices) -> None:
    """A schedule is in the tab that its badge names, the numbers of the tabs add up, and alerts know it."""
    assert {each["schedule_id"]: each["state"] for each in told.schedules["items"]} == world.schedules
    counts, app = told.schedules["counts"], app_of(world)
    assert {state: counts[state] for state in SCHEDULE_STATES if counts[state]} == Counter(
        world.schedules.values()
    )
    assert sum(counts[state] for state in SCHEDULE_STATES) == counts["all"]
    text = {area.area: area.text for area in told.status.areas}["schedules"]
    overdue = told.metrics.by(C + "schedule_overdue_seconds", "schedule")
    for schedule_id, state in world.schedules.items():
        tab = await page(app, f"/schedules?state={state}")
        assert [each["schedule_id"] for each in tab["items"]] == [schedule_id]
        assert (await page(app, f"/schedule?id={schedule_id}"))["state"] == state
        assert f"1 {state}" in text
        assert (overdue[schedule_id] > OVERDUE_S) == (state == "overdue")
    assert ("SCHED-OVERDUE" in told.codes) == ("overdue" in world.schedules.values())


async def test_page_of_a_job_has_the_failure_rate_of_its_task(world: ExpectedWorld) -> None:
    await world.worker()
    await world.count(completed=12, failed=6, retried=8, snoozed=10, lost=4)
    await world.job("scheduled", due=HOUR)
    job = await page(app_of(world), "/job?id=scheduled")
    task = await page(app_of(world), f"/task?id={TASK}")
    assert job["last_runs"]["failed_share"] == task["task"]["failed_share"] == 0.6
