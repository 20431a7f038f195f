"""The pages of limits, shares and sequences, and of one limit with its keys, and jobs that run and wait."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple

from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.dashboard.context import NotFoundError, PageRequest, View
from pg_scheduler.dashboard.findings import FindingRow, read_diagnosis, rows_of, visible_problems
from pg_scheduler.dashboard.job_rows import row_of
from pg_scheduler.dashboard.pages.history import MAX_NAMES, read_period
from pg_scheduler.dashboard.pages.limit_wait import LONG
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.inspect import LimitKeyList, LimitState, SequenceList, ShareState, TenantState
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.limits import LimitJobs, LimitOverview, limit_jobs, limit_overview
from pg_scheduler.inspect.shares import ShareOverview, read_shares
from pg_scheduler.inspect.store.limits import LimitJobRow
from pg_scheduler.inspect.texts import counted, estimated, length, quoted

AGE_S: Final = 2.0
"""Seconds for which limits are kept: each costs a statement."""

SHOWN_JOBS: Final = 5
"""Jobs of a key that are listed."""

MAX_LINES: Final = 100
"""Jobs of all keys that are listed with their arguments."""

MAX_QUEUES: Final = 8
"""Tenants that are shown for each share."""

MAX_SEQUENCES: Final = 50
"""Keys of sequences that are shown: those that have stopped, then those with most waiting jobs."""


class Turn(NamedTuple):
    """When the last job that waits for a limit starts, or what probably delays it.

    Attributes:
        text: The sentence.
        is_unusual: Whether an attempt holds the limit for much longer than usual.
        holder_id: The job of that attempt; empty if there is none, or if it is hidden.
    """

    text: str
    is_unusual: bool = False
    holder_id: str = ""


@dataclass(frozen=True, slots=True)
class LimitRow:
    """The limits of a name. What the request may not see is None or empty.

    Attributes:
        declared: Its numbers: several if tasks or workers declare different ones.
        tasks: The visible tasks that share it.
        is_shared: Whether tasks share it that the request may not see, so that its use is hidden.
        waiting: Jobs that wait for it.
        full_keys: Keys for which jobs wait; None for a limit without keys.
        next_start_at: When it admits the next start, if it is full.
    """

    name: str
    declared: Sequence[LimitState]
    tasks: Sequence[str]
    is_shared: bool
    waiting: int | None
    full_keys: int | None = None
    next_start_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A share. What the request may not see is None or empty.

    Attributes:
        tasks: The visible tasks that live workers declare for it.
        is_shared: Whether the request may not see all of its tasks, so that its numbers are hidden.
        queues: The tenants with most waiting jobs.
    """

    name: str
    tasks: Sequence[str]
    is_shared: bool
    tenants: int | None
    running: int | None
    admitted: int | None
    waiting: int | None
    queues: Sequence[TenantState] = ()


@dataclass(frozen=True, slots=True)
class SequenceRow:
    """A key of a sequence. What the request may not see is None.

    Attributes:
        head: The job that is first; None without one.
        can_skip: Whether the request may let the sequence continue behind that job.
    """

    name: str
    key: str
    state: str
    head: str | None
    head_name: str | None
    waiting: int | None
    can_skip: bool


async def build(request: PageRequest) -> View:
    """Read the limits that live workers declare: those with waiting jobs first, then the full ones."""
    limits = (await _shared_overview(request)).limits
    items = sorted(await limit_rows(request), key=_urgency)
    summary = counted(len(items), "limit", is_capped=limits.is_capped)
    # That summary begins with the number of declarations, of which a limit can have several, so this part is
    # cut off. The sums that follow include hidden limits.
    if request.access.visible_names is None:
        summary += limits.summary[limits.summary.index(", ") :]
    shares, share_overview = await _shares(request)
    sequences = await request.read_shared(_read_sequences, age_s=AGE_S)
    return View(
        items=items,
        summary=summary,
        is_capped=limits.is_capped or limits.is_waiting_capped,
        is_waiting_capped=limits.is_waiting_capped,
        shares=shares,
        are_shares_capped=share_overview.shares.is_capped or share_overview.shares.is_waiting_capped,
        is_in_flight_capped=share_overview.shares.is_in_flight_capped,
        sequences=[*islice(_sequences(sequences, request), MAX_SEQUENCES)],
        are_sequences_capped=sequences.is_waiting_capped,
        _sequence_summary=sequences.summary if request.access.visible_names is None else "",
        _share_summary=share_overview.shares.summary if request.access.visible_names is None else "",
    )


