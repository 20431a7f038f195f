"""The jobs of the rehearsal, and the Scheduler of its processes: an application that both releases import.

A task whose decorator needs an option that a release does not have is not declared under this release, as in
an application whose code is deployed together with the library. Each job has a tag as its first argument, and
records under it what it does.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg

import pg_scheduler
from pg_scheduler import (
    CatchUp,
    Limit,
    ProcessExecutor,
    Retry,
    Scheduler,
    Share,
    Unique,
    call,
    current_job,
    job,
    periodic,
)
from tools.upgrade.ledger import DSN_VARIABLE, LIBRARY_VARIABLE, gate_is_open, record

WAIT_S: Final = 8.0
"""How long jobs sleep and wait for a retry: longer than a release is replaced, on an idle machine."""

POLL_S: Final = 0.02
KEPT: Final = timedelta(hours=1)
TICK: Final = "ticks"
"""The tag of the jobs of the schedule in the code."""


def has(function: Any, *options: str) -> bool:
    """Return whether this release has the options of a function."""
    return set(options) <= inspect.signature(function).parameters.keys()


HAS_CHUNKS: Final = has(job, "chunk")
HAS_DEBOUNCE: Final = has(Unique, "debounce")
HAS_DEADLINES: Final = has(job, "deadline")
HAS_MAILBOXES: Final = hasattr(Scheduler, "send")
HAS_SEQUENCES: Final = has(job, "sequence")
HAS_STREAMS: Final = hasattr(Scheduler, "stream")


@contextmanager
def attempt(tag: str) -> Iterator[None]:
    """Record the beginning and the end of an attempt, and whether it succeeded."""
    record(tag, "began")
    try:
        yield
        record(tag, "ran")
    finally:
        record(tag, "left")


async def wait_for_gate(tag: str) -> None:
    """Wait until the jobs of the phase may continue."""
    while not gate_is_open(tag):  # noqa: ASYNC110 - a file raises no event
        await asyncio.sleep(POLL_S)


def batch_of(tag: str) -> str:
    """Return the phase and the kind of a job, for the keys of limits and sequences."""
    return tag.rpartition(":")[0]


async def record_step(tag: str, event: str) -> str:
    """Record an event as a durable step."""
    record(tag, event)
    return tag


@job(name="rehearsal.note")
async def note(tag: str) -> None:
    """Complete at once."""
    record(tag, "ran")


@job(name="rehearsal.hold")
async def hold(tag: str) -> None:
    """Run in the event loop until the gate opens."""
    with attempt(tag):
        await wait_for_gate(tag)


@job(name="rehearsal.hold_thread")
def hold_thread(tag: str) -> None:
    """Run in a thread until the gate opens."""
    with attempt(tag):
        while not gate_is_open(tag):
            current_job().raise_if_cancelled()
            time.sleep(POLL_S)


@job(name="rehearsal.hold_process", executor="process")
def hold_process(tag: str) -> None:
    """Run in a process until the gate opens."""
    with attempt(tag):
        while not gate_is_open(tag):
            time.sleep(POLL_S)


@job(name="rehearsal.stumble", max_retries=1)
async def stumble(tag: str) -> None:
    """Fail in the first attempt, and wait for the retry."""
    if current_job().retry_count == 0:
        record(tag, "failed")
        raise Retry(WAIT_S)
    record(tag, "ran")


@job(name="rehearsal.limited", limits=[Limit(max_running=1, key=batch_of)])
async def limited(tag: str) -> None:
    """Run alone among the jobs of the phase."""
    with attempt(tag):
        await wait_for_gate(tag)


@job(name="rehearsal.shared", share=Share(key=batch_of))
async def shared(tag: str) -> None:
    """Take turns with the jobs of other phases."""
    record(tag, "ran")


@job(name="rehearsal.unique", unique=Unique(args=("tag",)))
async def unique(tag: str) -> None:
    """Run once for all calls with the tag."""
    record(tag, "ran")


@job(name="rehearsal.paused")
async def paused(tag: str) -> None:
    """Wait until the pause of the task ends."""
    record(tag, "ran")


@job(name="rehearsal.sleeper")
async def sleeper(tag: str) -> None:
    """Store a step, sleep, and write in the transaction of another step."""
    steps = current_job().steps
    await steps.run("first", record_step, tag, "stored")
    await steps.sleep("nap", WAIT_S)
    await steps.transaction("effect", insert_effect, tag)
    record(tag, "ran")


async def insert_effect(connection: Any, tag: str) -> None:
    """Write what must be there once."""
    await connection.execute("INSERT INTO rehearsal_effects VALUES ($1)", tag)


@job(name="rehearsal.attendee")
async def attendee(tag: str) -> None:
    """Store a step, and wait for a signal with the tag."""
    steps = current_job().steps
    await steps.run("first", record_step, tag, "stored")
    if await steps.wait("approval") == tag:
        record(tag, "ran")


@job(name="rehearsal.parent")
async def parent(tag: str) -> None:
    """Run two children and wait for both."""
    values = await current_job().steps.gather("children", [call(child, f"{tag}/{name}") for name in "ab"])
    if values == [f"{tag}/a", f"{tag}/b"]:
        record(tag, "ran")


@job(name="rehearsal.child")
async def child(tag: str) -> str:
    """Run until the gate opens."""
    with attempt(tag):
        await wait_for_gate(tag)
    return tag


@job(name="rehearsal.completing")
async def completing(tag: str) -> None:
    """Write in the transaction that completes the job."""
    async with current_job().completing() as connection:
        await insert_effect(connection, tag)
    record(tag, "ran")


@job(name="rehearsal.giver", keep_result=KEPT)
async def giver(tag: str) -> dict[str, str]:
    """Return what is kept."""
    record(tag, "ran")
    return {"tag": tag}


@job(name="rehearsal.taker")
async def taker(tag: str) -> None:
    """Receive the result of the job before."""
    values = [result.unwrap(dict) async for result in current_job().predecessors()]
    if values == [{"tag": f"{tag}/before"}]:
        record(tag, "ran")


def record_fire_time(tag: str) -> None:
    """Record for which fire time of a schedule the job runs."""
    fire_time = current_job().fire_time
    record(tag, "ran", fire_time=fire_time.isoformat() if fire_time else None)


@job(name="rehearsal.fire")
async def fire(tag: str) -> None:
    """Run for a schedule that was added at run time."""
    record_fire_time(tag)


@periodic(every=timedelta(seconds=1), dedup_key="rehearsal.tick", catch_up=CatchUp.all())
async def tick() -> None:
    """Run each second."""
    record_fire_time(TICK)


if HAS_CHUNKS:

    @job(name="rehearsal.chunk", chunk=100)
    async def chunk(jobs: pg_scheduler.Chunk[str]) -> None:
        """Handle all jobs at once, when the gate opens."""
        for member in jobs:
            record(member.item, "began")
        await wait_for_gate(jobs.jobs[0].item)
        for member in jobs:
            record(member.item, "ran")


if HAS_SEQUENCES:

    @job(name="rehearsal.ordered", sequence=batch_of)
    async def ordered(tag: str) -> None:
        """Run behind the job before it."""
        with attempt(tag):
            await wait_for_gate(tag)


if HAS_STREAMS:

    @job(name="rehearsal.speaker")
    async def speaker(tag: str) -> None:
        """Publish a value and an item, and another item when the gate opens."""
        with attempt(tag):
            await current_job().publish("tag", tag)
            words = current_job().stream("words")
            await words.append("first", number=1)
            await wait_for_gate(tag)
            await words.append("second", number=2)


if HAS_MAILBOXES:

    @job(name="rehearsal.listener")
    async def listener(tag: str) -> None:
        """Receive two messages."""
        steps = current_job().steps
        if [await steps.receive("items") for _ in range(2)] == ["first", "second"]:
            record(tag, "ran")


if HAS_DEBOUNCE:

    @job(name="rehearsal.debounced", unique=Unique(args=("tag",), debounce=WAIT_S))
    async def debounced(tag: str, version: int) -> None:
        """Run once, with the arguments of the last call."""
        record(tag, "ran" if version == 2 else "ran with an earlier version")


def check_library() -> None:
    """Stop a process that has not imported the release that it is to run."""
    folder, library = Path(pg_scheduler.__file__), os.environ[LIBRARY_VARIABLE]
    if not folder.is_relative_to(library):
        raise RuntimeError(f"pg_scheduler was imported from {folder}, not from {library}; check PYTHONPATH")


@asynccontextmanager
async def open_scheduler() -> AsyncIterator[Scheduler]:
    """Open the Scheduler of a worker or of a process that only calls it."""
    check_library()
    async with asyncpg.create_pool(os.environ[DSN_VARIABLE], min_size=1, max_size=8) as pool:
        yield Scheduler(
            pool,
            max_concurrent_jobs=100,
            misfire_grace_time=None,
            shutdown_timeout=1,
            stop_grace=5,
            executors={"process": ProcessExecutor(processes=2)},
        )
