"""The methods of `Inspector` that change jobs."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from inspect import signature
from typing import Any, Final, TypedDict, TypeVar, Unpack

from pg_scheduler.inspect.base import InspectorBase
from pg_scheduler.inspect.bulk import BulkRun, Progress
from pg_scheduler.inspect.errors import ErrorGroup, group_terms, is_in_group
from pg_scheduler.inspect.jobs import MAX_IDS
from pg_scheduler.inspect.pages import Wanted
from pg_scheduler.inspect.paths import UNSUCCESSFUL_STATUSES
from pg_scheduler.inspect.search.conditions import conditions_of
from pg_scheduler.inspect.search.parser import names_term, parse_search
from pg_scheduler.inspect.search.terms import Search, SearchStatus, StatusTerm, Term
from pg_scheduler.inspect.store.bulk import Batch, BulkAction
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.payload import encode_object
from pg_scheduler.jobs.step_values import check_step_name
from pg_scheduler.jobs.validation import (
    check_count,
    check_execution_time,
    check_job_id,
    check_kind,
    check_list,
    check_text,
)

# A search of cancel_jobs() finds these jobs only.
UNFINISHED: Final = frozenset({SearchStatus.PENDING, SearchStatus.RUNNING})
MAX_MOVE: Final = timedelta(days=36_500)

F = TypeVar("F", bound=Callable[..., Any])


class BulkOptions(TypedDict, total=False):
    """The parameters of every method that changes jobs."""

    ids: Iterable[str] | None
    where: str | None
    limit: int | None
    rate: float | None
    dry_run: bool
    after: str | None
    tz: tzinfo | None
    names: Iterable[str] | None
    run_id: str | None
    details: Mapping[str, Any] | None
    matches: Callable[[Job], bool] | None
    versions: Mapping[str, str] | None


def _shows_options(function: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator for methods that pass ``**options`` to a function.

    It replaces ``**options`` in the signature of the method, which the documentation shows, with the keyword
    parameters of the function.
    """
    options = [
        parameter
        for parameter in signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]

    def decorate(method: F) -> F:
        """Give a method the signature that the documentation shows; the method itself stays as it is."""
        method_signature = signature(method)
        parameters = [
            parameter
            for parameter in method_signature.parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        method.__signature__ = method_signature.replace(parameters=[*parameters, *options])  # type: ignore[attr-defined]
        return method

    return decorate


class JobActions(InspectorBase):
    """Changes jobs in batches; see `Inspector`."""

    def _change(
        self,
        batch: Batch,
        terms: Sequence[Term],
        *,
        ids: Iterable[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        after: str | None = None,
        tz: tzinfo | None = None,
        names: Iterable[str] | None = None,
        run_id: str | None = None,
        details: Mapping[str, Any] | None = None,
        matches: Callable[[Job], bool] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Progress, None]:
        """Check the options, and return the steps of the run that changes the jobs.

        The options are those of `cancel_jobs()`. ``batch`` has what all batches of the run share. ``terms``
        restrict the search further. No job is changed before the first step is requested.
        """
        action = batch.action
        # Exactly one of the two must be passed.
        if (ids is None) is (where is None):
            raise ValueError(f"{action}_jobs() needs either ids= or where=")
        # An empty search would find all jobs, so the caller must name them. A group of errors, which sets
        # matches, restricts the jobs enough.
        if where is not None and not check_text("where", where).strip() and batch.matches is None:
            raise ValueError(f"where must not be empty; to name all jobs, pass {_ALL[action]!r}")
        if limit is not None:
            check_count("limit", limit, least=1)
        if rate is not None:
            _check_rate(rate)
        check_kind("dry_run", dry_run, bool)
        # The result is not needed: the call raises an error if JSON cannot represent the details.
        if details is not None:
            encode_object("details", details)
        search_details = {"where": where} if where else {}
        # The term of the names that the caller may change. For a list of ids it is the only condition.
        visible = None if names is None else names_term(names)
        visible_terms = () if visible is None else (visible,)
        conditions = conditions_of(Search(visible_terms, datetime.now(UTC)))
        run = BulkRun(
            store=self._store,
            reads=self._reads,
            author=self._author(),
            batch=replace(
                batch,
                conditions=conditions,
                family_conditions=conditions if batch.children else (),
                details={**(details or {}), **search_details, **batch.details},
                matches=_both(batch.matches, matches),
                versions=_checked_versions(versions),
                subject=None if run_id is None else check_text("run_id", run_id),
            ),
            job_ids=None if ids is None else _checked_ids(ids, after),
            wanted=Wanted(
                where or "",
                tz,
                terms,
                visible,
                # A moved job has another place in the index of due times, but the same place by its id.
                sort="id" if action == "move" else None,
                # The end of a cancelled job unblocks those that wait for it, which may match too.
                blocked_first=action == "cancel" and not dry_run,
            ),
            limit=limit,
            rate=rate,
            is_dry=dry_run,
            after=after,
        )
        return run.steps()

    async def job_versions(self, job_ids: Iterable[str]) -> dict[str, str]:
        """Return a version of each of these jobs that exists, by id.

        The version of a job changes with its state and with its definition: when it is claimed, moved,
        retried or replaced, when it ends, and when it is deleted and added again. Pass the versions to
        `cancel_jobs()` and the like, to change only jobs that are as they were.

        Args:
            job_ids: At most 500 ids.

        Raises:
            ValueError: There are more ids.

        Example::

            versions = await inspector.job_versions(["mail:9"])
            async for step in inspector.cancel_jobs(ids=versions, versions=versions):
                print(step.skipped)
        """
        ids = _checked_ids(job_ids, None)
        if len(ids) > MAX_IDS:
            raise ValueError(f"job_ids must have at most {MAX_IDS} ids, not {len(ids)}; pass them in parts")
        return await self._store.bulk.versions(ids)

    @_shows_options(_change)
    def cancel_jobs(
        self, *, children: bool = False, **options: Unpack[BulkOptions]
    ) -> AsyncGenerator[Progress, None]:
        """Cancel the pending and running jobs of a search or a list, and yield the progress.

        The jobs are read and changed in batches of 500. Each batch is a transaction. It locks the jobs,
        leaves out jobs that do not match the search any more, changes the others, and writes a record to the
        audit. If a trigger or a constraint of yours refuses a job, the others are changed nevertheless, and
        the error is the ``refusal`` of this job in the ``changes`` of the step. The search is read to its
        end, so a step may have found nothing. If the iteration is stopped or cancelled, it ends after the
        batch in progress. Pass the ``cursor`` of the last step as ``after=`` to continue there.

        Args:
            children: Whether the children of these jobs are cancelled with them, and their children, as by
                `cancel_job()`. A job counts as done if it or one of them was cancelled. Children that the
                caller may not change by ``names`` stay as they are.
            ids: The ids of the jobs.
            where: A search instead, as for `search_jobs()`.
            limit: The number of jobs to change; None for no limit.
            rate: Jobs per second; None for no limit. A batch has at most the jobs of a second.
            dry_run: Whether nothing is changed: the steps then count the jobs whose status allows the action.
            after: The ``cursor`` of an earlier call with the same jobs; None to start with the first one.
            tz: The time zone of days, and of times without one, in ``where``; None rejects such times.
            names: Names to which the jobs are restricted, in which ``*`` stands for any text; None for all.
            run_id: The subject of the records in the audit. Each run needs an id of its own. With it, a batch
                without a change has a record too, and each record has ``next``: the cursor behind its batch,
                where the next batch has to begin. So two calls never change a batch of one run twice. None:
                the subject is the id of the job if a batch changed a single one.
            details: Further values for the records, which JSON can represent; None for none.
            matches: A function of a job that returns whether the job is changed; None for every job. It is
                called when the job is locked, so a job can be left out that has changed since it was read.
            versions: The versions of the jobs by id, as `job_versions()` returned them. A job that has
                another version when it is locked is left out; None for any version. A dry run ignores them.

        Raises:
            SearchError: The search is invalid. A ValueError.
            ValueError: Neither or both of ``ids`` and ``where`` are given, ``where`` is empty, a number is
                out of range, or ``after`` is not a cursor of this call. While iterating: another call has
                changed jobs of ``run_id`` behind ``after``.

        Example::

            async for step in inspector.cancel_jobs(where="status:pending name:mail.*"):
                print(step.summary)
        """
        batch = _with_children(Batch("cancel"), children)
        return self._change(batch, [StatusTerm(UNFINISHED)], **options)

    @_shows_options(_change)
    def retry_jobs(
        self,
        *,
        group: ErrorGroup | None = None,
        from_step: str | None = None,
        children: bool = False,
        **options: Unpack[BulkOptions],
    ) -> AsyncGenerator[Progress, None]:
        """Run finished jobs again now, as `retry_job()` does, and yield the progress.

        A search finds failed, expired and cancelled jobs. It finds completed jobs only if it names
        ``status:completed``. With ``rate`` the jobs do not become due all at once. Jobs that fail again
        meanwhile are not retried twice. The other parameters are those of `cancel_jobs()`.

        Args:
            group: Only jobs of this group of errors that ended in its period, and not after its ``last_at``.
                So no job is retried that `error_groups()` did not count. ``where`` can be omitted.
            from_step: Only jobs that have stored this step. The step and the steps after it are deleted, as
                by `retry_job()`. Other jobs are refused. None to keep all steps.
            children: Whether the children that ended without success run again too, as by `retry_job()`. A
                job counts as done if it or one of them was retried. It is refused, with all of them, if one
                of them cannot be retried.

        Raises:
            ValueError: Both ``from_step`` and ``children=True`` are given; or as in `cancel_jobs()`.

        Example::

            async for step in inspector.retry_jobs(where="status:failed name:mail.send", rate=50):
                print(step.summary)
        """
        terms: list[Term] = [StatusTerm(UNSUCCESSFUL_STATUSES)]
        batch = _with_children(Batch("retry"), children)
        if children and from_step is not None:
            raise ValueError(
                "retry_jobs() takes either from_step= or children=True, which chooses the step of each job "
                f"itself; omit from_step={from_step!r}"
            )
        if from_step is not None:
            batch = replace(batch, from_step=check_step_name(from_step), details={"from_step": from_step})
        if group is not None:
            terms += group_terms(group)
            batch = replace(
                batch,
                matches=lambda job: is_in_group(job, group),
                details={**batch.details, "group": group.fingerprint},
            )
            # Without ids or a search, the jobs are all those of the group.
            if options.get("ids") is None and options.get("where") is None:
                options["where"] = ""
        else:
            where = options.get("where")
            # A completed job runs again only if the caller asks for completed jobs.
            if where is not None and _names_completed(where, options.get("tz")):
                terms = [StatusTerm(UNSUCCESSFUL_STATUSES | {SearchStatus.COMPLETED})]
        return self._change(batch, terms, **options)

    @_shows_options(_change)
    def delete_jobs(self, **options: Unpack[BulkOptions]) -> AsyncGenerator[Progress, None]:
        """Delete jobs that do not run, and yield the progress.

        A job is refused while it runs, and while other jobs or a schedule wait for its end. The parameters
        are those of `cancel_jobs()`.

        Example::

            async for step in inspector.delete_jobs(where="status:completed name:probe", limit=10_000):
                print(step.summary)
        """
        return self._change(Batch("delete"), [], **options)

    async def keep_job(self, job_id: str) -> bool:
        """Keep a pending job from expiring: it waits with its due time, and without a misfire grace time.

        Suppose a job waits for a limit that another one holds for hours. If it must not be lost, take its
        grace time away. The audit records that as ``keep_job``.

        Args:
            job_id: The id of the job.

        Returns:
            True if the job could expire, and cannot any more. False if nothing changed: it could not expire,
            is not pending, or does not exist.

        Raises:
            TypeError: ``job_id`` is no str.
            ValueError: ``job_id`` is empty or too long.

        Example::

            await inspector.keep_job("mail:9")
        """
        is_kept = await self._store.jobs.keep(check_job_id(job_id))
        if is_kept:
            await self.record_action("keep_job", job_id)
        return is_kept

    @_shows_options(_change)
    def move_jobs(
        self,
        *,
        to: datetime | None = None,
        by: timedelta | None = None,
        **options: Unpack[BulkOptions],
    ) -> AsyncGenerator[Progress, None]:
        """Change when pending jobs are due, and yield the progress.

        Each job gets its whole misfire grace time again. A search reads all jobs in the order of their ids,
        so that no job is moved twice. The other parameters are those of `cancel_jobs()`.

        Args:
            to: The new due time of all jobs, timezone-aware; None if ``by`` is given.
            by: The time by which each due time is moved, negative to move it to an earlier time; None if
                ``to`` is given.

        Raises:
            ValueError: Neither or both of ``to`` and ``by`` are given, ``to`` is naive, or ``by`` is longer
                than 100 years.

        Example::

            async for step in inspector.move_jobs(where="status:pending name:mail.*", by=timedelta(hours=1)):
                print(step.summary)
        """
        # Exactly one of the two must be passed.
        if (to is None) is (by is None):
            raise ValueError("move_jobs() needs either to= or by=")
        if by is not None and abs(check_kind("by", by, timedelta)) > MAX_MOVE:
            raise ValueError(f"by must be at most {MAX_MOVE.days} days in either direction, not {by}")
        due_at = None if to is None else check_execution_time(to, name="to")
        by_s = 0.0 if by is None else by.total_seconds()
        details = {"by_s": by_s} if due_at is None else {"to": due_at.isoformat()}
        batch = Batch("move", to=due_at, by_s=by_s, details=details)
        return self._change(batch, [StatusTerm(frozenset({SearchStatus.PENDING}))], **options)


def _checked_versions(versions: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return a copy of the versions of jobs; raise TypeError if they are no mapping."""
    if versions is None:
        return None
    if not isinstance(versions, Mapping):
        raise TypeError(f"versions must be a mapping of ids to versions, not {type(versions).__name__}")
    return dict(versions)


def _both(
    first: Callable[[Job], bool] | None, second: Callable[[Job], bool] | None
) -> Callable[[Job], bool] | None:
    """Return the condition that a job fulfils both conditions, where None is fulfilled by each job."""
    if first is None or second is None:
        return first or second
    return lambda job: first(job) and second(job)


_ALL: Final[Mapping[BulkAction, str]] = {
    "cancel": "status:pending,running",
    "retry": "status:failed,expired,cancelled",
    "delete": "-status:running",
    "move": "status:pending",
}
"""For each action, a search for all jobs that it can change, which an error message recommends."""


def _with_children(batch: Batch, children: bool) -> Batch:
    """Return a batch that changes the families of its jobs with them, if ``children`` is True."""
    if not check_kind("children", children, bool):
        return batch
    return replace(batch, children=True, details={**batch.details, "children": True})


def _check_rate(rate: object) -> None:
    """Raise an error unless ``rate`` is a positive, finite number of jobs per second."""
    # A bool is an int for Python.
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise TypeError(f"rate must be a number of jobs per second, not {rate!r}")
    if not 0 < rate < math.inf:
        raise ValueError(f"rate must be a positive number of jobs per second, not {rate!r}")


def _checked_ids(ids: Iterable[str], after: str | None) -> tuple[str, ...]:
    """Return the ids, each once; raise ValueError if ``after``, the cursor of a list, is none of them."""
    checked_ids = [check_job_id(job_id) for job_id in check_list("ids", ids, "list of ids")]
    distinct_ids = tuple(dict.fromkeys(checked_ids))
    # The cursor of a list is the last id of a batch.
    if after is not None and after not in distinct_ids:
        raise ValueError(f"after= is none of the ids: {after[:100]!r}; pass the cursor of a step")
    return distinct_ids


def _names_completed(where: str, tz: tzinfo | None) -> bool:
    """Return whether a search names ``status:completed`` without a minus sign."""
    search = parse_search(check_text("where", where), now=datetime.now(UTC), tz=tz)
    return any(
        isinstance(term, StatusTerm) and not term.is_negated and SearchStatus.COMPLETED in term.statuses
        for term in search.terms
    )