def _urgency(row: LimitRow) -> tuple[int, bool, str]:
    """Return the sort key of a limit: those with the most waiting jobs come first, then full ones."""
    # A limit bounds the attempts that run, or the starts in a time, or both.
    uses = [(limit.running, limit.max_running) for limit in row.declared]
    uses += [(limit.starts, limit.max_starts) for limit in row.declared]
    is_full = any(use is not None and bound is not None and use >= bound for use, bound in uses)
    return -(row.waiting or 0), not is_full, row.name


async def build_one(request: PageRequest) -> View:
    """Read the keys of a limit, those with the most waiting jobs first, and jobs of the first ones."""
    name = request.required("name")
    limit = next((row for row in await limit_rows(request) if row.name == name), None)
    if limit is None:
        raise NotFoundError(f"no live worker declares the limit {name[:200]!r}, or you may not see it")
    if limit.is_shared:
        return View(
            limit=limit,
            keys=[],
            summary="tasks share this limit that you may not see",
            charts=(),
            range="",
            where="",
            is_capped=False,
            is_waiting_capped=False,
            sees_keys=True,
            _findings=(),
        )
    key_list, jobs = await request.read_shared(_read_keys, name, age_s=AGE_S)
    # Keys are made from arguments, so they are hidden with these.
    sees_keys = request.access.sees_arguments
    rows: list[dict[str, Any]] = [
        {
            "state": state if sees_keys or not state.key else replace(state, key=HIDDEN),
            "holders": _visible_jobs(jobs.holders.get(state.key, ()), request),
            "queue": _visible_jobs(jobs.queue.get(state.key, ()), request),
            "next_start_at": jobs.next_starts.get(state.key),
        }
        for state in key_list.items
    ]
    # The first jobs of each key are listed: those that hold the limit, and those that wait for it.
    shown_jobs = [job for row in rows for job in (*row["holders"][:SHOWN_JOBS], *row["queue"][:SHOWN_JOBS])]
    task_names = limit.tasks[:MAX_NAMES]
    period = await read_period(request, task_names)
    # The third chart is that of durations, which this page does not show.
    outcomes, lateness, _ = await run_in_thread(period.charts)
    where = f"name:{','.join(map(quoted, task_names))}"
    usual_s = period.total.durations.quantile(0.5)
    return View(
        limit=limit,
        keys=rows,
        summary=key_list.summary,
        charts=[outcomes, lateness],
        range=period.range,
        where=where,
        _has_starts=any(state.max_starts is not None for state in key_list.items),
        _usual_s=usual_s,
        _unusual_s=None if usual_s is None else LONG * usual_s,
        _turn=_turn_of(key_list, usual_s, _oldest_holder(jobs), request),
        _findings=await _findings_of(name, request),
        is_capped=key_list.is_capped or key_list.is_waiting_capped,
        is_waiting_capped=key_list.is_waiting_capped,
        sees_keys=sees_keys,
        _arguments=await _arguments([job.job_id for job in shown_jobs[:MAX_LINES]], request),
    )


async def _findings_of(name: str, request: PageRequest) -> list[FindingRow]:
    """Return the findings about jobs that expired while they waited for a limit."""
    findings = (await read_diagnosis(request, is_age_shown=False)).findings
    own_findings = [finding for finding in findings if ("limit", name) in finding.objects]
    if not own_findings:
        return []
    rows = await rows_of(visible_problems(own_findings, request), request)
    # The links of these findings are left out, because they lead to this page.
    return [replace(row, _links=()) for row in rows]


def _oldest_holder(jobs: LimitJobs) -> LimitJobRow | None:
    """Return the job whose attempt holds the limit for the longest time; None if no job holds it."""
    holders = [holder for holders in jobs.holders.values() for holder in holders]
    return min(holders, key=lambda holder: holder.at, default=None)


