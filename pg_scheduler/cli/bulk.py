"""Change the jobs of ids or of a search: ``jobs cancel``, ``retry``, ``delete`` and ``move``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias

import typer

from pg_scheduler import JobStatus
from pg_scheduler.base.dsn import remove_secrets
from pg_scheduler.base.text.values import copy_fields
from pg_scheduler.events.log import describe_refusal
from pg_scheduler.inspect import ChangeOutcome, ErrorGroup, Inspector, JobChange, Progress
from pg_scheduler.inspect.bulk import RULES
from pg_scheduler.inspect.store.bulk import BulkAction
from pg_scheduler.inspect.texts import counted, term

from .commands import Command, confirm, reject_empty
from .errors import ExitCode, NotFoundError, UsageError
from .output import Column, Output, Shape
from .progress import ProgressStyle, Reporter, read_style
from .values import Yes, read_move, read_rate, read_since

ChangeResult: TypeAlias = Literal[
    "cancelled", "retried", "deleted", "moved", "would be cancelled", "would be retried", "would be deleted",
    "would be moved", "refused", "not found",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of a command on a job."""

    job_id: str
    result: ChangeResult
    status: JobStatus | None
    """The status before; None if the job does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkChange:
    """The effect of a command on the jobs of a search."""

    action: BulkAction
    dry_run: bool
    """Whether nothing was changed."""
    done: int
    """Jobs that were changed, or that a dry run would change."""
    children: int
    """Children that were changed with their jobs, by --children."""
    refused: int
    """Jobs whose state does not allow it, or that a trigger or a constraint of yours refused."""
    skipped: int
    """Jobs that did not match the search any more."""
    searched: int
    """Jobs that were examined."""
    total_estimate: int | None
    """About how many jobs the whole search examines."""
    after: str | None
    """The --after that continues; None if the search is complete."""


CHANGE: Final = Shape(
    "change",
    Change,
    (Column("job_id", "ID", is_id=True), Column("result"), Column("status", "STATUS BEFORE")),
)
BULK: Final = Shape(
    "bulk",
    BulkChange,
    (
        Column("action", "action"),
        Column("done", "done"),
        Column("children", "child jobs"),
        Column("refused", "refused"),
        Column("skipped", "skipped"),
        Column("searched", "jobs searched"),
        Column("after", "continue with --after"),
    ),
)
_FOUND: Final = Shape(
    "found",
    JobChange,
    (Column("job_id", "ID", is_id=True), Column("job_name", "NAME"), Column("status")),
)
MAX_SHOWN: Final = 10
"""Jobs shown before the question, moved jobs whose due times are shown, and refusals shown with reasons."""

_RESULTS: Final[Mapping[BulkAction, tuple[ChangeResult, ChangeResult]]] = {
    "cancel": ("cancelled", "would be cancelled"),
    "retry": ("retried", "would be retried"),
    "delete": ("deleted", "would be deleted"),
    "move": ("moved", "would be moved"),
}
"""The result of an action on a job, and that of a dry run."""

Group = Annotated[
    str | None, typer.Option(metavar="F", help="Every job of a group that jobs errors prints instead.")
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME|1h", help="With --group: only its jobs that ended since then, as in jobs errors."
    ),
]
FromStep = Annotated[
    str | None,
    typer.Option("--from", metavar="NAME", help="Repeat this stored step of the jobs and the later ones."),
]
CancelChildren = Annotated[
    bool, typer.Option("--children", help="Also their children, except detached ones, and those of these.")
]
RetryChildren = Annotated[
    bool,
    typer.Option(
        "--children",
        help="Also their children that ended without success; parents repeat the step that waited for them.",
    ),
]
To = Annotated[
    str,
    typer.Option(
        "--to", metavar="TIME|+1h", help="When they are due, or by how much later or earlier (-1h)."
    ),
]

Start = Callable[..., AsyncGenerator[Progress, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """The options that the commands ``cancel``, ``retry``, ``delete`` and ``move`` share."""

    job_ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="The ids of jobs.", callback=reject_empty)
    ] = None
    where: Annotated[str | None, typer.Option(metavar="SEARCH", help="Every job of a search instead.")] = None
    limit: Annotated[int | None, typer.Option(metavar="N", help="Change at most so many jobs.")] = None
    rate: Annotated[
        str | None, typer.Option(metavar="50/s", help="Spread the changes: jobs per s, m or h.")
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the jobs and change nothing.")] = False
    yes: Yes = False
    after: Annotated[str | None, typer.Option(help="Continue where an interrupted command stopped.")] = None
    progress: ProgressStyle = None

    def jobs(self, command: Command, *, has_group: bool) -> dict[str, Any]:
        """Return the parameters of the `Inspector` that name the jobs: their ids, or a search.

        ``has_group`` is whether a group of errors names them, which counts as a search.
        """
        has_ids = bool(self.job_ids)
        has_search = self.where is not None or has_group
        # Either ids or a search must name the jobs. These are equal if there is neither of them, or both.
        if has_ids == has_search:
            hint = ""
            # With both, the shell has probably split the search.
            if self.job_ids and self.where is not None:
                search = " ".join((self.where, *self.job_ids))
                hint = f"; quote the search: --where {shlex.quote(search)}"
            raise UsageError(f"name jobs either by their ids or by a search{hint}")
        if has_ids:
            return {"ids": self.job_ids}
        return {"where": self.where, "tz": command.output.zone}


async def cancel(command: Command, options: BulkOptions, *, children: CancelChildren = False) -> ExitCode:
    """Cancel pending or running jobs."""
    async with command.inspector() as inspector:
        cancel_jobs = partial(inspector.cancel_jobs, children=children)
        return await _change(command, "cancel", options, cancel_jobs, has_children=children)


async def retry(
    command: Command,
    options: BulkOptions,
    group: Group = None,
    since: Since = None,
    from_step: FromStep = None,
    *,
    children: RetryChildren = False,
) -> ExitCode:
    """Run finished jobs again now. A search leaves out completed jobs unless it has status:completed."""
    # A search has its own condition for the time.
    if since is not None and group is None:
        raise UsageError("--since needs --group; for a search, write finished:>-1h")
    if children and from_step is not None:
        raise UsageError("pass either --from or --children, which chooses the step of each job itself")
    ended_since = None if since is None else read_since("--since", since, command.output.zone)
    async with command.inspector() as inspector:
        error_group = None if group is None else await _find_group(inspector, group, ended_since)
        retry_jobs = partial(inspector.retry_jobs, group=error_group, from_step=from_step, children=children)
        return await _change(
            command, "retry", options, retry_jobs, has_group=group is not None, has_children=children
        )


async def delete(command: Command, options: BulkOptions) -> ExitCode:
    """Delete jobs that do not run and for whose end nothing waits."""
    async with command.inspector() as inspector:
        return await _change(command, "delete", options, inspector.delete_jobs)


async def move(command: Command, options: BulkOptions, *, to: To) -> ExitCode:
    """Change when pending jobs are due."""
    target = read_move("--to", to, command.output.zone)
    parameter = {"to": target} if isinstance(target, datetime) else {"by": target}
    async with command.scheduler() as scheduler:
        move_jobs = partial(Inspector(scheduler).move_jobs, **parameter)
        code = await _change(command, "move", options, move_jobs)
        moved_ids: Sequence[str] = ()
        if options.job_ids and not options.dry_run:
            moved_ids = options.job_ids
        # The changes do not contain the new due times, so the jobs are read again.
        for job_id in moved_ids[:MAX_SHOWN]:
            job = await scheduler.get_job(job_id)
            if job is not None and job.status is JobStatus.PENDING:
                command.output.say(f"job {job_id} is due at {command.output.when(job.execution_time)}")
    return code


async def _find_group(inspector: Inspector, fingerprint: str, since: datetime | None) -> ErrorGroup:
    """Return the group of similar errors that a fingerprint identifies.

    The group has the jobs that ended since an instant; all of its jobs if that is None.

    Raises:
        CommandError: There is no such group, or it has no such job, or its errors are different ones.
    """
    group = await inspector.error_group(fingerprint, since=since)
    # If the last error of the group is older than the instant, no job of it has ended since.
    if group is None or (since is not None and group.last_at < since):
        period = "" if since is None else " in this period"
        raise NotFoundError(
            f"no group of errors {fingerprint!r}{period}; pg-scheduler jobs errors lists them"
        )
    if group.is_mixed:
        where = f"status:failed {term('name', group.job_name)}"
        raise UsageError(
            f"the group {fingerprint} has different errors, which are counted together; "
            f"name its jobs by a search: --where {shlex.quote(where)}"
        )
    return group


async def _change(
    command: Command,
    action: BulkAction,
    options: BulkOptions,
    start: Start,
    *,
    has_group: bool = False,
    has_children: bool = False,
) -> ExitCode:
    """Change the jobs, and write what was done. If a search names them, a question comes first.

    ``start`` is the method of the `Inspector` that changes jobs, and yields the progress. ``has_children`` is
    whether it changes their children too.
    """
    parameters = options.jobs(command, has_group=has_group)
    parameters |= {"limit": options.limit, "after": options.after}
    rate = read_rate(options.rate)
    has_search = not options.job_ids
    # With --yes there is no question, so there is no need to show jobs before it.
    if has_search and (options.dry_run or not options.yes):
        # The first step of a dry run has the first jobs of the search. It is shown before the question.
        search = start(**parameters, dry_run=True)
        step = await anext(search)
        await search.aclose()
        _show_first_jobs(command, action, step)
        # Without jobs in this step and without a cursor to further ones, there is nothing to change.
        if not options.dry_run and (step.done or step.cursor):
            children_text = " with its children" if has_children else ""
            confirm(f"{action.capitalize()} every job of this search{children_text}?", yes=False)
    run = _Run(command, action, options)
    try:
        await run.follow(start(**parameters, rate=rate, dry_run=options.dry_run))
    finally:
        # An interrupted command writes what it has done, too.
        code = run.write()
    return code


def _show_first_jobs(command: Command, action: str, step: Progress) -> None:
    """Show on stderr the first jobs of a search to which the action applies, and their number so far.

    The step is the first one of a dry run, so its jobs that are "done" are those that would be changed.
    """
    table = Output("table", command.output.zone, out=sys.stderr)
    changes = [change for change in step.changes if change.outcome is ChangeOutcome.DONE]
    table.write_list(_FOUND, changes[:MAX_SHOWN])
    above = f", {MAX_SHOWN} of them above" if step.done > MAX_SHOWN else ""
    continuation = "" if step.cursor is None else "; the search continues"
    command.output.say(f"{counted(step.done, 'job')} to {action} found{above}{continuation}")


class _Run:
    """An action that is followed to its end, and what was done until then."""

    def __init__(self, command: Command, action: BulkAction, options: BulkOptions) -> None:
        self._output = command.output
        self._secrets = command.settings.secrets
        self._action = action
        self._options = options
        self._last_step: Progress | None = None
        self._changes: list[JobChange] = []
        self._refusals: list[str] = []
        """The reasons of the first jobs that a trigger or a constraint of the application refused."""
        self._refusal_count = 0

    async def follow(self, steps: AsyncGenerator[Progress, None]) -> None:
        """Run the action to its end, and show its progress."""
        with Reporter(read_style(self._options.progress), self._output) as reporter:
            async for step in steps:
                self._last_step = step
                # A list of each job is written only for ids. A search may change millions of jobs.
                if self._options.job_ids:
                    self._changes += step.changes
                for change in step.changes:
                    if change.refusal is not None:
                        self._add_refusal(change.job_id, change.refusal)
                reporter.show(step.summary, step.searched, step.total_estimate)

    def write(self) -> ExitCode:
        """Write what was done, and how to continue; return the exit code.

        If ids name the jobs, the exit code is that of the worst outcome of a job. For a search, only a job
        that a trigger or a constraint of the application refused counts as an error.
        """
        step = self._last_step
        # The action was interrupted before its first step, so nothing was changed.
        if step is None:
            return ExitCode.DONE
        has_search = not self._options.job_ids
        code = self._write_summary(step) if has_search else self._write_changes()
        # The list of the jobs that ids name suffices, unless the action ended before the last of them.
        if has_search or step.cursor is not None or step.children:
            self._output.say(step.summary)
        # The rule states which jobs the action takes: why some were refused, or why a search found none.
        rule = RULES[self._action]
        for refusal in self._refusals:
            self._output.say(refusal)
        if self._refusal_count > len(self._refusals):
            more = counted(self._refusal_count - len(self._refusals), "further job")
            self._output.say(f"the application also refused {more}")
        if step.refused > self._refusal_count:
            self._output.say(f"refused: {rule}")
        elif has_search and not step.done and not self._refusals:
            self._output.say(rule)
        self._output.say_next(step.cursor)
        return code

    def _add_refusal(self, job_id: str, error: Exception) -> None:
        """Add a job that a trigger or a constraint of the application refused."""
        self._refusal_count += 1
        if len(self._refusals) < MAX_SHOWN:
            text = remove_secrets(describe_refusal(error), self._secrets)
            self._refusals.append(f"job {job_id!r}: {text}")

    def _write_changes(self) -> ExitCode:
        """Write the result of each job, and return the exit code of the worst one."""
        rows = [Change(change.job_id, self._result(change), change.status) for change in self._changes]
        self._output.write_list(CHANGE, rows)
        results = {row.result for row in rows}
        if "not found" in results:
            return ExitCode.NOT_FOUND
        return ExitCode.REFUSED if "refused" in results else ExitCode.DONE

    def _write_summary(self, step: Progress) -> ExitCode:
        """Write the numbers of changed, refused and skipped jobs."""
        dry_run = self._options.dry_run
        change = copy_fields(BulkChange, step, action=self._action, dry_run=dry_run, after=step.cursor)
        # A table omits how to continue if nothing is left, and the children if there are none.
        omitted = {name for name, value in (("after", step.cursor), ("children", step.children)) if not value}
        columns = [
            column for column in BULK.columns if not self._output.is_table or column.key not in omitted
        ]
        self._output.write_one(replace(BULK, columns=tuple(columns)), change)
        return ExitCode.REFUSED if self._refusals else ExitCode.DONE

    def _result(self, change: JobChange) -> ChangeResult:
        """Return the outcome of a job as a word. With ids, a job is skipped only if it does not exist."""
        match change.outcome:
            case ChangeOutcome.DONE:
                changed, would_be_changed = _RESULTS[self._action]
                return would_be_changed if self._options.dry_run else changed
            case ChangeOutcome.REFUSED:
                return "refused"
            case ChangeOutcome.SKIPPED:
                return "not found"
