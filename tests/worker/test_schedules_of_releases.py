"""A schedule follows the live worker that started last, and fires while a live worker declares it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

import asyncpg
import pytest

from pg_scheduler import PeriodicJobConfig, Scheduler
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus
from pg_scheduler.schedules import declared as declared_module
from pg_scheduler.schedules.declarations import DeclaredSchedules
from pg_scheduler.schedules.planner import Planner
from pg_scheduler.worker.reporter import Reporter
from tests.support.inside import PeriodicCatalogue, Store, TaskRegistry, periodic_catalogue
from tests.support.parts import Calls, Parts

NOON = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
DAY_S = 86_400.0
MODULE = "shop_of_releases"
OLD, NEW = timedelta(minutes=3), timedelta(minutes=2)


@dataclass
class LiveWorker:
    """A live worker, of which only the planner is started."""

    worker_id: str
    store: Store
    planner: Planner
    catalogue: PeriodicCatalogue
    reporter: Reporter
    calls: Calls
    use_code: Callable[[], None]

    async def end(self) -> None:
        """Delete its row, as its shutdown and the rescuer of another worker do."""
        await self.store.workers.deregister(self.worker_id)

    async def check(self) -> None:
        """Make a pass of its planner like those every two minutes."""
        self.use_code()
        self.planner.check_fire_times()
        await self.planner.run_once()
        if "heartbeat_requested" in self.calls:
            self.calls.clear()
            await self.store.workers.renew(self.worker_id, {}, DAY_S, report=self.reporter.report())
            self.reporter.confirm()


Start = Callable[..., Awaitable[LiveWorker]]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of the periodic functions, which this process has imported."""
    module = ModuleType(MODULE)
    module.__spec__ = ModuleSpec(MODULE, None)
    monkeypatch.setitem(sys.modules, MODULE, module)


