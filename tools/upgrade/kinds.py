"""The kinds of jobs of the rehearsal: how each is prepared, what lets it continue, and how it must have run.

A process of one release prepares the jobs. While they wait, sleep or run, the workers are replaced. Then a
process of the other release lets them continue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pg_scheduler import CatchUp, ConflictResolution, Overlap, Scheduler
from pg_scheduler.triggers import Every
from tools.upgrade import jobs
from tools.upgrade.ledger import Entry

LATER: Final = timedelta(hours=1)
RUNS: Final = 8
"""The fire times of a schedule that is added at run time, one a second."""

Action = Callable[[Scheduler, str], Awaitable[None]]
Check = Callable[[Sequence[Entry]], Sequence[str]]


class WrongAnswerError(Exception):
    """A call of one release has not found what the other one has written."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of jobs, which is a line of the table."""

    name: str
    prepare: Action
    """Called with the tag of each job, by the release that is replaced."""
    proceed: Action | None = None
    """Called with each tag, by the release that has come, if an open gate is not enough."""
    before: Action | None = None
    """Called once with the phase before all jobs are prepared."""
    after: Action | None = None
    """Called once with the phase before the jobs are to continue."""
    ready: str | None = None
    """The event that shows that a job is where the rehearsal wants it, None for none."""
    only_one_is_ready: bool = False
    """Whether one of the jobs suffices, because the others wait for it."""
    events: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: {"": {"ran": 1}})
    """How often each event must be recorded, by what is added to the tag."""
    statuses: Sequence[str] = ("completed",)
    """The statuses that the jobs may have at the end."""
    check: Check | None = None
    """Returns problems in the events of the kind."""
    is_known: bool = True
    """Whether the release of this process has it."""
    writes_effects: bool = False
    """Whether each job writes one row in a transaction of its own."""


def _enqueue(function: Any, **options: Any) -> Action:
    async def enqueue(scheduler: Scheduler, tag: str) -> None:
        await scheduler.enqueue(function, args=(tag,), job_id=tag, **options)

    return enqueue


async def _enqueue_after(scheduler: Scheduler, tag: str) -> None:
    before = f"{tag}/before"
    await scheduler.enqueue(jobs.hold, args=(before,), job_id=before)
    await scheduler.enqueue(jobs.note, args=(tag,), job_id=tag, after=[before])


async def _enqueue_pair(scheduler: Scheduler, tag: str) -> None:
    before = f"{tag}/before"
    await scheduler.enqueue(jobs.giver, args=(before,), job_id=before, delay=jobs.WAIT_S)
    await scheduler.enqueue(jobs.taker, args=(tag,), job_id=tag, after=[before], pass_results=True)


async def _enqueue_unique(scheduler: Scheduler, tag: str) -> None:
    await scheduler.enqueue(jobs.unique, args=(tag,), job_id=tag, delay=LATER)
    await _enqueue_again(scheduler, tag)


async def _enqueue_again(scheduler: Scheduler, tag: str) -> None:
    ignore = ConflictResolution.IGNORE
    job_id = await scheduler.enqueue(jobs.unique, args=(tag,), delay=LATER, conflict_resolution=ignore)
    if job_id != tag:
        raise WrongAnswerError(f"{tag}: a second unique job was added, {job_id}")


async def _end_unique(scheduler: Scheduler, tag: str) -> None:
    await _enqueue_again(scheduler, tag)
    await scheduler.run_job_now(tag)


async def _signal(scheduler: Scheduler, tag: str) -> None:
    if not await scheduler.signal(tag, "approval", tag):
        raise WrongAnswerError(f"{tag}: no job takes the signal")


async def _read_result(scheduler: Scheduler, tag: str) -> None:
    result = await scheduler.get_job_result(tag, timeout=60)
    if result.unwrap(dict) != {"tag": tag}:
        raise WrongAnswerError(f"{tag}: the kept result is {result}")


async def _pause(scheduler: Scheduler, phase: str) -> None:
    await scheduler.tasks.pause("rehearsal.paused", note=phase)


async def _resume(scheduler: Scheduler, phase: str) -> None:
    if not await scheduler.tasks.resume("rehearsal.paused"):
        raise WrongAnswerError(f"the task was not paused any more in {phase}")


async def _add_schedule(scheduler: Scheduler, tag: str) -> None:
    await scheduler.schedules.add(
        jobs.fire,
        Every(seconds=1),
        schedule_id=tag,
        args=(tag,),
        max_runs=RUNS,
        overlap=Overlap.ALLOW,
        catch_up=CatchUp.all(),
    )


def _check_fire_times(entries: Sequence[Entry]) -> Sequence[str]:
    times = defaultdict(list)
    for entry in entries:
        times[entry.tag].append(entry.fire_time)
    return [f"{tag} fired twice: {found}" for tag, found in times.items() if len(set(found)) < len(found)]


def _check_alone(entries: Sequence[Entry]) -> Sequence[str]:
    problems, inside = [], None
    for entry in entries:
        if entry.event == "began":
            if inside is not None:
                problems.append(f"{entry.tag} began while {inside} ran")
            inside = entry.tag
        elif entry.event == "left" and inside == entry.tag:
            inside = None
    return problems


def _check_order(entries: Sequence[Entry]) -> Sequence[str]:
    ran = [entry.tag for entry in entries if entry.event == "ran"]
    out_of_order = [] if ran == sorted(ran) else [f"the order was {', '.join(ran)}"]
    return [*_check_alone(entries), *out_of_order]


