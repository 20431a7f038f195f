"""The page of the doctor: its findings, made at a request and shared for a minute."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pg_scheduler.dashboard.context import PageRequest, View
from pg_scheduler.dashboard.findings import (
    FindingRow,
    needs_attention,
    read_diagnosis,
    rows_of,
    visible_problems,
)
from pg_scheduler.inspect import Diagnosis, Severity
from pg_scheduler.inspect.doctor.codes import ADVICE
from pg_scheduler.inspect.doctor.findings import worst_of
from pg_scheduler.inspect.status import STATUS_CODES
from pg_scheduler.inspect.texts import counted

MAX_AGE_S: Final = 60.0
"""Seconds for which a diagnosis is shown to everybody: its checks cost more than a page."""


async def build(request: PageRequest) -> View:
    """Return the diagnosis of the last minute, or make one."""
    examined_at, diagnosis = await request.read_shared(_examine, age_s=MAX_AGE_S)
    sees_all_names = request.access.visible_names is None
    not_made: dict[str, list[str]] = {}
    for check in diagnosis.not_made:
        reason = check.reason if sees_all_names else "their reasons mention jobs of all names"
        not_made.setdefault(reason, []).append(check.code.value)
    # What needs attention comes from the newer diagnosis, which the side bar and the overview show, so that
    # the numbers agree. All else comes from the full one, which is up to a minute old.
    newer_findings = (await read_diagnosis(request)).findings
    other_findings = [finding for finding in diagnosis.findings if finding.code.value not in STATUS_CODES]
    problems = await rows_of(visible_problems(newer_findings, request), request)
    all_rows = await rows_of([*newer_findings, *other_findings], request)
    # What needs attention comes first. It is among all findings again, and equal rows are listed once.
    rows = list(dict.fromkeys([*problems, *all_rows]))
    unmuted_rows = [row for row in rows if not row.is_muted]
    attention_rows = [row for row in problems if not row.is_muted]
    further_rows = [row for row in unmuted_rows if row not in attention_rows]
    titled_rows = {
        needs_attention(len(attention_rows)): attention_rows,
        "Other checks": further_rows,
    }
    codes_with_findings = {row.code for row in rows}
    passed = [code for code in diagnosis.made if code.value not in codes_with_findings]
    # The numbers are those of findings that are not muted. Muted ones have a number of their own.
    summary = f"{counted(len(diagnosis.made), 'check')} made"
    if sees_all_names:
        summary = diagnosis.summary_of([row.severity for row in unmuted_rows])
    return View(
        examined_at=examined_at,
        problems=len(attention_rows),
        summary=summary,
        severity=worst_of(row.severity for row in unmuted_rows),
        findings=rows,
        made=[code.value for code in diagnosis.made],
        not_made=not_made,
        is_general=not sees_all_names,
        _checks=_describe_checks(diagnosis),
        _groups={title: _by_severity(group) for title, group in titled_rows.items() if group},
        _muted=[row for row in rows if row.is_muted],
        _passed=[(code.value, ADVICE[code].meaning) for code in passed],
    )


def _describe_checks(diagnosis: Diagnosis) -> str:
    """Return how many checks were made, for a page whose groups have the numbers of findings."""
    unmade_count = len({check.code for check in diagnosis.not_made})
    unmade_text = f", {unmade_count} not made" if unmade_count else ""
    return f"{counted(len(diagnosis.made), 'check')} made{unmade_text}"


def _by_severity(rows: Sequence[FindingRow]) -> dict[Severity, list[FindingRow]]:
    """Return the rows by their severity, the worst first."""
    groups = {severity: [row for row in rows if row.severity is severity] for severity in reversed(Severity)}
    return {severity: group for severity, group in groups.items() if group}


async def _examine(request: PageRequest) -> tuple[datetime, Diagnosis]:
    """Make all checks of the doctor, and return when that was, and their findings."""
    return request.operations.now, await request.inspector.doctor()
