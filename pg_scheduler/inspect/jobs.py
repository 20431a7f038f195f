"""Read, search, count and explain jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Final, NamedTuple

from pg_scheduler.base.status import JobStatus
from pg_scheduler.errors import JobNotFoundError, JobResult
from pg_scheduler.inspect.base import InspectorBase, tables_of
from pg_scheduler.inspect.errors import ErrorGroup, ErrorGroups, Period
from pg_scheduler.inspect.explain import explain
from pg_scheduler.inspect.job_facts import collect_job_facts
from pg_scheduler.inspect.pages import Bounds, SearchPage, Wanted, find_page
from pg_scheduler.inspect.paths import BLOCKED_INDEX, CLAIM_INDEX, SORTS, UNSUCCESSFUL_INDEX, Sort
from pg_scheduler.inspect.reasons import Explanation
from pg_scheduler.inspect.search.parser import names_term
from pg_scheduler.inspect.store.searches import TABLE
from pg_scheduler.jobs.limits import LimitBook
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.validation import check_count, check_execution_time, check_job_id, check_list
from pg_scheduler.scheduler.parts import parts_of

MAX_PAGE_LENGTH: Final = 1000
"""Jobs of a page."""

MAX_IDS: Final = 500
"""Ids of one call of ``get_jobs()`` or ``job_versions()``."""

MAX_UNFINISHED_ROWS: Final = 1_000
"""The maximum number of jobs that are counted of each kind: the blocked jobs, and for each priority the due
and the later jobs."""

MAX_UNSUCCESSFUL_ROWS: Final = 5_000
"""Unsuccessful jobs that are counted, the newest."""


@dataclass(frozen=True, slots=True)
class Totals:
    """About how many jobs there are, as the database estimates it; None if it was never analyzed."""

    jobs: int | None
    """All jobs."""
    unfinished: int | None
    """Pending and running jobs that are not blocked."""
    blocked: int | None
    """Pending jobs that wait for a limit or for other jobs."""
    unsuccessful: int | None
    """Failed, expired and cancelled jobs. None also if the index of unsuccessful jobs is missing."""


def totals_of(estimates: Mapping[str, int | None]) -> Totals:
    """Return the totals that follow from the sizes of the table and its indexes."""
    return Totals(
        jobs=estimates.get(TABLE),
        unfinished=estimates.get(CLAIM_INDEX),
        blocked=estimates.get(BLOCKED_INDEX),
        unsuccessful=estimates.get(UNSUCCESSFUL_INDEX),
    )


class JobReads(InspectorBase):
    """The methods of `Inspector` that read jobs."""

    async def get_job(self, job_id: str) -> Job | None:
        """Return the job, or None if it does not exist."""
        return await self._reads.jobs.get_job(check_job_id(job_id))

    async def get_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Return the jobs of these ids that exist, by id.

        Args:
            job_ids: At most 500 ids.

        Raises:
            ValueError: There are more ids.
        """
        ids = [check_job_id(job_id) for job_id in check_list("job_ids", job_ids, "list of ids")]
        if len(ids) > MAX_IDS:
            raise ValueError(f"job_ids must have at most {MAX_IDS} ids, not {len(ids)}; pass them in parts")
        return {job.job_id: job for job in await self._reads.jobs.get_jobs(ids)}

    async def get_result(self, job_id: str) -> JobResult | None:
        """Return how a job ended, and its value if it was kept; None if it has not ended.

        Raises:
            JobNotFoundError: No job has this id, and no result is kept.
        """
        results = await self._reads.kept_results.get([check_job_id(job_id)])
        if job_id not in results:
            raise JobNotFoundError(job_id)
        return results[job_id]

    async def parents(self, job_id: str) -> dict[str, JobStatus | None]:
        """Return the unfinished jobs that a job waits for, with their statuses.

        The status is None if a job does not exist. At most 100 jobs are returned.
        """
        return dict(await self._reads.inspections.parents(check_job_id(job_id)))

    async def explain_job(self, job_id: str) -> Explanation:
        """Return why a job runs, waits or has ended, with remedies and an estimate of its start.

        The facts are read one after the other, so they can differ by milliseconds.

        Raises:
            JobNotFoundError: No job has this id.

        Example::

            await scheduler.schedule_job("mail.send", datetime.now(UTC), {}, job_id="mail:9")
            for reason in (await inspector.explain_job("mail:9")).reasons:
                print(reason.code, reason.text, reason.remedy)
        """
        # Without a Scheduler this process declares no limits, so the explanation has none of their numbers.
        limits = LimitBook(())
        if self._scheduler is not None:
            limited_tasks = parts_of(self._scheduler).tasks.lists.limited.values()
            # A task with several names is among them several times.
            limits_by_task = {task.name: task.limits for task in limited_tasks}
            limits = LimitBook(limits_by_task.items())
        facts = await collect_job_facts(self._reads, check_job_id(job_id), limits)
        if facts is None:
            raise JobNotFoundError(job_id)
        return explain(facts)

    async def search_jobs(
        self,
        where: str = "",
        *,
        limit: int = 50,
        after: str | None = None,
        tz: tzinfo | None = None,
        exhaustive: bool = False,
        names: Iterable[str] | None = None,
        sort: Sort | None = None,
    ) -> SearchPage:
        """Return a page of the jobs that match a search.

        A page examines jobs within the `Bounds`, 20,000 and 250 ms by default, so it can be short, or empty,
        although the search continues. ``SearchPage.summary`` states how far it got.

        Args:
            where: The search; empty for all jobs.
            limit: Jobs of the page, 1 to 1,000.
            after: The ``next`` of the page before; None for the first page.
            tz: The time zone of days, and of times without one; None rejects such times.
            exhaustive: Whether to examine jobs until the page is full or the search complete, however long
                that takes.
            names: Names to which the search is restricted, in which ``*`` stands for any text; None for all.
                With names, terms about errors find no error that contains the id or the error of another job.
            sort: ``due`` for unfinished jobs that are not blocked, by due time; ``finished`` for failed,
                expired and cancelled jobs, the newest end first; ``id`` for all jobs, the greatest id first.
                None for the order of the indexes that the search reads.

        Raises:
            SearchError: The search is invalid. A ValueError.
            ValueError: ``limit`` or ``sort`` is out of range, or ``after`` is not a position of this search.
            ConfigurationError: ``sort`` needs the index of unsuccessful jobs, and that is missing.

        Example::

            where = "status:failed error:~timeout finished:>-1d"
            page = await inspector.search_jobs(where, limit=20)
            while page.next is not None:
                page = await inspector.search_jobs(where, limit=20, after=page.next)
        """
        if sort is not None and sort not in SORTS:
            raise ValueError(f"sort must be one of {', '.join(SORTS)}, not {sort!r}")
        query = Wanted(where, tz, visible=None if names is None else names_term(names), sort=sort)
        page = await self._search(query, limit, after)
        items = list(page.items)
        # Each further page begins where the one before stopped, and has at most the jobs that are missing.
        while exhaustive and page.next is not None and len(items) < limit:
            page = await self._search(query, limit - len(items), page.next)
            items += page.items
        return replace(page, items=tuple(items))

    async def search_pages(
        self, where: str = "", *, limit: int = 500, after: str | None = None, tz: tzinfo | None = None
    ) -> AsyncIterator[SearchPage]:
        """Yield every page of a search, so that a caller can show its progress.

        The parameters are those of `search_jobs()`.

        Example::

            async for page in inspector.search_pages("status:failed name:mail.*"):
                print(page.summary)
        """
        while True:
            page = await self.search_jobs(where, limit=limit, after=after, tz=tz)
            yield page
            after = page.next
            if after is None:
                return

    async def running(self, *, limit: int = 500) -> SearchPage:
        """Return a page of the running jobs, as `search_jobs("status:running")` does.

        Args:
            limit: Jobs of the page, 1 to 1,000.

        Raises:
            ValueError: ``limit`` is out of range.
        """
        return await self.search_jobs("status:running", limit=limit)

    async def totals(self) -> Totals:
        """Return about how many jobs there are, without counting them."""
        return totals_of((await self._reads.searches.sizes()).estimates)

    async def error_groups(
        self, *, since: datetime | None = None, limit: int = 100, names: Iterable[str] | None = None
    ) -> ErrorGroups:
        """Group the failed and expired jobs by name and error, apart from the numbers and ids in the error.

        Each job is counted when it fails, so the numbers are exact even if the job was deleted or has run
        again. Jobs that failed before the tables were upgraded are not counted. Nor are those whose status
        was set by SQL or by ``update_job_status()``.

        Args:
            since: The start of the period, timezone-aware; None for any time. The period begins with the full
                minute that contains it if it is at most two hours long, with the full hour if it is at most
                two days long, and otherwise with the full day in UTC.
            limit: The maximum number of groups, 1 to 1,000.
            names: Only jobs of these names; None for all.

        Returns:
            The groups, that of the newest error first.

        Raises:
            TypeError: ``names`` is a str.
            ValueError: ``since`` is naive, or ``limit`` is out of range.

        Example::

            for group in (await inspector.error_groups()).items:
                print(group.count, group.job_name, group.text, group.first_release)
        """
        check_count("limit", limit, least=1, most=MAX_PAGE_LENGTH)
        period = await self._period(since)
        job_names = None if names is None else check_list("names", names)
        # One group more than the limit shows whether there are more.
        page = await self._reads.errors.list(*period.bounds, limit + 1, job_names)
        groups = [period.group_of(row, page) for row in page.rows]
        is_capped = len(groups) > limit or page.is_capped
        return ErrorGroups(groups[:limit], period.since, is_capped, page.counted_since)

    async def error_group(self, fingerprint: str, *, since: datetime | None = None) -> ErrorGroup | None:
        """Return one group of errors; None if there is none. It is deleted 90 days after its last failure.

        Args:
            fingerprint: The fingerprint of the group, twelve hexadecimal digits.
            since: The start of the period of ``count`` and ``history``, as for `error_groups()`; None for any
                time. The group is also returned if no job failed in that period.

        Raises:
            ValueError: ``since`` is naive.

        Example::

            group = await inspector.error_group("3f9a0c55d1e2")
            if group is not None:
                print(group.total, group.first_at, group.first_release)
        """
        period = await self._period(since)
        page = await self._reads.errors.read(*period.bounds, fingerprint)
        return period.group_of(page.rows[0], page) if page.rows else None

    async def _period(self, since: datetime | None) -> Period:
        """Return the period from ``since`` until now; raise a ValueError if ``since`` is naive."""
        if since is not None:
            since = check_execution_time(since, name="since")
        return Period.of(since, self._reads.statements.local_now)

    async def _search(self, query: Wanted, limit: int, after: str | None) -> SearchPage:
        """Return the page of a search after a position, within the bounds of this Inspector."""
        check_count("limit", limit, least=1, most=MAX_PAGE_LENGTH)
        page, _ = await find_page(self._reads, query, limit=limit, after=after, bounds=self._bounds)
        return page


