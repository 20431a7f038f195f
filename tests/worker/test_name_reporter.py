"""Reports of overdue jobs whose function no free worker has registered."""

from __future__ import annotations

import logging
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus, UnregisteredName
from tests.support.inside import Connections, Store
from tests.support.parts import Parts
from tests.support.worker import LEASE, Recorder, claim, new_job, new_worker


async def send_mail() -> None: ...


@pytest.fixture
def parts(connections: Connections, clock: FakeClock, bus: EventBus) -> Parts:
    parts = Parts(Store(connections, clock=clock), bus)
    parts.tasks.register(send_mail, name="shop.mail.send_mail")
    return parts


async def overdue(parts: Parts, clock: FakeClock, *names: str, seconds: float = 31) -> None:
    """Insert a job of each name, due so long ago, a millisecond after one another."""
    due = clock.now - timedelta(seconds=seconds)
    jobs = [
        new_job(f"{place:03}", name, execution_time=due + timedelta(milliseconds=place))
        for place, name in enumerate(names)
    ]
    await parts.store.inserts.insert(jobs)


async def test_scanner_reports_an_overdue_job_of_an_unregistered_name_with_a_similar_name(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    await overdue(parts, clock, "shop.mail.sned_mail", "shop.mail.sned_mail", "entirely.different")
    await parts.scanner().run_once()
    due = clock.now - timedelta(seconds=31)
    assert seen.of(UnregisteredName) == [
        UnregisteredName("shop.mail.sned_mail", 2, due, "shop.mail.send_mail"),
        UnregisteredName("entirely.different", 1, due + timedelta(milliseconds=2), None),
    ]


async def test_scanner_names_the_functions_of_a_bare_name_that_several_have(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    """A job of 0.2 has a bare name, which leads to a function only while no other function has it."""

    async def other() -> None: ...

    other.__name__ = "send_mail"
    parts.tasks.register(other, name="shop.letters.send")
    await overdue(parts, clock, "send_mail")
    await parts.scanner().run_once()
    [event] = seen.of(UnregisteredName)
    assert event.namesakes == ("shop.letters.send", "shop.mail.send_mail")


@pytest.mark.parametrize("case", ["registered", "not overdue", "before the calendar", "running"])
async def test_scanner_reports_no_other_jobs(
    parts: Parts, clock: FakeClock, seen: Recorder, pool: asyncpg.Pool, case: str
) -> None:
    name = "shop.mail.send_mail" if case == "registered" else "unknown"
    await overdue(parts, clock, name, seconds=29 if case == "not overdue" else 31)
    if case == "before the calendar":  # no worker claims it
        await pool.execute("UPDATE scheduled_jobs SET execution_time = '4000-01-01 BC'")
    elif case == "running":
        await parts.store.workers.register(new_worker("other"), LEASE)
        await parts.store.claims.exchange("other", ["unknown"], 1)
    await parts.scanner().run_once()
    assert seen.of(UnregisteredName) == []


async def test_names_are_reported_once_a_minute(parts: Parts, clock: FakeClock, seen: Recorder) -> None:
    await overdue(parts, clock, "unknown")
    scanner = parts.scanner()
    await scanner.run_once()
    await scanner.run_once()
    assert len(seen.of(UnregisteredName)) == 1
    scanner.report_interval_s = 0.0
    await scanner.run_once()
    await scanner.run_once()
    assert len(seen.of(UnregisteredName)) == 3


async def test_report_contains_ten_names_and_the_number_of_the_others(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    await overdue(parts, clock, *(f"unknown{number:02}" for number in range(13)))
    await parts.scanner().run_once()
    events = seen.of(UnregisteredName)
    assert [event.job_name for event in events] == [f"unknown{number:02}" for number in range(10)]
    assert [event.more_names for event in events] == [0] * 9 + [3]


async def test_report_reads_a_bounded_number_of_jobs(parts: Parts, clock: FakeClock, seen: Recorder) -> None:
    await overdue(parts, clock, "unknown", "unknown", "unknown", "beyond")
    scanner = parts.scanner()
    scanner.max_overdue = 2
    await scanner.run_once()
    assert [(event.job_name, event.jobs) for event in seen.of(UnregisteredName)] == [("unknown", 2)]


async def test_report_counts_the_workers_that_may_have_registered_the_name(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    await claim(parts.store, new_job("held", execution_time=clock.now), worker_id="busy")
    slots = new_worker("busy").max_concurrent_jobs
    await parts.store.workers.renew("busy", {f"job {number}": 1 for number in range(slots)}, LEASE)
    await parts.store.workers.register(new_worker("free"), LEASE)
    await overdue(parts, clock, "unknown")
    await parts.scanner().run_once()
    assert [event.busy_workers for event in seen.of(UnregisteredName)] == [1]


async def test_running_scheduler_warns_of_a_misspelled_name(
    pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler(pool)
    scheduler.register(send_mail, name="shop.mail.send_mail")
    seen = Recorder(scheduler)
    due = await pool.fetchval("SELECT now() - interval '40 s'")
    await scheduler.schedule_job("shop.mial.send_mail", due, {})
    with caplog.at_level(logging.WARNING, "pg_scheduler"):
        async with scheduler:
            await seen.until(UnregisteredName)
    [record] = [record for record in caplog.records if record.__dict__["event_type"] == "UnregisteredName"]
    assert record.levelname == "WARNING"
    assert record.__dict__["job_name"] == "shop.mial.send_mail"
    message = record.getMessage()
    assert message.startswith(
        "pending jobs reference the function shop.mial.send_mail, which is not registered"
    )
    assert message.endswith("or cancel the jobs; did you mean shop.mail.send_mail?")