@pytest.fixture
def start(clocked: Store, bus: EventBus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return a function that starts a worker whose code declares schedules.

    Its process has names of functions of its own.
    """

    async def start_worker(
        worker_id: str, *configs: PeriodicJobConfig, aliases: Sequence[str] = ()
    ) -> LiveWorker:
        clock.advance(timedelta(seconds=1))
        catalogue = PeriodicCatalogue()
        functions = TaskRegistry()
        use_code = partial(monkeypatch.setattr, declared_module, "catalogue", functions)
        use_code()
        for config in configs:
            catalogue.add(config)
        if aliases:
            functions.register(configs[0].func, aliases=aliases)
        parts = Parts(clocked, bus, worker_id)
        parts.declared = DeclaredSchedules(clocked, clocked.schedules, catalogue)
        reporter = parts.reporter()
        await clocked.workers.register(reporter.worker, DAY_S, report=reporter.report(whole=True))
        reporter.confirm()
        planner = parts.planner()
        await planner.prepare()
        await planner.run_once()
        return LiveWorker(worker_id, clocked, planner, catalogue, reporter, parts.calls, use_code)

    return start_worker


def declare(every: timedelta, name: str = "alpha", key: str = "", task: str = "") -> PeriodicJobConfig:
    async def work() -> None: ...

    work.__module__, work.__qualname__ = MODULE, name
    return PeriodicJobConfig(work, every, dedup_key=key, job_name=task)


@dataclass
class Change:
    """What a release changes in a periodic function, together with its interval."""

    old: PeriodicJobConfig
    new: PeriodicJobConfig
    aliases: Sequence[str] = ()

    async def start_old(self, start: Start, worker_id: str) -> LiveWorker:
        return await start(worker_id, self.old, declare(OLD, "other", key="other"))

    async def start_new(self, start: Start, worker_id: str) -> LiveWorker:
        return await start(worker_id, self.new, declare(OLD, "other", key="other"), aliases=self.aliases)


CHANGES = {
    "the interval alone": Change(declare(OLD), declare(NEW)),
    "a name for the task": Change(declare(OLD), declare(NEW, task="reports")),
    "no name for the task": Change(declare(OLD, task="reports"), declare(NEW)),
    "another name for the task": Change(declare(OLD, task="reports"), declare(NEW, task="summaries")),
    "another function, which has an alias": Change(declare(OLD), declare(NEW, "beta"), [f"{MODULE}.alpha"]),
    "a key": Change(declare(OLD), declare(NEW, key="alpha")),
    "no key": Change(declare(OLD, key="alpha"), declare(NEW)),
    "a key and a name": Change(declare(OLD), declare(NEW, key="alpha", task="reports")),
}
of_each_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


async def described(pool: asyncpg.Pool) -> list[str]:
    """Return the triggers of the schedules that are not retired."""
    rows = await pool.fetch("SELECT described FROM scheduler_schedules WHERE retired_at IS NULL ORDER BY 1")
    return [row[0] for row in rows]


async def fire_times(pool: asyncpg.Pool) -> list[datetime]:
    rows = await pool.fetch("SELECT execution_time FROM scheduled_jobs ORDER BY 1")
    return [row[0] for row in rows]


@of_each_change
async def test_schedule_fires_again_for_the_older_release_whatever_a_canary_has_changed(
    start: Start, pool: asyncpg.Pool, clock: FakeClock, caplog: pytest.LogCaptureFixture, change: Change
) -> None:
    old = await change.start_old(start, "old")
    canary = await change.start_new(start, "canary")
    without = await start("without", declare(OLD, "other", key="other"))
    assert await described(pool) == ["every 2 minutes", "every 3 minutes"]
    for worker in (old, canary):
        await worker.check()
        assert await described(pool) == ["every 2 minutes", "every 3 minutes"]
    await canary.end()
    await without.check()
    assert await described(pool) == ["every 2 minutes", "every 3 minutes"], "the older release will move it"
    await old.check()
    assert await described(pool) == ["every 3 minutes", "every 3 minutes"]
    clock.advance(2 * OLD)
    await old.check()
    last_fires = await pool.fetch("SELECT last_fire_at FROM scheduler_schedules")
    assert len(last_fires) == 2
    assert all(row[0] is not None and row[0] > clock.now - OLD for row in last_fires)
    assert "fires no more" not in caplog.text


@of_each_change
async def test_paused_schedule_stays_paused_after_a_deployment_and_a_rollback(
    start: Start, pool: asyncpg.Pool, clocked: Store, change: Change
) -> None:
    old = await change.start_old(start, "old")
    await clocked.schedules.pause(change.old.dedup_key, "by hand")
    new = await change.start_new(start, "new")
    await old.end()
    await new.check()
    await new.end()
    await change.start_old(start, "rolled back")
    rows = await pool.fetch("SELECT described, note FROM scheduler_schedules ORDER BY note")
    assert [tuple(row) for row in rows] == [("every 3 minutes", "by hand"), ("every 3 minutes", None)]


async def test_edited_schedule_keeps_its_state_beside_a_retired_one_of_the_same_function(
    start: Start, pool: asyncpg.Pool, clocked: Store
) -> None:
    seven = declare(timedelta(minutes=7))
    first = await start("first", declare(OLD), seven)
    await first.end()
    second = await start("second", declare(OLD))
    await second.check()
    assert await described(pool) == ["every 3 minutes"], "the other one is retired"
    await clocked.schedules.pause(declare(OLD).dedup_key, "by hand")
    await second.end()
    await start("third", declare(NEW))
    rows = await pool.fetch("SELECT described, note FROM scheduler_schedules ORDER BY 1")
    assert [tuple(row) for row in rows] == [("every 2 minutes", "by hand"), ("every 7 minutes", None)]


@pytest.mark.parametrize("key", ["", "alpha"])
async def test_schedule_returns_to_the_older_release_when_the_newer_one_has_gone(
    start: Start, pool: asyncpg.Pool, clock: FakeClock, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    old = await start("old", declare(OLD, key=key))
    canary = await start("canary", declare(NEW, key=key))
    assert await described(pool) == ["every 2 minutes"]
    for _ in range(2):
        clock.advance(timedelta(minutes=2))
        for worker in (old, canary):
            await worker.check()
            assert await described(pool) == ["every 2 minutes"], "that of the worker that started last"
    await canary.end()
    for _ in range(5):
        clock.advance(timedelta(minutes=2))
        await old.check()
        assert await described(pool) == ["every 3 minutes"]
    planned = await fire_times(pool)
    assert len(planned) == len({*planned}), "each fire time once"
    assert planned[-1] > clock.now - OLD
    assert "fires no more" not in caplog.text


async def test_schedule_returns_to_the_newer_release_when_a_restarted_older_one_has_gone(
    start: Start, pool: asyncpg.Pool, clock: FakeClock
) -> None:
    crashed = await start("crashed", declare(OLD))
    new = await start("new", declare(NEW))
    await crashed.end()
    restarted = await start("restarted", declare(OLD))
    await new.check()
    assert await described(pool) == ["every 3 minutes"]
    await restarted.end()
    await new.check()
    assert await described(pool) == ["every 2 minutes"]
    clock.advance(2 * NEW)
    await new.check()
    assert await fire_times(pool) != []


async def test_schedule_follows_the_later_worker_when_the_older_one_imports_another_module(
    start: Start, pool: asyncpg.Pool
) -> None:
    old = await start("old", declare(OLD))
    new = await start("new", declare(NEW))
    old.catalogue.add(declare(timedelta(minutes=7), "late"))
    await old.check()
    assert await described(pool) == ["every 2 minutes", "every 7 minutes"]
    await new.end()
    await old.check()
    assert await described(pool) == ["every 3 minutes", "every 7 minutes"]


async def test_schedule_of_a_module_that_is_imported_after_the_start_is_not_retired(
    start: Start, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    old = await start("old", declare(OLD))
    old.catalogue.add(declare(timedelta(minutes=7), "late"))
    await old.check()
    canary = await start("canary", declare(NEW))
    for worker in (canary, old):
        await worker.check()
        assert await described(pool) == ["every 2 minutes", "every 7 minutes"]
    assert "fires no more" not in caplog.text


async def test_schedule_of_a_module_that_both_releases_import_after_the_start_follows_the_later_one(
    start: Start, pool: asyncpg.Pool
) -> None:
    old = await start("old", declare(OLD))
    canary = await start("canary", declare(OLD))
    for worker, every in ((old, timedelta(minutes=7)), (canary, timedelta(minutes=5))):
        worker.catalogue.add(declare(every, "late", key="late"))
        await worker.check()
    version = await pool.fetchval("SELECT version FROM scheduler_schedules WHERE schedule_id = 'late'")
    for worker in (old, canary):
        await worker.check()
    assert await described(pool) == ["every 3 minutes", "every 5 minutes"]
    last_version = await pool.fetchval("SELECT version FROM scheduler_schedules WHERE schedule_id = 'late'")
    assert last_version == version, "neither has written it again"


async def test_schedule_is_not_retired_while_a_live_worker_will_restore_it(
    start: Start, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    old = await start("old", declare(OLD), declare(OLD, "other", key="other"))
    canary = await start("canary", declare(NEW), declare(OLD, "other", key="other"))
    without = await start("without", declare(OLD, "other", key="other"))
    await canary.end()
    await without.check()
    assert await described(pool) == ["every 2 minutes", "every 3 minutes"]
    await old.check()
    assert await described(pool) == ["every 3 minutes", "every 3 minutes"]
    await old.end()
    await without.check()
    assert await described(pool) == ["every 3 minutes"]
    assert caplog.text.count("fires no more") == 1


async def test_function_keeps_a_schedule_when_a_release_that_gave_it_two_has_gone(
    start: Start, pool: asyncpg.Pool
) -> None:
    old = await start("old", declare(OLD))
    canary = await start("canary", declare(NEW), declare(timedelta(minutes=7)))
    assert await described(pool) == ["every 2 minutes", "every 7 minutes"]
    await canary.end()
    await old.check()
    await old.check()
    assert await described(pool) == ["every 3 minutes"], "the two others are retired"


async def test_schedule_stays_as_the_live_worker_declares_it_when_an_older_process_disables_it(
    start: Start, pool: asyncpg.Pool, clock: FakeClock
) -> None:
    worker = await start("worker", declare(NEW))
    periodic_catalogue.add(declare(OLD))
    web_process = Scheduler(pool, clock=clock)
    assert web_process.disable_periodic_job(declare(OLD).dedup_key)
    await web_process.shutdown()
    for _ in range(2):
        rows = await pool.fetch("SELECT described, paused_at IS NOT NULL FROM scheduler_schedules")
        assert [tuple(row) for row in rows] == [("every 2 minutes", True)]
        await worker.check()


async def test_schedule_stays_as_the_live_worker_declares_it_when_an_older_process_disables_another_one(
    start: Start, pool: asyncpg.Pool, clock: FakeClock
) -> None:
    await start("worker", declare(NEW))
    for config in (declare(OLD), declare(timedelta(minutes=7), "other", key="other")):
        periodic_catalogue.add(config)
    web_process = Scheduler(pool, clock=clock)
    assert web_process.disable_periodic_job("other")
    await web_process.shutdown()
    rows = await pool.fetch("SELECT described, paused_at IS NOT NULL FROM scheduler_schedules ORDER BY 1")
    assert [tuple(row) for row in rows] == [("every 2 minutes", False), ("every 7 minutes", True)]


async def test_schedule_that_a_person_removed_stays_removed_until_a_start(
    start: Start, pool: asyncpg.Pool, clocked: Store
) -> None:
    worker = await start("worker", declare(OLD, key="alpha"), declare(NEW, "beta"))
    await clocked.schedules.remove("alpha")
    await worker.check()
    assert await described(pool) == ["every 2 minutes"]
    await start("restarted", declare(OLD, key="alpha"), declare(NEW, "beta"))
    assert await described(pool) == ["every 2 minutes", "every 3 minutes"]


async def test_schedule_that_another_transaction_holds_is_restored_by_a_later_pass(
    start: Start, pool: asyncpg.Pool
) -> None:
    old = await start("old", declare(OLD))
    canary = await start("canary", declare(NEW))
    await canary.end()
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduler_schedules FOR UPDATE")
        await old.check()
    assert await described(pool) == ["every 2 minutes"]
    await old.check()
    assert await described(pool) == ["every 3 minutes"]


async def test_schedule_of_a_service_with_a_module_of_the_same_name_is_not_retired(
    start: Start, pool: asyncpg.Pool
) -> None:
    mail = await start("mail", declare(OLD, "mail"), declare(OLD, "newsletter"))
    billing = await start("billing", declare(NEW, "billing"))
    await billing.end()
    await mail.check()
    assert await described(pool) == ["every 2 minutes", "every 3 minutes", "every 3 minutes"]
    await mail.end()
    mail = await start("mail of another release", declare(OLD, "mail"))
    await mail.check()
    assert await described(pool) == ["every 2 minutes", "every 3 minutes"], "its own one is retired"


@pytest.mark.parametrize("key", ["", "mail-cleanup"])
async def test_schedule_of_a_service_stays_when_another_one_has_its_function_as_another_task(
    start: Start, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    billing = await start(
        "billing", declare(OLD, "cleanup", task="billing.cleanup"), declare(OLD, "invoices", task="invoices")
    )
    mail = await start("mail", declare(NEW, "cleanup", key, task="mail.cleanup"))
    for worker in (billing, mail, billing, mail):
        await worker.check()
        assert await described(pool) == ["every 2 minutes", "every 3 minutes", "every 3 minutes"]
    await billing.end()
    await mail.check()
    assert await described(pool) == ["every 2 minutes", "every 3 minutes", "every 3 minutes"]
    assert "fires no more" not in caplog.text


async def test_schedule_of_a_service_stays_when_a_canary_has_moved_the_only_one_of_another(
    start: Start, pool: asyncpg.Pool
) -> None:
    mail = await start("mail", declare(timedelta(minutes=7), "mail"))
    await mail.end()
    billing = await start("billing", declare(OLD, "billing"))
    await start("canary of billing", declare(NEW, "billing"))
    await billing.check()
    assert await described(pool) == ["every 2 minutes", "every 7 minutes"]


async def test_new_schedule_of_a_function_is_not_paused_as_a_retired_one_was(
    start: Start, pool: asyncpg.Pool, clocked: Store
) -> None:
    first = await start("first", declare(OLD), declare(timedelta(minutes=7), key="nightly"))
    await clocked.schedules.pause("nightly", "by hand")
    await first.end()
    second = await start("second", declare(OLD))
    await second.check()
    await second.end()
    await start("third", declare(OLD), declare(NEW))
    rows = await pool.fetch("SELECT described, note FROM scheduler_schedules ORDER BY 1")
    assert [tuple(row) for row in rows] == [
        ("every 2 minutes", None),
        ("every 3 minutes", None),
        ("every 7 minutes", "by hand"),
    ]


@pytest.mark.parametrize("is_first", [True, False])
async def test_schedule_keeps_its_pause_when_its_function_takes_over_another_one(
    start: Start, pool: asyncpg.Pool, clocked: Store, is_first: bool
) -> None:
    alpha, beta = declare(OLD), declare(timedelta(minutes=7), "beta")
    old = await start("old", *((alpha, beta) if is_first else (beta, alpha)))
    await clocked.schedules.pause(alpha.dedup_key, "by hand")
    new = await start("new", declare(NEW), aliases=[f"{MODULE}.beta"])
    await old.end()
    await new.check()
    await new.end()
    rows = await pool.fetch("SELECT described, note FROM scheduler_schedules ORDER BY 1")
    assert [tuple(row) for row in rows] == [("every 2 minutes", "by hand"), ("every 7 minutes", None)]


async def test_schedule_of_a_service_is_retired_when_its_only_schedule_has_another_key(
    start: Start, pool: asyncpg.Pool
) -> None:
    old = await start("old", declare(OLD, key="gone"))
    await old.end()
    new = await start("new", declare(NEW, key="new key"))
    await new.check()
    assert await described(pool) == ["every 2 minutes"]


async def test_schedule_is_not_retired_any_more_when_a_live_worker_plans_or_checks_it(
    start: Start, pool: asyncpg.Pool, clock: FakeClock
) -> None:
    worker = await start("suspended meanwhile", declare(OLD))
    for make_pass in (worker.planner.run_once, worker.check):
        await pool.execute("UPDATE scheduler_schedules SET retired_at = $1", clock.now)
        clock.advance(OLD)
        await make_pass()
        assert await described(pool) == ["every 3 minutes"]
    clock.advance(timedelta(seconds=1))
    await pool.execute("UPDATE scheduler_schedules SET retired_at = $1", clock.now)
    await worker.check()
    assert await described(pool) == ["every 3 minutes"], "no fire time was due"
