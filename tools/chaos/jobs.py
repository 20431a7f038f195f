"""The jobs: ordinary functions that record their attempts in the ledger."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from pg_scheduler import Limit, Unique, current_job, job, periodic
from pg_scheduler.errors import JobCancelledError
from pg_scheduler.integrations.fernet import FernetCodec
from pg_scheduler.sync import AttemptEnded
from tools.chaos.ledger import CANCELLED, DIED, DONE, RAISED, Ledger, ParentLedger

STEP: Final = timedelta(seconds=1)
PERIODIC: Final = ("chaos.tick", "chaos.tock")
IN_TURN: Final = "chaos.in_turn"
THREAD_IN_TURN: Final = "chaos.thread_in_turn"
ONE_BY_ONE: Final = (IN_TURN, THREAD_IN_TURN)
"""The jobs of the schedules that are added at run time and whose jobs may not overlap."""

ALLOWED: Final = "chaos.allowed"
"""The job of the schedule whose jobs may overlap."""

SCHEDULED: Final = (*ONE_BY_ONE, ALLOWED)

LIMITED: Final = "chaos.limited"
MAX_RUNNING: Final = 3

RATED: Final = "chaos.rated"
MAX_STARTS: Final = 3
PER: Final = timedelta(seconds=2)

KEYED: Final = "chaos.keyed"

TRIGGERED: Final = "chaos.triggered"
"""The job of the schedule that callers trigger; its jobs run one by one."""

BLOCKED: Final = frozenset({*ONE_BY_ONE, LIMITED, RATED, KEYED, TRIGGERED})
"""The jobs that may wait for others when they are due."""

UNIQUE: Final = "chaos.unique"

ALERTING: Final = "chaos.alerting"
ALERT: Final = "chaos.alert"
ALERTED: Final = "Alerted"
"""The record of an alert: its id, and that of the job that failed."""

ENDLESS: Final = ("chaos.endless", "chaos.thread_endless")
"""The jobs that exceed their timeout."""

LINGER_S: Final = 0.3
"""Seconds for which a cancelled thread runs on after it has noticed its cancellation."""

KEY: Final = base64.urlsafe_b64encode(bytes(range(32)))
"""The key of all codecs."""

_ledgers: list[Ledger] = []


def use(ledger: Ledger) -> None:
    """Set the ledger of this process and of its child processes."""
    _ledgers[:] = [ledger]
    os.environ.update(ledger.environment)


def ledger() -> Ledger:
    """Return the ledger of this process, or of its parent."""
    if not _ledgers:
        _ledgers.append(ParentLedger())
    return _ledgers[0]


def value_of(job_id: str, attempt: int, worker_id: str | None) -> str:
    """Return the value that only this attempt returns."""
    return f"{job_id} {attempt} {worker_id}"


@contextmanager
def entry(version: int = 0) -> Iterator[int]:
    """Record the start and the end of an attempt; yield its number."""
    this = current_job()
    ledger().start(this.job_id, this.attempt, version)
    outcome = RAISED
    try:
        yield this.attempt
        outcome = DONE
    except (asyncio.CancelledError, AttemptEnded, JobCancelledError):
        outcome = CANCELLED
        raise
    finally:
        ledger().end(this.job_id, this.attempt, outcome)


def codec(*, encrypts: bool) -> FernetCodec:
    """Return the codec of a Scheduler. All decrypt; those that do not encrypt store plain texts."""
    return FernetCodec([KEY], encrypt=encrypts)


def own_value() -> str:
    """Return the value of the attempt that runs."""
    this = current_job()
    return value_of(this.job_id, this.attempt, ledger().worker_id)


def pause(seconds: float) -> None:
    """Sleep; ``time.sleep()`` fails under libfaketime 0.9.10."""
    select.select([], [], [], seconds)


@job(name="chaos.quick")
async def quick(version: int = 0) -> None:
    """Complete immediately."""
    with entry(version):
        await asyncio.sleep(0)


@job(name="chaos.slow")
async def slow(version: int = 0) -> None:
    """Run long enough to be interrupted by a fault."""
    with entry(version):
        await asyncio.sleep(random.uniform(0.1, 2))


@job(name="chaos.flaky")
async def flaky() -> None:
    """Fail at the first attempt."""
    with entry() as attempt:
        await asyncio.sleep(0)
        if attempt == 1:
            raise ConnectionError("the first attempt always fails")


@job(name="chaos.broken")
async def broken() -> None:
    """Fail at every attempt."""
    with entry():
        await asyncio.sleep(0)
        raise LookupError("this job always fails")


@job(name=ALERT, max_retries=20)
async def alert(job_id: str, job_name: str, error: str | None, attempts: int) -> None:  # noqa: ARG001 - as given
    """Record of which job it is the alert."""
    with entry():
        ledger().write(ALERTED, current_job().job_id, job_id)


@job(name=ALERTING, on_failure=ALERT)
async def alerting() -> None:
    """Fail at every attempt; the failure enqueues an alert."""
    with entry():
        await asyncio.sleep(0)
        raise LookupError("this job always fails")


@job(name=TRIGGERED)
async def triggered() -> None:
    """Run when a caller triggers its schedule."""
    with entry():
        await asyncio.sleep(0)


@job(name="chaos.value")
async def value(secret: str = "") -> str:  # noqa: ARG001 - some are encrypted
    """Return a value."""
    with entry():
        await asyncio.sleep(random.uniform(0, 0.5))
        return own_value()


@job(name="chaos.broken_value")
async def broken_value() -> str:
    """Fail instead of returning a value."""
    with entry():
        await asyncio.sleep(0)
        raise LookupError("this job always fails")


@job(name="chaos.thread_value")
def thread_value() -> str:
    """Return a value from a thread that ends when it is cancelled."""
    with entry():
        for _ in range(random.randrange(20)):
            current_job().raise_if_cancelled()
            pause(0.05)
        return own_value()


@job(name="chaos.process_value", executor="process")
def process_value(*, dies: bool) -> str:
    """Return a value from a child process; with ``dies``, it dies in the first attempt."""
    with entry() as attempt:
        pause(random.uniform(0, 0.3))
        if dies and attempt == 1:
            this = current_job()
            ledger().end(this.job_id, attempt, DIED)
            os.kill(os.getpid(), signal.SIGKILL)
        return own_value()


@job(name=ENDLESS[0])
async def endless() -> None:
    """Run until the attempt is cancelled, as by its timeout."""
    with entry():
        await asyncio.Event().wait()


@job(name=ENDLESS[1], executor="thread")
def thread_endless() -> None:
    """Do the same in a thread."""
    with entry():
        while True:
            current_job().raise_if_cancelled()
            pause(0.05)


@job(name=LIMITED, limits=[Limit(max_running=MAX_RUNNING)])
async def limited() -> None:
    """Run while at most two others run, on all workers."""
    with entry():
        await asyncio.sleep(random.uniform(0.1, 0.5))


@job(name=RATED, limits=[Limit(max_starts=MAX_STARTS, per=PER)])
async def rated(*, fails: bool = False) -> None:
    """Start at a limited rate, on all workers; with ``fails``, fail at the first attempt."""
    with entry() as attempt:
        await asyncio.sleep(0)
        if fails and attempt == 1:
            raise ConnectionError("the first attempt fails")


@job(name=KEYED, limits=[Limit(max_running=1, key=lambda key: key)])
async def keyed(key: int) -> None:  # noqa: ARG001 - the key of the limit
    """Run while no other job of the key runs, on all workers."""
    with entry():
        await asyncio.sleep(random.uniform(0.1, 0.5))


@job(name=UNIQUE, unique=Unique(args=("key",)))
async def unique(key: int, *, fails: bool = False) -> None:  # noqa: ARG001 - the key of the job
    """Run while no other job of the key is unfinished; with ``fails``, fail at the first attempt."""
    with entry() as attempt:
        await asyncio.sleep(random.uniform(0.1, 1))
        if fails and attempt == 1:
            raise ConnectionError("the first attempt fails")


@job(name=IN_TURN)
async def in_turn() -> None:
    """Run, at times for longer than the interval of its schedule, while no other job of that runs."""
    with entry():
        await asyncio.sleep(random.choice((0.1, 0.2, 0.3, 2.5)))


@job(name=THREAD_IN_TURN, executor="thread")
def thread_in_turn() -> None:
    """Do the same in a thread that notices its cancellation late and ends a moment later."""
    with entry():
        for _ in range(random.choice((2, 4, 6, 50))):
            if current_job().is_cancelled:
                pause(LINGER_S)
                current_job().raise_if_cancelled()
            pause(0.05)


@job(name=ALLOWED)
async def allowed() -> None:
    """Run, at times for longer than the interval of its schedule."""
    with entry():
        await asyncio.sleep(random.choice((0.1, 0.2, 1.5)))


@periodic(every=STEP, job_name=PERIODIC[0], dedup_key=PERIODIC[0])
async def tick() -> None:
    """Run every second, by interval."""
    with entry():
        await asyncio.sleep(0)


@periodic(cron="* * * * * *", job_name=PERIODIC[1], dedup_key=PERIODIC[1])
async def tock() -> None:
    """Run every second, by cron."""
    with entry():
        await asyncio.sleep(0)


FUNCTIONS: Final = (
    *(quick, slow, flaky, broken, limited, rated, keyed, unique),
    *(in_turn, thread_in_turn, allowed),
    *(alert, alerting, triggered),
    *(value, broken_value, thread_value, process_value, endless, thread_endless),
)
"""All but the periodic ones."""