async def search_part(
    inspector: InspectorBase, query: Wanted, limit: int, after: str | None, bounds: Bounds
) -> SearchPage:
    """Return a page of a search within these bounds, not those of the Inspector."""
    page, _ = await find_page(tables_of(inspector).reads, query, limit=limit, after=after, bounds=bounds)
    return page


class StateCount(NamedTuple):
    """The number of jobs of a state.

    Attributes:
        number: The number.
        is_capped: Whether there may be more, because counting stopped.
        is_estimated: Whether it is an estimate of the database.
    """

    number: int
    is_capped: bool = False
    is_estimated: bool = False


async def count_states(inspector: InspectorBase) -> dict[str, StateCount]:
    """Return the number of jobs of each value of the search term ``status:``, by this value.

    The number of all jobs has the empty text as its key. The numbers of unsuccessful jobs are missing if
    their index is missing. The numbers of all jobs and of completed jobs are estimates of the database, and
    are missing if the table was never analyzed.
    """
    store = tables_of(inspector).reads
    async with store.searches.transaction() as connection:
        estimates = (await store.searches.sizes(on=connection)).estimates
        unfinished = await store.cluster.unfinished(MAX_UNFINISHED_ROWS, on=connection)
        ended = None
        if UNSUCCESSFUL_INDEX in estimates:
            ended = await store.cluster.unsuccessful(MAX_UNSUCCESSFUL_ROWS, on=connection)
    totals = totals_of(estimates)
    counts: dict[str, StateCount] = {}
    if totals.jobs is not None:
        counts[""] = StateCount(totals.jobs, is_estimated=True)
    counts |= {
        "due": StateCount(unfinished.due, unfinished.is_due_capped),
        "running": StateCount(unfinished.running, unfinished.is_due_capped),
        "scheduled": StateCount(unfinished.scheduled, unfinished.is_later_capped),
        "blocked": StateCount(unfinished.blocked, unfinished.blocked >= MAX_UNFINISHED_ROWS),
        "retrying": StateCount(unfinished.retrying, unfinished.is_later_capped),
        "sleeping": StateCount(unfinished.sleeping, unfinished.is_later_capped),
        "awaiting": StateCount(unfinished.awaiting, unfinished.is_later_capped),
    }
    if ended is not None:
        for state in ("failed", "expired", "cancelled"):
            counts[state] = StateCount(getattr(ended, state), ended.is_capped)
    # Three indexes together contain every job that has not completed. So if all three numbers are known, the
    # completed jobs are the others. The numbers are estimates, so the difference may be negative.
    totals_by_index = (totals.unfinished, totals.blocked, totals.unsuccessful)
    known_totals = [total for total in totals_by_index if total is not None]
    if totals.jobs is not None and len(known_totals) == len(totals_by_index):
        completed = max(totals.jobs - sum(known_totals), 0)
        counts["completed"] = StateCount(completed, is_estimated=True)
    return counts