def _turn_of(
    keys: LimitKeyList, usual_s: float | None, oldest: LimitJobRow | None, request: PageRequest
) -> Turn | None:
    """Return when the last job that waits for a limit starts if the attempts last as long as usual.

    If an attempt that holds the limit already runs for much longer, the result states that instead. It is
    None if the limit has keys or bounds starts, if no job waits, or if the usual duration is unknown.

    Args:
        keys: The keys of the limit.
        usual_s: The seconds that half of the attempts do not exceed; None if that is unknown.
        oldest: The job whose attempt holds the limit for the longest time; None if no job holds it.
        request: Which jobs are visible, and the time.
    """
    if len(keys.items) != 1 or keys.is_waiting_capped or usual_s is None:
        return None
    (state,) = keys.items
    has_key_or_bounds_starts = bool(state.key) or state.max_starts is not None
    if has_key_or_bounds_starts or not state.max_running or not state.waiting:
        return None
    jobs, usual = counted(state.waiting, "job"), estimated(usual_s)
    longest_s = 0.0 if oldest is None else (request.now - oldest.at).total_seconds()
    if oldest is not None and longest_s > LONG * usual_s:
        text = (
            f"{jobs} waiting: an attempt that holds the limit runs for {length(longest_s)}, usually {usual}"
        )
        is_visible = request.access.sees_name(oldest.job_name)
        return Turn(text, is_unusual=True, holder_id=oldest.job_id if is_visible else "")
    # ``max_running`` jobs start at a time, each time after the usual duration of an attempt.
    wait_s = usual_s * math.ceil(state.waiting / state.max_running)
    # Below a second, a tenth is as exact as the estimate.
    wait = f"~{wait_s:.1f} s" if 0.05 <= wait_s < 1 else estimated(wait_s)
    return Turn(f"{jobs} waiting: at the usual {usual}, the last one starts in {wait}")


async def _arguments(job_ids: Sequence[str], request: PageRequest) -> dict[str, str | None]:
    """Return the arguments of jobs in one line each; none if the request may not see arguments."""
    if not request.access.sees_arguments:
        return {}
    jobs = await request.inspector.get_jobs(job_ids)
    return {job_id: row_of(job, request).arguments for job_id, job in jobs.items()}


async def _read_keys(request: PageRequest, name: str) -> tuple[LimitKeyList, LimitJobs]:
    """Return the keys of a limit, and the jobs that hold and that wait for each of them."""
    key_list = await request.inspector.limit_keys(name)
    return key_list, await limit_jobs(request.inspector, key_list.items)


def without_hidden(limit: LimitState, request: PageRequest) -> LimitState:
    """Return a limit with its visible tasks; without its use if it has hidden tasks too."""
    tasks = tuple(filter(request.access.sees_name, limit.tasks))
    if len(tasks) == len(limit.tasks):
        return limit
    return replace(_without_use(limit), tasks=tasks)


def _without_use(limit: LimitState) -> LimitState:
    """Return a limit without the numbers of jobs that run, have started and wait."""
    return replace(limit, running=None, starts=None, waiting=0)


async def _shared_overview(request: PageRequest) -> LimitOverview:
    """Return the limits that live workers declare, with their use; requests share the read."""
    return await request.read_shared(_read_limits, age_s=AGE_S)


async def _read_limits(request: PageRequest) -> LimitOverview:
    """Read the limits that live workers declare, with their use; requests share the result."""
    return await limit_overview(request.inspector)


async def _shares(request: PageRequest) -> tuple[list[ShareRow], ShareOverview]:
    """Return the shares of visible tasks, and the overview of all shares from which they come.

    With a share, tenants such as customers take turns, so that the jobs of one do not delay those of others.
    """
    overview = await request.read_shared(_read_shares, age_s=AGE_S)
    rows = (_share(share, overview.tenants.get(share.name, ()), request) for share in overview.shares.items)
    return [row for row in rows if row.tasks or request.access.visible_names is None], overview


