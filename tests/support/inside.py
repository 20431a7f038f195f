"""The doors by which tests reach inside the engine.

A test imports what users import from the public modules, and takes what it needs beyond that from here. So a
module of the engine that moves, or a part that gets another name, is adapted in this file only. Look for a
public name, the fixture ``world`` or an event first. Add a name here if several files need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pg_scheduler import Scheduler
from pg_scheduler.base.settings import SchedulerConfig
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.queue.enqueuer import Enqueuer
from pg_scheduler.queue.outbox import Outbox
from pg_scheduler.scheduler.parts import parts_of
from pg_scheduler.scheduler.runtime import Part, Runtime
from pg_scheduler.scheduler.store import Store
from pg_scheduler.schedules.declarations import DeclaredSchedules
from pg_scheduler.testing import TestScheduler

# What a Scheduler is made of


def bus_of(scheduler: Scheduler) -> EventBus:
    """Return the bus on which a Scheduler publishes its events."""
    return parts_of(scheduler).events


def clock_of(kit: TestScheduler) -> FakeClock:
    """Return the clock of a test kit, to set it back too."""
    return kit._clock


def config_of(scheduler: Scheduler) -> SchedulerConfig:
    """Return the checked settings of a Scheduler."""
    return parts_of(scheduler).config


def declarations_of(scheduler: Scheduler) -> DeclaredSchedules:
    """Return the schedules that the code declares, which a Scheduler writes to the database."""
    return parts_of(scheduler).declared


def enqueuer_of(scheduler: Scheduler) -> Enqueuer:
    """Return the part that makes rows of the jobs that are enqueued, of a Scheduler without middleware."""
    assert not is_enqueuer_wrapped(scheduler)
    return cast("Enqueuer", parts_of(scheduler).enqueuer)


def fault_of(scheduler: Scheduler) -> BaseException | None:
    """Return the error that stopped the worker of a Scheduler, None if none did."""
    return parts_of(scheduler).life.fault


def is_enqueuer_wrapped(scheduler: Scheduler) -> bool:
    """Return whether middleware is called for each job that is enqueued."""
    return type(parts_of(scheduler).enqueuer) is not Enqueuer


def outbox_of(scheduler: Scheduler) -> Outbox:
    """Return the part that notifies other nodes."""
    return parts_of(scheduler).outbox


def reads_of(inspector: Inspector) -> InspectionStore:
    """Return the tables of an Inspector, as it reads them."""
    return tables_of(inspector).reads


def refused_consequences(scheduler: Scheduler) -> dict[str, float]:
    """Return the jobs whose consequences the table has refused, and when each is tried again."""
    return store_of(scheduler).consequences._pause_ends


def registry_of(scheduler: Scheduler) -> TaskRegistry:
    """Return the tasks that a Scheduler knows."""
    return parts_of(scheduler).tasks


def services_of(scheduler: Scheduler) -> Sequence[Part]:
    """Return the services of the worker of a Scheduler, in the order of their start."""
    return worker_of(scheduler).supervisor._parts


def set_server_start_grace(scheduler: Scheduler, seconds: float) -> None:
    """Set how long after the server's start a free liveness lock is no sign of a death."""
    store_of(scheduler).workers._server_start_grace_s = seconds


def store_of(scheduler: Scheduler) -> Store:
    """Return the tables of a Scheduler."""
    return parts_of(scheduler).store


def worker_of(scheduler: Scheduler) -> Runtime:
    """Return the parts of the worker of a Scheduler that runs."""
    runtime = parts_of(scheduler).runtime
    assert runtime, "the worker is stopped"
    return runtime
