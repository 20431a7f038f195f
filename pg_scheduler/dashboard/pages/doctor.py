"""The page of the doctor: its findings, made at a request and shared for a minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.findings import FindingRow, rows_of
from pg_scheduler.inspect import Diagnosis, Severity
from pg_scheduler.inspect.doctor.codes import ADVICE, FindingCode
from pg_scheduler.inspect.texts import counted

MAX_AGE_S: Final = 60.0
"""Seconds for which a diagnosis is shown to everybody: its checks cost more than a page."""


@dataclass(frozen=True, slots=True)
class DoctorPage:
    """A diagnosis."""

    examined_at: datetime
    summary: str
    severity: Severity
    findings: Sequence[FindingRow]
    made: Sequence[str]
    """The codes that were checked."""
    not_made: dict[str, list[str]]
    """The codes that were not checked, or only in part, by the reason."""
    is_general: bool
    """Whether findings lack the subjects and the evidence that mention jobs of hidden names."""

    @property
    def groups(self) -> Mapping[Severity, Sequence[FindingRow]]:
        """The findings that are not muted by their severity, the most severe first."""
        found: dict[Severity, list[FindingRow]] = {severity: [] for severity in reversed(Severity)}
        for each in self.findings:
            if not each.is_muted:
                found[each.severity].append(each)
        return {severity: rows for severity, rows in found.items() if rows}

    @property
    def muted(self) -> Sequence[FindingRow]:
        """The findings that are muted."""
        return [each for each in self.findings if each.is_muted]

    @property
    def passed(self) -> Sequence[tuple[str, str]]:
        """The codes that were checked without a finding, and what a finding would mean."""
        found = {each.code for each in self.findings}
        return [(code, ADVICE[FindingCode(code)].meaning) for code in self.made if code not in found]


async def build(request: PageRequest) -> DoctorPage:
    """Return the diagnosis of the last minute, or make one."""

    async def examine() -> tuple[datetime, Diagnosis]:
        return request.operations.now, await request.inspector.doctor()

    examined_at, diagnosis = await request.cache.get("doctor", MAX_AGE_S, examine)
    is_open = request.access.visible_names is None
    not_made: dict[str, list[str]] = {}
    for each in diagnosis.not_made:
        reason = each.reason if is_open else "their reasons mention jobs of all names"
        not_made.setdefault(reason, []).append(each.code.value)
    return DoctorPage(
        examined_at=examined_at,
        summary=diagnosis.summary if is_open else f"{counted(len(diagnosis.made), 'check')} made",
        severity=diagnosis.severity,
        findings=await rows_of(diagnosis.findings, request),
        made=[code.value for code in diagnosis.made],
        not_made=not_made,
        is_general=not is_open,
    )
