"""The pages of bulk runs: those that were started last, and one with its progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.dashboard.search_bar import FIELD, terms_of
from pg_scheduler.inspect import SearchError, parse_search
from pg_scheduler.inspect.bulk_runs import BulkJobs, BulkState, recent_runs
from pg_scheduler.inspect.related import Changed, read_changed
from pg_scheduler.inspect.search.values import MAX_VALUES
from pg_scheduler.inspect.search.words import MAX_LENGTH
from pg_scheduler.inspect.texts import counted, extent_of, quoted, term
from pg_scheduler.status import JobStatus
from pg_scheduler.text.values import copy_fields

PAGE_LENGTH: Final = 50

OUTCOME_AGE_S: Final = 2.0

UNFINISHED: Final = {JobStatus.PENDING, JobStatus.RUNNING}


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a list."""

    run_id: str
    action: str
    which: str
    """The search or the group of errors."""
    phase: str
    done: int
    actor: str
    """Who started it, in a list; else who started or resumed it last."""
    started_at: datetime
    """When."""


@dataclass(frozen=True, slots=True)
class RunsPage:
    """The runs that were started last."""

    items: Sequence[RunRow]


class Outcome(NamedTuple):
    """The jobs of a run that have one status now."""

    status: str
    number: int
    q: str | None
    """A search for them; None if the request may not see that of the run."""


@dataclass(frozen=True, slots=True)
class RunPage(RunRow):
    """A run."""

    sentence: str
    share: float | None
    """The share of the jobs that were examined; None if it is unknown."""
    searched: int | None
    """The jobs that were examined; None if the request does not see all of them."""
    rate: float | None
    to: str | None
    last_at: datetime
    error: str | None
    can_stop: bool
    can_resume: bool
    outcomes: Sequence[Outcome] = ()
    """What became of the jobs that it changed, once it has ended."""
    examined: int = 0
    """The jobs that were looked up for it: those of its last batches."""

    @property
    def gone(self) -> int:
        """The jobs that were changed and do not exist any more."""
        return self.examined - sum(each.number for each in self.outcomes)

    @property
    def is_active(self) -> bool:
        """Whether the page changes."""
        return self.phase in {"running", "stopping"}


async def build(request: PageRequest) -> RunsPage:
    """Read the runs that were started last."""
    rows = [
        copy_fields(
            RunRow,
            each,
            action=each.jobs.verb,
            which=_which(each.jobs, request),
            actor=each.created_by,
            started_at=each.created_at,
        )
        for each in await recent_runs(request.inspector, limit=PAGE_LENGTH)
        if _sees(each.jobs, request)
    ]
    return RunsPage(rows)


async def build_one(request: PageRequest) -> RunPage:
    """Read a run."""
    state = await visible_state(request, request.required("id"))
    may, sees_all = request.may(state.jobs.verb), request.access.visible_names is None
    changed = Changed({}, 0)
    if state.phase in {"complete", "stopped"}:
        key = "outcome", state.run_id, state.done
        changed = await request.cache.get(
            key, OUTCOME_AGE_S, lambda: read_changed(request.inspector, state.run_id)
        )
    return copy_fields(
        RunPage,
        state,
        action=state.jobs.verb,
        which=_which(state.jobs, request),
        sentence=_sentence(state, request.now, sees_all=sees_all),
        share=_share(state) if sees_all or state.phase == "complete" else None,
        searched=state.searched if sees_all else None,
        rate=state.jobs.rate,
        to=state.jobs.to,
        can_stop=may and state.phase == "running",
        can_resume=may and state.phase != "complete" and not state.is_here,
        outcomes=[
            Outcome(status.value, len(ids), _search_for(status, ids, state, request))
            for status, ids in changed.jobs.items()
        ],
        examined=changed.examined,
    )


def _search_for(status: JobStatus, ids: Sequence[str], state: BulkState, request: PageRequest) -> str | None:
    """Return the search for jobs of a run that have a status: by their ids, else by what the run searched."""
    status_term = term("status", status.value)
    by_id = f"id:{','.join(map(quoted, ids))} {status_term}"
    if len(ids) <= MAX_VALUES and len(by_id) <= MAX_LENGTH:
        return by_id
    where = _which(state.jobs, request)
    if state.jobs.group is not None:
        others = [term("name", state.jobs.group[0])]
    elif where == HIDDEN:
        return None
    else:
        others = [each.text for each in terms_of(where) if each.field not in {FIELD, "finished"}]
    since = f"finished:>={state.created_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z"
    return " ".join([*others, status_term, *([] if status in UNFINISHED else [since])])


async def visible_state(request: PageRequest, run_id: str) -> BulkState:
    """Return the state of a run.

    Raises:
        NotFoundError: It does not exist, or the request does not see it.
    """
    missing = NotFoundError(f"there is no bulk run {run_id[:200]!r}, or you may not see it")
    try:
        state = await request.operations.runs.state(run_id)
    except ValueError as error:  # no text that a row can have
        raise missing from error
    if state is None or not _sees(state.jobs, request):
        raise missing
    return state


def _sees(jobs: BulkJobs, request: PageRequest) -> bool:
    """Return whether a run touches nothing but what the request sees."""
    names = request.access.visible_names
    return names is None or jobs.names == names


def _which(jobs: BulkJobs, request: PageRequest) -> str:
    """Return the jobs of a run. A search may compare with a value that the request may not see."""
    if jobs.group is not None:
        return ": ".join(jobs.group[:2])
    try:
        search = parse_search(jobs.where, now=request.now, tz=UTC)
        request.settings.redaction.check_search(search, request.access)
    except SearchError:
        return HIDDEN
    return jobs.where


def _share(state: BulkState) -> float | None:
    if state.phase == "complete":
        return 1.0
    if not state.total_estimate:
        return None
    return min(state.searched / state.total_estimate, 1.0)


def _sentence(state: BulkState, now: datetime, *, sees_all: bool) -> str:
    changed = f"{counted(state.done, 'job')} changed"
    if state.phase == "complete":
        return f"Complete: {changed}" + (f", searched {counted(state.searched, 'job')}." if sees_all else ".")
    where = (
        "" if state.is_here or state.phase == "stopped" else " in another process, or its process has ended"
    )
    extent = extent_of(state.searched, state.total_estimate, is_complete=False)
    searched = f", searched {extent} jobs" if sees_all else ""
    if state.is_suspect(now):
        return f"Without new records, its process has probably ended; resume it: {changed}{searched}."
    phase = {"running": "Runs", "stopping": "Stops after the batch in progress"}.get(state.phase, "Stopped")
    return f"{phase}{where}: {changed}{searched}."
