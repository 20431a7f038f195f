"""``doctor`` and ``check``: examine the system, and code before its deployment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from pg_scheduler.base.text.values import copy_fields
from pg_scheduler.inspect import DeployFinding, FindingCode, Severity, check
from pg_scheduler.inspect.doctor.codes import ADVICE
from pg_scheduler.inspect.doctor.examination import read_codes
from pg_scheduler.inspect.store.grants import Role, default_name, grant_statements
from pg_scheduler.inspect.store.senders import sender_script

from .commands import Command
from .deployment import find_alert, runbook
from .errors import CommandError, ExitCode, UsageError
from .output import Column, Shape, columns
from .values import FailOn, Targets


@dataclass(frozen=True, slots=True)
class FoundProblem:
    """A finding of the doctor, with its remedy as a sentence."""

    code: FindingCode
    severity: Severity
    subject: str
    evidence: str
    remedy: str | None
    runbook: str
    """The page that describes it."""


@dataclass(frozen=True, slots=True)
class ExplainedCode:
    """The meaning of a code of the doctor."""

    code: FindingCode
    meaning: str
    remedy: str
    runbook: str
    """The page that describes it."""


FINDING: Final = Shape(
    "finding",
    FoundProblem,
    (
        *columns("code", "severity"),
        Column("subject", is_wide=True),
        *columns("evidence", "remedy"),
        Column("runbook", is_wide=True),
    ),
)
ADVICE_SHAPE: Final = Shape("advice", ExplainedCode, identity="code")
RUNBOOK: Final = "operations/runbook.md#"


async def examine(
    command: Command,
    *,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CODE", help="Check only this code; repeatable.")
    ] = None,
    fail_on: FailOn = "error",
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain", metavar="CODE", help="Print what a code or an alert means, and check nothing."
        ),
    ] = None,
    grants: Annotated[
        Role | None,
        typer.Option("--grants", help="Print the GRANT statements of a database role, and check nothing."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="The name of that role [SCHEMA_ROLE].")
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks",
            metavar="NAME",
            help="A task whose jobs a sender may add, cancel and signal, with * for any text; repeatable.",
        ),
    ] = None,
    signals: Annotated[
        list[str] | None,
        typer.Option("--signals", metavar="NAME", help="A signal that a sender may send [*]; repeatable."),
    ] = None,
) -> ExitCode:
    """Check the database, the tables, workers, jobs and schedules; print findings with their remedies."""
    if explain is not None:
        # The name may be that of an alert, which the runbook explains, or a code of the doctor.
        if find_alert(explain) is not None:
            runbook(command, explain)
            return ExitCode.DONE
        (code,) = read_codes([explain])
        advice = ADVICE[code]
        explained = ExplainedCode(code, advice.meaning, advice.remedy, RUNBOOK + code.lower())
        command.output.write_one(ADVICE_SHAPE, explained)
        return ExitCode.DONE
    if grants is not None:
        schema = command.schema or "public"
        grantee = to or default_name(grants, schema)
        if grants is Role.SENDER:
            if not tasks:
                raise UsageError(
                    "a sender may add, cancel and signal jobs of named tasks; "
                    "add --tasks NAME, or --tasks '*' for all"
                )
            command.output.write_text(sender_script(schema, grantee, tasks, signals or ["*"]))
            return ExitCode.DONE
        if tasks or signals:
            raise UsageError(f"--tasks and --signals belong to --grants sender, not to {grants.value}")
        statements = grant_statements(grants, schema, grantee)
        command.output.write_text("".join(f"{statement};\n" for statement in statements))
        return ExitCode.DONE
    if tasks or signals:
        raise UsageError("--tasks and --signals belong to a role of --grants; add --grants sender")
    if to is not None:
        raise UsageError(f"--to {to} names the role of --grants; add --grants ROLE")
    # An unknown code is an error of usage, which is raised before the database is needed.
    read_codes(only or ())
    async with command.inspector(verified=False) as inspector:
        diagnosis = await inspector.doctor(only=only or ())
    command.output.write_list(
        FINDING,
        [
            copy_fields(FoundProblem, finding, runbook=RUNBOOK + finding.anchor)
            for finding in diagnosis.findings
        ],
        severity=diagnosis.severity,
        made=diagnosis.made,
        not_made=diagnosis.not_made,
    )
    # Checks that were not made for the same reason are named in one line.
    codes_by_reason: dict[str, list[str]] = {}
    for check_not_made in diagnosis.not_made:
        codes_by_reason.setdefault(check_not_made.reason, []).append(check_not_made.code.value)
    for reason, codes in codes_by_reason.items():
        command.output.say(f"not checked: {', '.join(codes)}: {reason}")
    command.output.say(diagnosis.summary)
    return _exit_code(diagnosis.severity, fail_on)


CHECK: Final = Shape(
    "check",
    DeployFinding,
    (*columns("code", "severity", "name", "count", "reason"), *columns("ids", "remedy", is_wide=True)),
)


async def check_code(
    command: Command,
    targets: Targets,
    *,
    name: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only tasks of these names; * is allowed.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Unfinished jobs to examine, at most.")] = 1_000_000,
    fail_on: FailOn = "error",
) -> ExitCode:
    """Compare new code with the unfinished jobs and the schedules, before it is deployed."""
    from pg_scheduler.tools import registered_names  # noqa: PLC0415 - only this needs a worker

    from .worker.options import WorkerOptions  # noqa: PLC0415
    from .worker.process import NOTHING_REGISTERED, open_scheduler  # noqa: PLC0415
    from .worker.target import load_targets  # noqa: PLC0415

    source = load_targets(targets)
    async with open_scheduler(command, source, WorkerOptions()) as scheduler:
        # A Scheduler that runs jobs would run those of production with the code that is only to be checked.
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
    return _exit_code(report.severity, fail_on)


def _exit_code(severity: Severity, fail_on: str) -> ExitCode:
    """Return NEGATIVE if the worst severity of the findings is ``fail_on`` or worse, else DONE."""
    is_failure = severity.rank >= Severity(fail_on).rank
    return ExitCode.NEGATIVE if is_failure else ExitCode.DONE
