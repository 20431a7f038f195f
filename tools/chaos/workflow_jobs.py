"""Jobs in families, with deadlines, streams and mailboxes, in sequences and chunks, and debounced ones.

As the durable jobs, each records what it receives in the ledger.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any, Final

from pg_scheduler import Abort, Chunk, RetryPolicy, Sequence, StepFailedError, Unique, call, current_job, job
from pg_scheduler.errors import JobFailedError
from tools.chaos import jobs
from tools.chaos.durable_jobs import MAX_RETRIES, RETRY, compute, receive, record_call
from tools.chaos.jobs import entry, ledger, own_value
from tools.chaos.ledger import CANCELLED, DONE, RAISED

FAMILY: Final = "chaos.family"
CLEAN_UP: Final = "chaos.clean_up"
RESERVE: Final = "reserve"
BOOKING: Final = "booking"
DETACHED: Final = (BOOKING, f"{BOOKING}:receipt")
MEMBERS: Final = (*(f"members:{number}" for number in range(2)), "branch", "branch:leaf")
"""What follows the id of a family in those of its children: the detached ones, and those that never end."""

HARVEST: Final = "chaos.harvest"
CROPS: Final = tuple(f"crops:{number}" for number in range(3))

CHILDREN_OF_FAMILIES: Final = frozenset({*DETACHED, *MEMBERS, *CROPS})

BOUNDED: Final = "chaos.bounded"
WAYS: Final = ("sleeps", "waits", "runs", "fails")
"""What a job does until its deadline."""

UNRELIABLE: Final = "chaos.unreliable"
BANK: Final = "bank"
BANK_RETRIES: Final = 3
BANK_RETRY: Final = RetryPolicy(base=timedelta(seconds=0.3), maximum=timedelta(seconds=1))
"""The step that fails at each call, and how often it is called again."""

SPEAKER: Final = "chaos.speaker"
WORDS: Final = "words"
NAME: Final = "name"
WORD_COUNT: Final = 12
"""The stream of a speaker and its items, and the value that it publishes."""

LISTENER: Final = "chaos.listener"
ITEMS: Final = "items"
END: Final = "end"
TIMED_CALLS: Final = 3
RECEIVE_TIMEOUT: Final = timedelta(seconds=0.5)
"""The mailbox, how its last message begins, and the calls that wait for a limited time."""

AUDIENCE: Final = "chaos.audience"
NEWS: Final = "news"

STOPPING: Final = "chaos.stopping"
SKIPPING: Final = "chaos.skipping"
SEQUENCES: Final = (STOPPING, SKIPPING)
"""The tasks whose sequences stop after a failed job, and continue after it."""

ONCE: Final = "once"
ALWAYS: Final = "always"
"""How often a job of a sequence fails."""

DEBOUNCED: Final = "chaos.debounced"
DEBOUNCE_S: Final = 0.5
MAX_WAIT_S: Final = 2.0

CHUNKED: Final = "chaos.chunked"
CHUNK_SIZE: Final = 5
CHUNK_WAIT_S: Final = 0.2

CLEANED: Final = "Cleaned"
HARVESTED: Final = "Harvested"
RETRIES_USED_UP: Final = "RetriesUsedUp"
MESSAGE: Final = "MessageReceived"
NEWS_RECEIVED: Final = "NewsReceived"
INDEXED: Final = "Indexed"
GATHERED: Final = "Gathered"
"""The records of a clean-up, of the values of a harvest, of the error of a step, of a message or a timeout
with its place, of what a broadcast has brought, of the version that a debounced job has, and of the keys of
the jobs of a chunk.
"""


@job(name="chaos.member", max_retries=MAX_RETRIES, retry=RETRY)
async def member() -> None:
    """Wait until it is cancelled."""
    with entry():
        await current_job().steps.wait("never")


@job(name="chaos.branch", max_retries=MAX_RETRIES, retry=RETRY)
async def branch() -> None:
    """Wait for a child that never ends."""
    with entry():
        await current_job().steps.child("leaf", call(member))


@job(name="chaos.booking", max_retries=MAX_RETRIES, retry=RETRY)
async def booking() -> str:
    """Wait for a child."""
    with entry():
        await current_job().steps.child("receipt", call(jobs.value))
        return own_value()


@job(name=FAMILY, max_retries=MAX_RETRIES, retry=RETRY, on_cancel=CLEAN_UP)
async def family() -> None:
    """Wait for children, of which most never end."""
    with entry():
        steps = current_job().steps
        receive(RESERVE, await steps.run(RESERVE, compute, RESERVE))
        await asyncio.gather(
            steps.child(BOOKING, call(booking), detached=True),
            steps.gather("members", [call(member), call(member)]),
            steps.child("branch", call(branch)),
        )


@job(name=CLEAN_UP, max_retries=20)
async def clean_up(job_id: str, job_name: str, reason: str | None, steps: list[dict[str, Any]]) -> None:  # noqa: ARG001 - as given
    """Record after which job it cleans up, and the steps of that."""
    with entry():
        values = [[step["name"], step["value"], step["is_omitted"]] for step in steps]
        ledger().write(CLEANED, current_job().job_id, job_id, values)


@job(name="chaos.crop")
async def crop(*, fails: bool) -> str:
    """Return a value; with ``fails``, fail at the first attempt."""
    with entry() as attempt:
        await asyncio.sleep(random.uniform(0, 0.5))
        if fails and attempt == 1:
            raise LookupError("the first attempt fails")
        return own_value()


@job(name=HARVEST, max_retries=MAX_RETRIES, retry=RETRY)
async def harvest() -> None:
    """Wait for children, of which one fails; that fails this job too."""
    with entry():
        this = current_job()
        receive("prepare", await this.steps.run("prepare", compute, "prepare"))
        calls = [call(crop, fails=number == 1) for number in range(len(CROPS))]
        try:
            values = await this.steps.gather("crops", calls)
        except JobFailedError as error:
            raise Abort(str(error)) from error
        ledger().write(HARVESTED, this.job_id, this.attempt, values)


@job(name=BOUNDED, max_retries=MAX_RETRIES, retry=RETRY)
async def bounded(way: str) -> None:
    """Sleep, wait, run or fail until the deadline."""
    with entry():
        steps = current_job().steps
        match way:
            case "sleeps":
                await steps.sleep("night", timedelta(hours=6))
            case "waits":
                await steps.wait("never")
            case "runs":
                await asyncio.Event().wait()
        raise ConnectionError("this job fails until its deadline")


async def refuse() -> None:
    """Record the call, and fail."""
    record_call(BANK)
    await asyncio.sleep(0)
    raise LookupError("the bank refuses each call")


@job(name=UNRELIABLE, max_retries=MAX_RETRIES, retry=RETRY)
async def unreliable() -> None:
    """Catch the error of a step that fails at each call."""
    with entry():
        this = current_job()
        try:
            await this.steps.run(BANK, refuse, retry=BANK_RETRY, max_retries=BANK_RETRIES)
        except (LookupError, StepFailedError):
            ledger().write(RETRIES_USED_UP, this.job_id, this.attempt)
        receive("after", await this.steps.run("after", compute, "after"))


@job(name=SPEAKER, max_retries=MAX_RETRIES, retry=RETRY)
async def speak(*, is_numbered: bool) -> None:
    """Append items: the same in each attempt, with their numbers, or those of this attempt."""
    with entry():
        this = current_job()
        await this.publish(NAME, own_value())
        stream = this.stream(WORDS)
        for number in range(1, WORD_COUNT + 1):
            if is_numbered:
                await stream.append(f"word {number}", number=number)
            else:
                await stream.append(f"{own_value()} {number}")
            await asyncio.sleep(random.choice((0, 0, 0.1)))
            if random.random() < 0.1:
                await stream.flush()
        if is_numbered:
            await this.steps.sleep("pause", random.uniform(0, 0.5))


@job(name=LISTENER, max_retries=MAX_RETRIES, retry=RETRY)
async def listen() -> None:
    """Receive messages until the last one. The first calls wait for a limited time."""
    with entry():
        this, place, message = current_job(), 0, ""
        while not message.startswith(END):
            timeout = RECEIVE_TIMEOUT if place < TIMED_CALLS else None
            try:
                message = await this.steps.receive(ITEMS, timeout=timeout, kind=str)
                ledger().write(MESSAGE, this.job_id, this.attempt, place, message)
            except TimeoutError:
                ledger().write(MESSAGE, this.job_id, this.attempt, place, None)
            place += 1


@job(name=AUDIENCE, max_retries=MAX_RETRIES, retry=RETRY)
async def attend() -> None:
    """Wait for what a broadcast brings."""
    with entry():
        this = current_job()
        ledger().write(NEWS_RECEIVED, this.job_id, this.attempt, await this.steps.wait(NEWS, kind=str))


async def _take_turn(fails: str) -> None:
    with entry() as attempt:
        await asyncio.sleep(random.uniform(0, 0.2))
        if fails == ALWAYS or (fails == ONCE and attempt == 1):
            raise LookupError(f"this job fails {fails}")


@job(name=STOPPING, sequence=Sequence("chaos.stopping", key=lambda key, *_: key))
async def stopping(key: str, fails: str = "") -> None:  # noqa: ARG001 - the key of the sequence
    """Run in the order of the key, which stops after a failed job."""
    await _take_turn(fails)


@job(
    name=SKIPPING,
    sequence=Sequence("chaos.skipping", key=lambda key, *_: key, on_failure="skip"),
    max_retries=1,
)
async def skipping(key: str, fails: str = "") -> None:  # noqa: ARG001 - the key of the sequence
    """Run in the order of the key, which continues after a failed job."""
    await _take_turn(fails)


@job(name=DEBOUNCED, unique=Unique(args=("key",), debounce=DEBOUNCE_S, max_wait=MAX_WAIT_S))
async def index(key: str, version: int) -> None:
    """Record the version of a document, once its calls have stopped."""
    with entry(version):
        this = current_job()
        ledger().write(INDEXED, this.job_id, this.attempt, key, version)
        await asyncio.sleep(random.uniform(0, 0.2))


@job(
    name=CHUNKED,
    chunk=CHUNK_SIZE,
    chunk_wait=CHUNK_WAIT_S,
    chunk_by=lambda item: item[0],
    max_retries=MAX_RETRIES,
    retry=RETRY,
)
async def gather(chunk: Chunk[list[str]]) -> None:
    """Give each job of a chunk its outcome; the item is the key of the chunk, and how often the job fails."""
    ledger().write(GATHERED, [chunk_job.item[0] for chunk_job in chunk])
    open_jobs = {chunk_job.job_id: chunk_job for chunk_job in chunk}
    for chunk_job in chunk:
        ledger().start(chunk_job.job_id, chunk_job.attempt, 0)
    try:
        for chunk_job in chunk:
            await asyncio.sleep(random.uniform(0, 0.1))
            del open_jobs[chunk_job.job_id]
            _, fails = chunk_job.item
            if fails == ALWAYS or (fails == ONCE and chunk_job.attempt == 1):
                ledger().end(chunk_job.job_id, chunk_job.attempt, RAISED)
                chunk.fail(chunk_job, LookupError(f"this job fails {fails}"))
            else:
                ledger().end(chunk_job.job_id, chunk_job.attempt, DONE)
                chunk.complete(chunk_job)
    finally:
        for chunk_job in open_jobs.values():
            ledger().end(chunk_job.job_id, chunk_job.attempt, CANCELLED)


FUNCTIONS: Final = (
    *(member, branch, booking, family, clean_up, crop, harvest, bounded, unreliable),
    *(speak, listen, attend, stopping, skipping, index, gather),
)
