"""The command ``check``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer

from pg_scheduler.inspect import DeployFinding, Severity, check

from .commands import Command
from .errors import CommandError, ExitCode, UsageError
from .output import Column, Shape, columns
from .worker.inside import registered_names
from .worker.options import WorkerOptions
from .worker.process import NOTHING_REGISTERED, open_scheduler
from .worker.target import load_targets

CHECK: Final = Shape(
    "check",
    DeployFinding,
    (
        *columns("code", "severity", "name", "count", "reason"),
        Column("ids", "IDS", is_wide=True),
        Column("remedy", "REMEDY", is_wide=True),
    ),
)


async def check_code(
    command: Command,
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET", help="A Scheduler as package.module:attribute, or modules of jobs."),
    ],
    *,
    name: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only tasks of these names; * is allowed.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Unfinished jobs to examine, at most.")] = 1_000_000,
    fail_on: Annotated[
        Literal["warning", "error"],
        typer.Option("--fail-on", help="Exit with 1 from this severity on."),
    ] = "error",
) -> ExitCode:
    """Compare new code with the unfinished jobs and the schedules, before it is deployed."""
    source = load_targets(targets)
    async with open_scheduler(command, source, WorkerOptions()) as scheduler:
        if scheduler.is_running:
            raise UsageError(f"{targets[0]} starts its Scheduler, which runs jobs; name one that does not")
        if not registered_names(scheduler):
            raise CommandError(ExitCode.NEGATIVE, NOTHING_REGISTERED)
        report = await check(scheduler, name=name, most=most)
    command.output.write_list(
        CHECK,
        report.findings,
        severity=report.severity,
        jobs=report.jobs,
        schedules=report.schedules,
        total=report.total,
        is_complete=report.is_complete,
    )
    command.output.say(report.summary)
    is_failed = report.severity.rank >= Severity(fail_on).rank
    return ExitCode.NEGATIVE if is_failed else ExitCode.DONE
