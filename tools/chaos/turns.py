"""The checks of sequences, of debounced jobs and of chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tools.chaos.evidence import Evidence, Row, attempt_of
from tools.chaos.ledger import DONE, Attempt
from tools.chaos.load import Request
from tools.chaos.nemesis import MIN_STEP_S
from tools.chaos.overlaps import Fences
from tools.chaos.workflow_calls import DebouncedCall
from tools.chaos.workflow_jobs import CHUNK_SIZE, DEBOUNCE_S, GATHERED, INDEXED, MAX_WAIT_S, STOPPING

SLACK_S: Final = 0.05
"""Seconds by which a debounced job may seem to be early: its due time is that of the server's clock."""

LATE_S: Final = 1.0
CALM_S: Final = 5.0
"""Seconds by which a debounced job may be late, from so many seconds after a fault on."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """When a job of a sequence ran, from the begin of its first attempt to the end of its last one."""

    place: int
    row: Row
    request: Request
    started: float
    ended: float | None


def sequences_out_of_order(evidence: Evidence) -> Iterator[str]:
    """Yield jobs of a key that ran at once or out of their order, or that ran behind one that had failed.

    A job has ended when the attempt that its row names has ended. Earlier attempts were fenced, and may run
    on, and so may a cancelled one. The order is judged of jobs that were added while the clock of the server
    was right: by another clock, a job for now is one for later.
    """
    fences = Fences(evidence)
    keys: dict[str, list[_Turn]] = defaultdict(list)
    for job_id, request in evidence.requests.items():
        row, attempts = evidence.rows.get(job_id), evidence.ledgers.attempts.get(job_id)
        if request.sequence is not None and row is not None and attempts:
            key, place = request.sequence
            started = min(one.started for one in attempts)
            keys[key].append(_Turn(place, row, request, started, _end(evidence, fences, row)))
    for turns in keys.values():
        yield from _at_once(turns)
        yield from _overtaken(turns)
        for stop in turns:
            resumed = stop.request.resumed_at
            if stop.row.job_name == STOPPING and (stop.row.status == "failed" or resumed is not None):
                for turn in turns:
                    if turn.place > stop.place and (resumed is None or turn.started < resumed):
                        yield f"{turn.row.job_id} did not wait until {stop.row.job_id} was resumed"


def _at_once(turns: Sequence[_Turn]) -> Iterator[str]:
    in_time = sorted(turns, key=lambda turn: turn.started)
    ended, job_id = float("-inf"), ""
    for turn in in_time:
        if turn.started < ended:
            yield f"{turn.row.job_id} started {ended - turn.started:.3f} s before the end of {job_id}"
        if turn.ended is not None and turn.ended > ended:
            ended, job_id = turn.ended, turn.row.job_id


def _overtaken(turns: Sequence[_Turn]) -> Iterator[str]:
    steady = [turn for turn in turns if abs(turn.row.created - turn.request.called_at) < MIN_STEP_S / 2]
    steady.sort(key=lambda turn: turn.place)
    for turn, later in pairwise(steady):
        if later.started < turn.started:
            yield f"{later.row.job_id} started {turn.started - later.started:.3f} s before {turn.row.job_id}"


def _end(evidence: Evidence, fences: Fences, row: Row) -> float | None:
    """Return when a job of a sequence has ended; None if others need not wait for that."""
    last = attempt_of(evidence, row)
    if last is None:
        return None
    ended = evidence.deaths.get(last.pid) if last.ended is None else last.ended
    if row.status == "cancelled" and ended is not None and fences.may_run_on(last, ended):
        return None
    return float("inf") if ended is None else ended


@dataclass(frozen=True, slots=True)
class _Index:
    """A run of a debounced job, with the version that it had."""

    version: int
    started: float
    job_id: str
    is_done: bool


def debounced_calls_lost_or_moved(evidence: Evidence) -> Iterator[str]:
    """Yield keys whose newest version did not run last, and runs that began early or late.

    A call whose answer is unknown may be committed at any time. The times are judged where no fault is near,
    and if all answers are known.
    """
    indexed: dict[str, list[_Index]] = defaultdict(list)
    for record in evidence.ledgers.events[INDEXED]:
        job_id, attempt, key, version = record.details
        attempts: Sequence[Attempt] = evidence.ledgers.attempts.get(job_id, ())
        is_done = any(
            one.outcome == DONE
            and (one.attempt, one.worker_id, one.version) == (attempt, record.worker_id, version)
            for one in attempts
        )
        indexed[key].append(_Index(version, record.at, job_id, is_done))
    for key, calls in evidence.calls.debounced.items():
        runs = sorted(indexed[key], key=lambda run: run.started)
        confirmed = [call.version for call in calls if call.ended is not None]
        unknown = {call.version for call in calls if call.ended is None}
        done = [run for run in runs if run.is_done]
        if confirmed and (not done or done[-1].version not in unknown | {max(confirmed)}):
            versions = [run.version for run in done]
            yield f"{key} has run the versions {versions}, and the last one is {max(confirmed)}"
        elif not unknown:
            yield from _moved(evidence, key, calls, runs)


def _moved(
    evidence: Evidence, key: str, calls: Sequence[DebouncedCall], runs: Sequence[_Index]
) -> Iterator[str]:
    """Yield the runs of a key that began before the calls had stopped, or too late after the first call.

    A call at the time of a start may belong to the series of calls before it, or to the one behind it.
    """
    previous = float("-inf")
    began_of = {call.version: call.began for call in calls}
    for run in runs:
        series = [call for call in calls if call.ended is not None and call.ended > previous]
        later = [call for call in series if call.began > previous]
        started = run.started
        if series and _is_calm(evidence, series[0].began, started):
            due = min(began_of[run.version] + DEBOUNCE_S, series[0].began + MAX_WAIT_S)
            if started < due - SLACK_S:
                yield f"{key} ran version {run.version} {due - started:.3f} s early"
            if evidence.timed and later and later[0].ended is not None:
                late = started - later[0].ended - MAX_WAIT_S
                if late > LATE_S:
                    yield f"{key} ran version {run.version} {late:.3f} s late"
        previous = started


def _is_calm(evidence: Evidence, began: float, ended: float) -> bool:
    return not any(fault.began <= ended and began <= fault.ended + CALM_S for fault in evidence.faults)


def chunks_too_large_or_mixed(evidence: Evidence) -> Iterator[str]:
    """Yield calls of chunks that got too many jobs, or jobs of several keys."""
    for record in evidence.ledgers.events[GATHERED]:
        (keys,) = record.details
        if not 0 < len(keys) <= CHUNK_SIZE or len(set(keys)) > 1:
            yield f"worker {record.worker_id} called a chunk of {keys}"
