"""The page of the doctor: its findings, made at a request and shared for a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pg_scheduler.dashboard.context import PageRequest, time_of
from pg_scheduler.dashboard.texts import RUNBOOK
from pg_scheduler.inspect import Diagnosis, Finding, FindingCode, Severity
from pg_scheduler.inspect.doctor.codes import ADVICE
from pg_scheduler.inspect.doctor.jobs import SLOTS_FREE

MAX_AGE_S: Final = 60.0
"""Seconds for which a diagnosis is shown to everybody: its checks cost more than a page."""


ABOUT_ONE_NAME: Final = frozenset({FindingCode.FAILING, FindingCode.NAME_UNKNOWN, FindingCode.SCHED_UNKNOWN})
"""Findings whose subject is a job name, and whose evidence mentions no other."""

ABOUT_NAMES: Final = ABOUT_ONE_NAME | {FindingCode.LATE, FindingCode.QUARANTINE}
"""Findings whose subject is a job name."""


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding. What the request may not see is None."""

    code: str
    severity: Severity
    meaning: str
    subject: str | None
    evidence: str | None
    remedy: str | None
    runbook: str
    """The address of its entry in the runbook."""


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


async def build(request: PageRequest) -> DoctorPage:
    """Return the diagnosis of the last minute, or make one."""

    async def examine() -> tuple[datetime, Diagnosis]:
        return time_of(request.inspector), await request.inspector.doctor()

    examined_at, diagnosis = await request.cache.get("doctor", MAX_AGE_S, examine)
    is_open = request.access.visible_names is None
    not_made: dict[str, list[str]] = {}
    for each in diagnosis.not_made:
        reason = each.reason if is_open else "their reasons mention jobs of all names"
        not_made.setdefault(reason, []).append(each.code.value)
    rows = [row_of(each, request) for each in diagnosis.findings]
    return DoctorPage(
        examined_at=examined_at,
        summary=diagnosis.summary if is_open else f"{len(diagnosis.made)} checks made",
        severity=diagnosis.severity,
        findings=list(dict.fromkeys(rows)),  # without subjects, the findings of a code are equal
        made=[code.value for code in diagnosis.made],
        not_made=not_made,
        is_general=not is_open,
    )


def row_of(finding: Finding, request: PageRequest) -> FindingRow:
    """Return the finding without the texts that could mention what is hidden."""
    is_open = request.access.visible_names is None and (
        request.access.sees_arguments or finding.code is not FindingCode.XMIN_HELD  # contains a statement
    )
    is_own = finding.code in ABOUT_NAMES and request.access.sees_name(finding.subject)
    return FindingRow(
        code=finding.code.value,
        severity=finding.severity,
        meaning=finding.meaning,
        subject=finding.subject if is_open or is_own else None,
        evidence=finding.evidence if is_open else _own_evidence(finding) if is_own else None,
        remedy=finding.remedy if is_open else ADVICE[finding.code].remedy,
        runbook=RUNBOOK + finding.anchor,
    )


def _own_evidence(finding: Finding) -> str | None:
    """Return the evidence of a finding as far as it concerns the name that is its subject."""
    if finding.code in ABOUT_ONE_NAME:
        return finding.evidence
    own, found, _ = finding.evidence.partition(SLOTS_FREE)
    return own + found if found and finding.code is FindingCode.LATE else None
