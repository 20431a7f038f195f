"""``status``, ``stats`` and ``audit``: the state of everything, figures over time, and who did what."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

import typer

from pg_scheduler.base.figures import OUTCOMES, JobFigures, JobOutcome
from pg_scheduler.facts.outcomes import count_failed
from pg_scheduler.inspect import (
    AuditRecord,
    Severity,
    Statistics,
    StatisticsRow,
    Status,
    StatusArea,
    read_status,
)
from pg_scheduler.inspect.audit import ACTIONS

from .commands import CLEAR, Command, Watch, pause_between_runs, watched
from .errors import CommandError, ExitCode, UsageError, hint_at
from .output import Column, Shape, columns
from .values import After, read_duration, read_since


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFigures:
    """The counts and measurements of workers for a name."""

    name: str
    scheduled: int
    started: int
    completed: int
    failed: int
    """Attempts that failed, retried and lost ones included."""
    retried: int
    cancelled: int
    skipped: int
    released: int
    snoozed: int
    expired: int
    lost: int
    suspended: int
    run_p50_s: float | None
    run_p95_s: float | None
    late_p50_s: float | None
    late_p95_s: float | None
    trend: str
    """Started attempts as bars, oldest first."""


@dataclass(frozen=True, slots=True)
class OutcomeFigures:
    """How many attempts or jobs ended in a way."""

    outcome: JobOutcome
    jobs: int
    trend: str
    """Numbers as bars, oldest first."""


AREA: Final = Shape(
    "area",
    StatusArea,
    (Column("area"), Column("severity", "STATE"), Column("text", "FIGURES")),
)
FIGURES: Final = Shape(
    "figures",
    NameFigures,
    (
        *columns("name", "started", "completed", "failed"),
        *columns("retried", "run_p50_s", is_wide=True),
        Column("run_p95_s"),
        Column("late_p95_s", is_wide=True),
        Column("trend", is_long=True),
    ),
)
OUTCOME: Final = Shape(
    "outcome",
    OutcomeFigures,
    (*columns("outcome", "jobs"), Column("trend", is_long=True)),
)
TREND_POINTS: Final = 20
"""The maximum number of bars of a trend."""

MIN_WIDTH: Final = timedelta(minutes=1)
"""The least time of a bar, which is the time of a row of the statistics."""

BARS: Final = "▁▂▃▄▅▆▇█"


async def status(
    command: Command,
    watch: Watch = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if anything is in error.")] = False,
) -> ExitCode:
    """Print in sentences whether all is well, and a row for each area."""
    is_watching = watch is not None
    while True:
        report = await _read(command, is_watching=is_watching)
        # There is no report if the database was unavailable during a watch.
        if report is not None:
            _write(command, report, is_watching=is_watching)
        if watch is None:
            break
        await pause_between_runs(watch)
    has_error = report is not None and report.severity is Severity.ERROR
    return ExitCode.NEGATIVE if strict and has_error else ExitCode.DONE


@watched
async def stats(
    command: Command,
    since: Annotated[str, typer.Option(metavar="TIME", help="How far to look back: 15m, 6h, 7d.")] = "1h",
    by: Annotated[Literal["name", "outcome"], typer.Option(help="A row for each of these.")] = "name",
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="NAME", help="Only this name; repeatable.")
    ] = None,
) -> None:
    """Print what workers counted and measured: attempts, outcomes, durations, lateness."""
    period = timedelta(seconds=read_duration("--since", since))
    async with command.inspector() as inspector:
        # The outcomes of all names together are sums. statistics_by_time() lets the database add them up,
        # which covers more rows than statistics() returns. But its names are patterns, and --name takes exact
        # ones.
        if by == "outcome" and not name:
            statistics = await inspector.statistics_by_time(
                period, width=max(MIN_WIDTH, period / TREND_POINTS)
            )
        else:
            statistics = await inspector.statistics(period, names=name)
    if by == "name":
        rows = [_figures_row(statistics, task, figures) for task, figures in statistics.by_name().items()]
        command.output.write_list(FIGURES, rows, uncounted=statistics.uncounted)
    else:
        # Each number is that of the outcome at the same place in OUTCOMES. Outcomes that none had are left
        # out.
        numbers = enumerate(statistics.total().ended)
        outcomes = [_outcome_row(statistics, place, number) for place, number in numbers if number]
        command.output.write_list(OUTCOME, outcomes, uncounted=statistics.uncounted)
    omission = "" if statistics.is_complete else "; the oldest figures are left out"
    command.output.say(
        f"from {command.output.when(statistics.since)} to {command.output.when(statistics.until)}{omission}"
    )
    if statistics.uncounted is not None:
        command.output.say(statistics.uncounted)


RECORD: Final = Shape(
    "audit_record",
    AuditRecord,
    (
        *columns("at", "actor", "action"),
        Column("subject", is_long=True),
        *columns("via", "details", is_wide=True),
    ),
    identity="id",
)


async def audit(
    command: Command,
    *,
    action: Annotated[str | None, typer.Option(help="Only this action, such as cancel_jobs.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only changes that this person or node made.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only changes of this job, schedule or task.")] = None,
    via: Annotated[str | None, typer.Option(help="Only changes by this way: api, cli, code ...")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME|1h", help="Only changes since this time, or so long ago.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME|1h", help="Only changes before this time, or so long ago.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Records of the page, up to 1000.")] = 50,
    after: After = None,
) -> None:
    """Print who did what, the newest changes first."""
    zone = command.output.zone
    async with command.inspector() as inspector:
        page = await inspector.audit(
            action=action,
            actor=actor,
            subject=subject,
            via=via,
            since=None if since is None else read_since("--since", since, zone),
            until=None if until is None else read_since("--until", until, zone),
            limit=limit,
            after=after,
        )
    # A name that no record has is probably misspelled, unless it is one of the actions that are recorded.
    if not page.items and action is not None and action not in ACTIONS:
        raise UsageError(f"unknown action {action!r}{hint_at(action, ACTIONS, title='actions')}")
    command.output.write_list(RECORD, page.items, next=page.next, summary=page.summary)
    command.output.say(page.summary)
    command.output.say_next(page.next)


def sparkline(values: list[int]) -> str:
    """Return a bar for each value, with a height in proportion to the value."""
    highest = max(values, default=0)
    if not highest:
        return BARS[0] * len(values)
    levels = [round(value / highest * (len(BARS) - 1)) for value in values]
    return "".join(BARS[level] for level in levels)


def _trend(statistics: Statistics, number_of: Callable[[StatisticsRow], int]) -> str:
    """Return a bar for each part of the period.

    Its height is the sum of one number of the rows in this part. ``number_of`` returns this number of a row.
    """
    width = max(MIN_WIDTH, statistics.duration / TREND_POINTS)
    # There is one part more than whole ones: for the remainder, and for a row at the end of the period.
    values = [0] * (int(statistics.duration / width) + 1)
    for row in statistics.rows:
        place = int((row.at - statistics.since) / width)
        # A row at an edge of the period may begin outside of it. Then it belongs to the first or last part.
        place = min(max(place, 0), len(values) - 1)
        values[place] += number_of(row)
    return sparkline(values)


async def _read(command: Command, *, is_watching: bool) -> Status | None:
    """Return the status. While watching, return None after a message if the database is unavailable."""
    try:
        async with command.inspector() as inspector:
            return await read_status(inspector)
    except CommandError as error:
        if not is_watching or error.code is not ExitCode.UNAVAILABLE:
            raise
        command.output.say(str(error))
        return None


def _write(command: Command, report: Status, *, is_watching: bool) -> None:
    """Write the status. In a table its sentences come first; with another format, they go to stderr."""
    output = command.output
    if output.is_table:
        if is_watching:
            output.write_text(CLEAR if sys.stdout.isatty() else "\n")
            output.write_line(output.when(datetime.now(UTC)))
        for sentence in report.sentences:
            output.write_line(sentence)
        output.write_line("")
    output.write_list(AREA, report.areas, severity=report.severity, sentences=report.sentences)
    if not output.is_table:
        for sentence in report.sentences:
            output.say(sentence)


def _figures_row(statistics: Statistics, name: str, figures: JobFigures) -> NameFigures:
    """Return the row of a name."""
    # ``ended`` has the numbers of attempts in the order of OUTCOMES.
    counts = dict(zip(OUTCOMES, figures.ended, strict=True))
    # The column has retried and lost attempts too, which are outcomes of their own in the statistics.
    counts["failed"] = count_failed(figures)

    def started(row: StatisticsRow) -> int:
        # The rows are those of all names.
        return row.figures.started if row.job_name == name else 0

    return NameFigures(
        name=name,
        scheduled=figures.scheduled,
        started=figures.started,
        run_p50_s=seconds(figures.durations.quantile(0.5)),
        run_p95_s=seconds(figures.durations.quantile(0.95)),
        late_p50_s=seconds(figures.lateness.quantile(0.5)),
        late_p95_s=seconds(figures.lateness.quantile(0.95)),
        trend=_trend(statistics, started),
        **counts,
    )


def _outcome_row(statistics: Statistics, place: int, jobs: int) -> OutcomeFigures:
    """Return the row of an outcome, by its place in ``OUTCOMES``."""
    trend = _trend(statistics, lambda row: row.figures.ended[place])
    return OutcomeFigures(OUTCOMES[place], jobs, trend)


def seconds(value: float | None) -> float | None:
    """Return a duration with three significant digits: the buckets of the statistics are not more precise."""
    return None if value is None else float(f"{value:.3g}")
