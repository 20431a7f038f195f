"""The command ``doctor``."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import typer

from pg_scheduler.inspect import Diagnosis, Finding, FindingCode, Inspector, Severity
from pg_scheduler.inspect.doctor.advice import ADVICE
from pg_scheduler.inspect.doctor.examination import read_codes
from pg_scheduler.inspect.store.grants import Role, grant_statements

from .commands import Command, add_command
from .errors import CommandError, ExitCode
from .output import SHAPE_VERSION, Column, Shape

FINDING: Final = Shape(
    "finding",
    "code",
    (
        Column("code", "CODE"),
        Column("severity", "SEVERITY"),
        Column("subject", "SUBJECT", is_wide=True),
        Column("evidence", "EVIDENCE"),
        Column("remedy", "REMEDY"),
        Column("runbook", "RUNBOOK", is_wide=True),
    ),
)
ADVICE_SHAPE: Final = Shape(
    "advice",
    "code",
    (
        Column("code", "code"),
        Column("meaning", "meaning"),
        Column("remedy", "remedy"),
        Column("runbook", "runbook"),
    ),
)
RUNBOOK: Final = "operations/runbook.md#"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "doctor")(examine)


async def examine(
    command: Command,
    *,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CODE", help="Check only this code; repeatable.")
    ] = None,
    fail_on: Annotated[
        Literal["warning", "error"],
        typer.Option("--fail-on", help="Exit with 1 from this severity on."),
    ] = "error",
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="CODE", help="Print what a code means, and check nothing."),
    ] = None,
    grants: Annotated[
        Role | None,
        typer.Option("--grants", help="Print the GRANT statements of a database role, and check nothing."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="The name of that role [SCHEMA_ROLE].")
    ] = None,
) -> ExitCode:
    """Check the database, the tables, workers, jobs and schedules; print findings with their remedies."""
    if explain is not None:
        (code,) = read_codes([explain])
        command.output.write_one(ADVICE_SHAPE, _advice(code))
        return ExitCode.DONE
    if grants is not None:
        schema = command.schema or "public"
        statements = grant_statements(grants, schema, to or f"{schema}_{grants.value}")
        command.output.write_text("".join(f"{each};\n" for each in statements))
        return ExitCode.DONE
    if to is not None:
        raise CommandError(ExitCode.USAGE, f"--to {to} names the role of --grants; add --grants ROLE")
    read_codes(only or ())  # a usage error needs no database
    async with command.scheduler(verified=False) as scheduler:
        diagnosis = await Inspector(scheduler).doctor(only=only or ())
    _write(command, diagnosis)
    is_failed = diagnosis.severity.rank >= Severity(fail_on).rank
    return ExitCode.NEGATIVE if is_failed else ExitCode.DONE


def _write(command: Command, diagnosis: Diagnosis) -> None:
    not_made = [{"code": each.code.value, "reason": each.reason} for each in diagnosis.not_made]
    command.output.write_list(
        FINDING,
        [_row(finding) for finding in diagnosis.findings],
        severity=diagnosis.severity.value,
        made=[code.value for code in diagnosis.made],
        not_made=not_made,
    )
    by_reason: dict[str, list[str]] = {}
    for each in diagnosis.not_made:
        by_reason.setdefault(each.reason, []).append(each.code.value)
    for reason, codes in by_reason.items():
        command.output.say(f"not checked: {', '.join(codes)}: {reason}")
    command.output.say(diagnosis.summary)


def _row(finding: Finding) -> dict[str, Any]:
    return {
        "v": SHAPE_VERSION,
        "code": finding.code.value,
        "severity": finding.severity.value,
        "subject": finding.subject,
        "evidence": finding.evidence,
        "remedy": finding.remedy,
        "runbook": RUNBOOK + finding.anchor,
    }


def _advice(code: FindingCode) -> dict[str, Any]:
    advice = ADVICE[code]
    return {
        "v": SHAPE_VERSION,
        "code": code.value,
        "meaning": advice.meaning,
        "remedy": advice.remedy,
        "runbook": RUNBOOK + code.lower(),
    }