async def _read_stream(scheduler: Scheduler, tag: str) -> None:
    # The job ends its stream, so this call returns after the end of the job.
    words = [item.value async for item in scheduler.stream(tag, "words")]
    value = await scheduler.get_value(tag, "tag", wait=False)
    if (words, value) != (["first", "second"], tag):
        raise WrongAnswerError(f"{tag}: the stream is {words}, the value {value!r}")


async def _enqueue_listener(scheduler: Scheduler, tag: str) -> None:
    await scheduler.enqueue("rehearsal.listener", args=(tag,), job_id=tag)
    await scheduler.send(tag, "items", "first")


async def _send_second(scheduler: Scheduler, tag: str) -> None:
    await scheduler.send(tag, "items", "second")


async def _call_often(scheduler: Scheduler, tag: str) -> None:
    for version in (1, 2):
        await scheduler.enqueue(jobs.debounced, args=(tag, version))


async def _enqueue_bounded(scheduler: Scheduler, tag: str) -> None:
    before = f"{tag}/before"
    await scheduler.enqueue(jobs.note, args=(before,), job_id=before, delay=LATER)
    await scheduler.enqueue(
        jobs.note, args=(tag,), job_id=tag, after=[before], deadline=timedelta(seconds=jobs.WAIT_S)
    )


async def _wait_for_deadlines(scheduler: Scheduler, phase: str) -> None:
    with suppress(TimeoutError):
        await scheduler.get_job_result(f"{phase}:deadline:000", timeout=2 * jobs.WAIT_S)


async def _cancel_before(scheduler: Scheduler, tag: str) -> None:
    # A job whose deadline was dropped by a migration down ends with the job that it waits for.
    await scheduler.cancel_job(f"{tag}/before")


TWO_RAN: Final = {"": {"ran": 1}, "/before": {"ran": 1}}

DUE_NOW: Final = Kind("due now, enqueued during the change", _enqueue(jobs.note))
"""The load that a process adds while the workers are replaced."""

KINDS: Final[Mapping[str, Kind]] = {
    "due": DUE_NOW,
    "later": Kind("due later", _enqueue(jobs.note, delay=jobs.WAIT_S)),
    "retry": Kind(
        "waiting for a retry",
        _enqueue(jobs.stumble),
        ready="failed",
        events={"": {"failed": 1, "ran": 1}},
    ),
    "limit": Kind(
        "blocked by a limit",
        _enqueue(jobs.limited),
        ready="began",
        only_one_is_ready=True,
        check=_check_alone,
    ),
    "share": Kind("waiting for a turn of a share", _enqueue(jobs.shared, delay=jobs.WAIT_S)),
    "after": Kind("waiting for another job (`after=`)", _enqueue_after, events=TWO_RAN),
    "result": Kind("kept result, read by the other release", _enqueue(jobs.giver), _read_result, ready="ran"),
    "passed": Kind("result passed to the next job", _enqueue_pair, events=TWO_RAN),
    "unique": Kind("unique, enqueued by both releases", _enqueue_unique, _end_unique),
    "pause": Kind("of a paused task", _enqueue(jobs.paused), before=_pause, after=_resume),
    "async": Kind("running in the event loop", _enqueue(jobs.hold), ready="began"),
    "thread": Kind("running in a thread", _enqueue(jobs.hold_thread), ready="began"),
    # More jobs than a worker has processes wait for one.
    "process": Kind(
        "running in a process", _enqueue(jobs.hold_process), ready="began", only_one_is_ready=True
    ),
    "sleep": Kind(
        "sleeping between two steps",
        _enqueue(jobs.sleeper),
        ready="stored",
        events={"": {"stored": 1, "ran": 1}},
        writes_effects=True,
    ),
    "signal": Kind(
        "waiting for a signal",
        _enqueue(jobs.attendee),
        _signal,
        ready="stored",
        events={"": {"stored": 1, "ran": 1}},
    ),
    "children": Kind(
        "waiting for child jobs",
        _enqueue(jobs.parent),
        events={"": {"ran": 1}, "/a": {"ran": 1}, "/b": {"ran": 1}},
    ),
    "completing": Kind(
        "completing in a transaction",
        _enqueue(jobs.completing, delay=jobs.WAIT_S),
        writes_effects=True,
    ),
    "schedule": Kind(
        f"schedule added at run time, {RUNS} fire times each",
        _add_schedule,
        ready="ran",
        events={"": {"ran": RUNS}},
        check=_check_fire_times,
    ),
    "chunk": Kind(
        "running in a chunk",
        _enqueue("rehearsal.chunk"),
        ready="began",
        is_known=jobs.HAS_CHUNKS,
    ),
    "sequence": Kind(
        "behind another job of a sequence",
        _enqueue(getattr(jobs, "ordered", None)),
        ready="began",
        only_one_is_ready=True,
        check=_check_order,
        is_known=jobs.HAS_SEQUENCES,
    ),
    "stream": Kind(
        "appending to a stream",
        _enqueue("rehearsal.speaker"),
        _read_stream,
        ready="began",
        is_known=jobs.HAS_STREAMS,
    ),
    "mailbox": Kind(
        "waiting for a message",
        _enqueue_listener,
        _send_second,
        is_known=jobs.HAS_MAILBOXES,
    ),
    "debounce": Kind("debounced", _call_often, is_known=jobs.HAS_DEBOUNCE),
    "deadline": Kind(
        "ended at its deadline while it waits",
        _enqueue_bounded,
        _cancel_before,
        after=_wait_for_deadlines,
        events={"": {"ran": 0}},
        statuses=("failed", "cancelled", "expired"),
        is_known=jobs.HAS_DEADLINES,
    ),
}
