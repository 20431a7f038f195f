"""Each service that acts on pauses makes sure that they are fresh, before it does anything else."""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

import pg_scheduler
from pg_scheduler import Scheduler, Share
from pg_scheduler.admission.pause_watcher import PauseWatcher
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.scheduler.runtime import Runtime
from pg_scheduler.scheduler.wiring import wiring
from pg_scheduler.worker.service import Service
from pg_scheduler.worker.signals import Signal
from tests.support.inside import TaskOptions, worker_of
from tests.support.parts import Parts
from tests.support.worker import LEASE, kill_backends, new_job, new_worker, statuses

READS = {"names", "unexpiring_names"}
"""What `Routing` derives from the pauses."""

EXEMPT = {
    "PauseWatcher": "reads them",
    "Routing": "has them",
    "Unblocker": "starts no job: one that is unblocked too early waits in the claim index",
    "KitScheduler": "reads them before its first job, in the transaction of a test",
}


def classes_that_read_the_routing() -> set[str]:
    """Return the classes with a method that uses ``routing.names`` or the like, by their source."""
    names = set()
    for path in Path(pg_scheduler.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(part, ast.Attribute)
                and part.attr in READS
                and isinstance(part.value, (ast.Attribute, ast.Name))
                and (part.value.attr if isinstance(part.value, ast.Attribute) else part.value.id)
                in {"routing", "_routing"}
                for part in ast.walk(node)
            ):
                names.add(node.name)
    return names


async def work() -> None: ...


async def shared_work(tenant: str) -> None: ...


@pytest.fixture
async def services(parts: Parts) -> AsyncIterator[dict[str, Service]]:
    """The services, in a state in which a pass has work to do."""
    await parts.store.workers.register(new_worker(), LEASE)
    parts.lease.renewed(float("inf"))
    parts.tasks.register(work, name="work")
    options = TaskOptions(share=Share(key=lambda tenant: tenant))
    parts.tasks.register(shared_work, name="shared", options=options)
    claimer = parts.claimer()
    scanner = parts.head_scanner(claimer)
    claimer.cursor.is_kept = True
    services: list[Service] = [claimer, scanner, parts.expirer(), parts.feeder()]
    yield {type(service).__name__: service for service in services}
    parts.known_pauses.end()


async def test_every_service_that_acts_on_pauses_refuses_to_while_they_cannot_be_read(
    parts: Parts, services: dict[str, Service]
) -> None:
    assert classes_that_read_the_routing() - EXEMPT.keys() == services.keys()

    async def read() -> None:
        raise DatabaseUnavailableError("no answer")

    parts.known_pauses.begin(read)
    jobs = [new_job("due", "work"), new_job("late", "unknown", misfire_grace_time=0)]
    await parts.store.inserts.insert(jobs)
    for service in services.values():
        with pytest.raises(DatabaseUnavailableError, match="no answer"):
            await service.run_once()
    assert await statuses(parts.store, "due", "late") == ["pending", "pending"]
    parts.known_pauses.end()
    for service in services.values():
        await service.run_once()
    assert await statuses(parts.store, "due", "late") == ["running", "expired"]


async def test_outage_of_any_service_makes_pauses_stale(pool: asyncpg.Pool) -> None:
    async with Scheduler(pool) as scheduler:
        runtime = worker_of(scheduler)
        lost = runtime.node.signals.connection_lost
        assert all(part.on_outage is lost for part in runtime.parts if isinstance(part, Service))
        signals = {name: signal for name, signal in runtime.node.signals if is_reason(signal, runtime)}
    assert signals.keys() == {"notifications_up", "clock_stepped", "connection_lost", "database_up"}


def is_reason(signal: Signal, runtime: Runtime) -> bool:
    """Return whether a signal makes pauses stale, before it wakes anything."""
    (receivers,) = (receivers for wired, receivers in wiring(runtime) if wired is signal)
    return receivers[0] == runtime.node.known_pauses.mark_stale


async def test_lost_listener_makes_pauses_stale(parts: Parts, dsn: str) -> None:
    listener = parts.listener()
    await listener.run_once()
    parts.calls.clear()
    await kill_backends(dsn, "LISTEN%")
    await parts.calls.until("connection_lost", "notifications_lost")
    await listener.drain()


@pytest.mark.parametrize("is_readable", [True, False])
async def test_claimer_starts_no_job_that_was_paused_during_its_claim(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    await parts.store.workers.register(new_worker(), LEASE)
    parts.lease.renewed(float("inf"))
    for name in ("paused", "other"):
        parts.tasks.register(work, name=name)
    watcher = PauseWatcher(parts, parts.store.pauses)
    await watcher.prepare()
    await watcher.run_once()
    await parts.store.inserts.insert([new_job("a", "paused"), new_job("b", "other")])
    exchange = parts.store.claims.exchange

    async def exchange_slowly(*args: object, **options: object) -> object:
        """Claim, and receive the answer only after the outage in which the task was paused."""
        result = await exchange(*args, **options)  # type: ignore[arg-type]
        await parts.store.pauses.pause("paused", None, None, "ada")
        parts.known_pauses.mark_stale()
        if not is_readable:
            monkeypatch.setattr(parts.store.pauses, "paused", fail)
        return result

    async def fail() -> None:
        raise DatabaseUnavailableError("no answer")

    claimer, completer = parts.claimer(), parts.completer()
    with monkeypatch.context() as patch:
        patch.setattr(parts.store.claims, "exchange", exchange_slowly)
        if is_readable:
            await claimer.run_once()
        else:
            with pytest.raises(DatabaseUnavailableError, match="no answer"):
                await claimer.run_once()
    monkeypatch.undo()
    assert "a" not in parts.in_flight.attempts
    await claimer.run_once()
    await completer.run_once()
    assert await statuses(parts.store, "a") == ["pending"]
    await watcher.drain()
