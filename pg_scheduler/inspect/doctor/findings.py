"""A diagnosis: findings, and the checks that were made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pg_scheduler.inspect.doctor.codes import ADVICE, FindingCode, Severity
from pg_scheduler.inspect.texts import counted


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, with its evidence and remedy."""

    code: FindingCode
    """The kind of the problem."""
    severity: Severity
    """How severe it is."""
    subject: str
    """The affected object: a table, an index, a job, a schedule or a setting by name, or a worker by id."""
    evidence: str
    """The observed facts, with their values."""
    remedy: str | None = None
    """The recommended action; None if no action is needed."""

    @property
    def anchor(self) -> str:
        """The anchor of the code in the runbook, such as ``index-missing``."""
        return self.code.lower()

    @property
    def meaning(self) -> str:
        """The meaning of the code, in one sentence."""
        return ADVICE[self.code].meaning


@dataclass(frozen=True, slots=True)
class UnmadeCheck:
    """A check that was not made, or only in part."""

    code: FindingCode
    """The code of the findings that it makes."""
    reason: str
    """Why it was not made."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of the doctor, and the checks that it made."""

    findings: tuple[Finding, ...]
    """The findings, the most severe first."""
    made: tuple[FindingCode, ...]
    """The checks that were made."""
    not_made: tuple[UnmadeCheck, ...]
    """The checks that were not made, or only in part, and why."""

    @classmethod
    def of(
        cls, findings: Iterable[Finding], asked: Iterable[FindingCode], not_made: Iterable[UnmadeCheck]
    ) -> Diagnosis:
        """Return a diagnosis with the findings in their order, for the codes that were asked for."""
        codes = tuple(code for code in FindingCode if code in set(asked))
        unmade = tuple(each for each in not_made if each.code in codes)
        found = [each for each in findings if each.code in codes]
        places = {code: place for place, code in enumerate(FindingCode)}
        found.sort(key=lambda each: (-each.severity.rank, places[each.code], each.subject))
        missing = {each.code for each in unmade}
        return cls(tuple(found), tuple(code for code in codes if code not in missing), unmade)

    @property
    def severity(self) -> Severity:
        """The severity of the worst finding; ``ok`` without findings."""
        return max((each.severity for each in self.findings), key=lambda each: each.rank, default=Severity.OK)

    @property
    def summary(self) -> str:
        """The numbers of findings and checks in one line, as every front end shows them."""
        counts = {
            severity: sum(each.severity is severity for each in self.findings)
            for severity in reversed(Severity)
        }
        found = ", ".join(
            f"{number} {severity.value}{'s' if number > 1 and severity is not Severity.INFO else ''}"
            for severity, number in counts.items()
            if number
        )
        unmade = f", {len({each.code for each in self.not_made})} not made" if self.not_made else ""
        return f"{found or 'no findings'}; {counted(len(self.made), 'check')} made{unmade}"