async def _read_shares(request: PageRequest) -> ShareOverview:
    """Read the shares that live workers declare, with their tenants; requests share the result."""
    return await read_shares(tables_of(request.inspector).reads)


async def _read_sequences(request: PageRequest) -> SequenceList:
    """Read the sequences with jobs, those that have stopped first; requests share the result."""
    return await request.inspector.sequences()


def _sequences(sequences: SequenceList, request: PageRequest) -> Iterator[SequenceRow]:
    """Yield the sequences whose first job the request may see. Keys are hidden with the arguments."""
    sees_all = request.access.visible_names is None
    for sequence in sequences.items:
        name = sequence.head_name
        if not sees_all and (name is None or not request.access.sees_name(name)):
            continue
        yield SequenceRow(
            name=sequence.name,
            key=sequence.key if request.access.sees_arguments else HIDDEN,
            state=sequence.state,
            head=sequence.head,
            head_name=name,
            # Jobs of other tasks may wait too.
            waiting=sequence.waiting if sees_all else None,
            can_skip=name is not None and request.may("cancel"),
        )


def _share(share: ShareState, tenants: Sequence[TenantState], request: PageRequest) -> ShareRow:
    """Return a share; without its numbers if some of its tasks are hidden."""
    tasks = list(filter(request.access.sees_name, share.tasks))
    if request.access.visible_names is not None and len(tasks) < len(share.tasks):
        return ShareRow(
            share.name, tasks, is_shared=True, tenants=None, running=None, admitted=None, waiting=None
        )
    # Tenants are made from arguments, so they are hidden with these.
    sees_tenants = request.access.sees_arguments
    queues = [tenant if sees_tenants else replace(tenant, key=HIDDEN) for tenant in tenants[:MAX_QUEUES]]
    return ShareRow(
        name=share.name,
        tasks=tasks,
        is_shared=False,
        tenants=share.tenants,
        running=share.running,
        admitted=share.admitted,
        waiting=share.waiting,
        queues=queues,
    )


def _visible_jobs(rows: Iterable[LimitJobRow], request: PageRequest) -> list[LimitJobRow]:
    """Return the visible jobs, without the text of their limit, which contains the key."""
    return [replace(row, key="") for row in rows if request.access.sees_name(row.job_name)]


async def is_waiting_capped(request: PageRequest) -> bool:
    """Return whether more jobs may wait for limits than their rows state."""
    return (await _shared_overview(request)).limits.is_waiting_capped


async def limit_rows(request: PageRequest) -> list[LimitRow]:
    """Return the limits of visible tasks that live workers declare, by name."""
    overview = await _shared_overview(request)
    by_name: dict[str, list[LimitState]] = {}
    for limit in overview.limits.items:
        by_name.setdefault(limit.name, []).append(limit)
    rows = (_row(name, declared, overview, request) for name, declared in by_name.items())
    return [row for row in rows if row.tasks]


def _row(
    name: str, declared_limits: Sequence[LimitState], overview: LimitOverview, request: PageRequest
) -> LimitRow:
    """Return the limits of a name; without their use if some of their tasks are hidden."""
    visible_limits = [without_hidden(limit, request) for limit in declared_limits]
    tasks = sorted({task for limit in visible_limits for task in limit.tasks})
    has_hidden_tasks = any(
        len(visible_limit.tasks) < len(declared_limit.tasks)
        for visible_limit, declared_limit in zip(visible_limits, declared_limits, strict=True)
    )
    # If a task that the request may not see uses the limit too, the numbers would reveal its jobs.
    if has_hidden_tasks:
        limits_without_use = [_without_use(limit) for limit in visible_limits if limit.tasks]
        return LimitRow(name, limits_without_use, tasks, is_shared=True, waiting=None)
    # Each declaration counts all waiting jobs of the name, so their numbers must not be added.
    waiting = max(limit.waiting for limit in visible_limits)
    return LimitRow(
        name=name,
        declared=visible_limits,
        tasks=tasks,
        is_shared=False,
        waiting=waiting,
        full_keys=overview.full_keys.get(name),
        next_start_at=overview.next_starts.get(name),
    )
