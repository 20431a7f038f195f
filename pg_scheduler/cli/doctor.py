"""The command ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import typer

from pg_scheduler.inspect import Finding, FindingCode, Inspector, Severity
from pg_scheduler.inspect.doctor.codes import ADVICE
from pg_scheduler.inspect.doctor.examination import read_codes
from pg_scheduler.inspect.store.grants import Role, grant_statements
from pg_scheduler.text.values import copy_fields

from .commands import Command
from .errors import ExitCode, UsageError
from .output import Column, Shape, columns


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProblem(Finding):
    """A finding of the doctor."""

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
        Column("subject", "SUBJECT", is_wide=True),
        *columns("evidence", "remedy"),
        Column("runbook", "RUNBOOK", is_wide=True),
    ),
)
ADVICE_SHAPE: Final = Shape(
    "advice",
    ExplainedCode,
    (
        Column("code", "code"),
        Column("meaning", "meaning"),
        Column("remedy", "remedy"),
        Column("runbook", "runbook"),
    ),
)
RUNBOOK: Final = "operations/runbook.md#"


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
        advice = ADVICE[code]
        explained = ExplainedCode(code, advice.meaning, advice.remedy, RUNBOOK + code.lower())
        command.output.write_one(ADVICE_SHAPE, explained)
        return ExitCode.DONE
    if grants is not None:
        schema = command.schema or "public"
        statements = grant_statements(grants, schema, to or f"{schema}_{grants.value}")
        command.output.write_text("".join(f"{each};\n" for each in statements))
        return ExitCode.DONE
    if to is not None:
        raise UsageError(f"--to {to} names the role of --grants; add --grants ROLE")
    read_codes(only or ())  # a usage error needs no database
    async with command.scheduler(verified=False) as scheduler:
        diagnosis = await Inspector(scheduler).doctor(only=only or ())
    command.output.write_list(
        FINDING,
        [copy_fields(FoundProblem, each, runbook=RUNBOOK + each.anchor) for each in diagnosis.findings],
        severity=diagnosis.severity,
        made=diagnosis.made,
        not_made=diagnosis.not_made,
    )
    by_reason: dict[str, list[str]] = {}
    for each in diagnosis.not_made:
        by_reason.setdefault(each.reason, []).append(each.code.value)
    for reason, codes in by_reason.items():
        command.output.say(f"not checked: {', '.join(codes)}: {reason}")
    command.output.say(diagnosis.summary)
    is_failed = diagnosis.severity.rank >= Severity(fail_on).rank
    return ExitCode.NEGATIVE if is_failed else ExitCode.DONE
