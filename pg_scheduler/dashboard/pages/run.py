"""The pages of bulk runs: those that were started last, and one with its progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pg_scheduler.base.status import JobStatus
from pg_scheduler.dashboard.context import PageRequest, View
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.dashboard.search_bar import STATUS_FIELD, terms_of
from pg_scheduler.inspect import SearchError
from pg_scheduler.inspect.bulk_runs import BulkJobs, BulkState, recent_runs
from pg_scheduler.inspect.dependencies import Changed, read_changed
from pg_scheduler.inspect.search.values import MAX_VALUES
from pg_scheduler.inspect.search.words import MAX_LENGTH
from pg_scheduler.inspect.texts import counted, extent_of, length, quoted, term
from pg_scheduler.jobs.error_text import fingerprint_of

PAGE_LENGTH: Final = 50

OUTCOME_AGE_S: Final = 2.0

PAST: Final[Mapping[str, str]] = {
    "cancel": "cancelled",
    "delete": "deleted",
    "move": "moved",
    "retry": "retried",
}
"""What a run did with its jobs, by its action."""

UNFINISHED: Final = {JobStatus.PENDING, JobStatus.RUNNING}


class Outcome(NamedTuple):
    """The jobs of a run that have one status now."""

    status: str
    number: int
    q: str | None
    """A search for these jobs; None if it needs the search of the run, and the request may not see that."""


async def build(request: PageRequest) -> View:
    """Read the runs that were started last."""
    states = await recent_runs(request.inspector, limit=PAGE_LENGTH)
    visible_states = (state for state in states if _sees(state.jobs, request))
    return View(items=[_row(state, state.created_by, state.created_at, request) for state in visible_states])


async def build_one(request: PageRequest) -> View:
    """Read a run, and what became of the jobs that it changed, once it has ended."""
    state = await visible_state(request, request.required("id"))
    may, sees_all = request.may(state.jobs.verb), request.access.visible_names is None
    changed = Changed({}, 0)
    if state.phase in {"complete", "stopped"}:
        # A resumed run changes further jobs, and then ``done`` grows and the value is read again.
        changed = await request.read_shared(
            _read_changed, state.run_id, age_s=OUTCOME_AGE_S, depends_on=state.done
        )
    outcomes = [
        Outcome(status.value, len(ids), _search_for(status, ids, state, request))
        for status, ids in changed.jobs.items()
    ]
    # A run changes the jobs of a group of errors, or those of a search.
    which = _which(state.jobs, request)
    group_id = search = ""
    if state.jobs.group is not None:
        job_name, error, *_ = state.jobs.group
        group_id = fingerprint_of(job_name, error)
    elif which != HIDDEN:
        search = which
    took = None
    if state.phase == "complete" and state.last_at is not None:
        took = length(state.last_at - state.started_at)
    return View(
        **_row(state, state.actor, state.started_at, request),
        sentence=_sentence(state, request.now, sees_all=sees_all),
        share=_share(state) if sees_all or state.phase == "complete" else None,
        searched=state.searched if sees_all else None,
        rate=state.jobs.rate,
        to=state.jobs.to,
        last_at=state.last_at,
        error=state.error,
        can_stop=may and state.phase == "running",
        can_resume=may and state.phase != "complete" and not state.is_here,
        outcomes=outcomes,
        examined=changed.examined,
        _group=group_id,
        _search=search,
        _took=took,
        # Jobs that were deleted since have no status.
        _gone=changed.examined - sum(outcome.number for outcome in outcomes),
    )


async def _read_changed(request: PageRequest, run_id: str) -> Changed:
    """Read which status the jobs that a bulk run has changed have now; requests share the result."""
    return await read_changed(request.inspector, run_id)


def _row(state: BulkState, actor: str, started_at: datetime, request: PageRequest) -> dict[str, Any]:
    """Return what both pages show of a run.

    The list passes the actor and the time of its first start, the page of the run those of the last start or
    resumption.
    """
    return {
        "run_id": state.run_id,
        "action": state.jobs.verb,
        "which": _which(state.jobs, request),
        "phase": state.phase,
        "done": state.done,
        "actor": actor,
        "started_at": started_at,
    }


def _search_for(status: JobStatus, ids: Sequence[str], state: BulkState, request: PageRequest) -> str | None:
    """Return the search for the jobs of a run that have a status; None if the search of the run is hidden.

    It names the ids of the jobs. If they are too many for a search, it has the terms that the run searched.
    """
    status_term = term("status", status.value)
    by_id = f"id:{','.join(map(quoted, ids))} {status_term}"
    if len(ids) <= MAX_VALUES and len(by_id) <= MAX_LENGTH:
        return by_id
    if state.jobs.group is not None:
        job_name, *_ = state.jobs.group
        terms = [term("name", job_name)]
    else:
        where = _which(state.jobs, request)
        if where == HIDDEN:
            return None
        # The run may have changed the status and the end of the jobs, so these terms might not find them any
        # more.
        terms = [
            search_term.text
            for search_term in terms_of(where)
            if search_term.field not in {STATUS_FIELD, "finished"}
        ]
    terms.append(status_term)
    # Other jobs that the search finds may have ended before the run began, so these are excluded. A job that
    # has not ended has no such time.
    if status not in UNFINISHED:
        terms.append(f"finished:>={state.created_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z")
    return " ".join(terms)


async def visible_state(request: PageRequest, run_id: str) -> BulkState:
    """Return the state of a run.

    Raises:
        NotFoundError: It does not exist, or the request does not see it.
    """
    runs = request.operations.runs
    return await request.visible("bulk run", run_id, runs.state, lambda state: _sees(state.jobs, request))


def _sees(jobs: BulkJobs, request: PageRequest) -> bool:
    """Return whether the request sees a run: it sees all names, or the run has the same ``names=``."""
    names = request.access.visible_names
    return names is None or jobs.names == names


def _which(jobs: BulkJobs, request: PageRequest) -> str:
    """Return which jobs a run changes: a group of errors, or a search.

    A search that compares with a value which the request may not see is hidden.
    """
    if jobs.group is not None:
        job_name, error, *_ = jobs.group
        return f"{job_name}: {request.visible_error(error)}"
    try:
        request.check_search(jobs.where)
    except SearchError:
        return HIDDEN
    return jobs.where


def _share(state: BulkState) -> float | None:
    """Return the share of the jobs that the run has searched; None if their number is unknown."""
    if state.phase == "complete":
        return 1.0
    if not state.total_estimate:
        return None
    return min(state.searched / state.total_estimate, 1.0)


def _sentence(state: BulkState, now: datetime, *, sees_all: bool) -> str:
    """Return the state of a run and what it has done so far, as a sentence."""
    changed = f"{counted(state.done, 'job')} {PAST.get(state.jobs.verb, 'changed')}"
    # The number of searched jobs is that of jobs of all names.
    if state.phase == "complete":
        searched = f", {counted(state.searched, 'job')} searched" if sees_all else ""
        return f"Complete: {changed}{searched}."
    # A run that this process does not execute may run in another one.
    where = ""
    if not state.is_here and state.phase != "stopped":
        where = " in another process, or its process has ended"
    extent = extent_of(state.searched, state.total_estimate, is_complete=False)
    searched = f", searched {extent}" if sees_all else ""
    if state.is_suspect(now):
        return f"Without new records, its process has probably ended; resume it: {changed}{searched}."
    phase = {"running": "Runs", "stopping": "Stops after the batch in progress"}.get(state.phase, "Stopped")
    return f"{phase}{where}: {changed}{searched}."
