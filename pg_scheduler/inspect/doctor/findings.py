"""A diagnosis: findings, the checks that were made, and the values from which on something is a finding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from pg_scheduler.base.text.remedies import RemedyStep
from pg_scheduler.facts.lateness import LATE_S, OVERDUE_S
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
    steps: tuple[RemedyStep, ...] = ()
    """The remedy as steps with their commands; ``remedy`` is the sentence that is made of them."""
    own_evidence: str = ""
    """The first part of the evidence, which mentions no object except the subject; may be empty."""
    other_evidence: str = ""
    """The remaining part of the evidence, which may mention other objects."""
    objects: tuple[tuple[str, str], ...] = ()
    """The objects that cause it, each as its kind and name; the kind is ``limit``, ``share``, ``task`` or
    ``workers``, whose name is empty."""

    @property
    def title(self) -> str:
        """What the finding is about, in a few words, such as ``Index jobs_due is missing``."""
        return ADVICE[self.code].title.format(self.subject)

    @property
    def anchor(self) -> str:
        """The anchor of the code in the runbook, such as ``index-missing``."""
        return self.code.lower()

    @property
    def meaning(self) -> str:
        """The meaning of the code, in one sentence."""
        return ADVICE[self.code].meaning


def worst_of(severities: Iterable[Severity]) -> Severity:
    """Return the worst severity; ``ok`` for none."""
    return max(severities, key=lambda severity: severity.rank, default=Severity.OK)


def count_severities(severities: Sequence[Severity]) -> str:
    """Return the numbers of findings by severity, the worst first: ``2 errors, 1 warning, 3 info``."""
    texts = []
    for severity in reversed(Severity):
        number = severities.count(severity)
        has_plural = number > 1 and severity is not Severity.INFO
        if number:
            texts.append(f"{number:,} {severity.value}{'s' if has_plural else ''}")
    return ", ".join(texts) or "no findings"


@dataclass(frozen=True, slots=True)
class UnmadeCheck:
    """A check that was not made, or only in part."""

    code: FindingCode
    """The code of the findings that the check yields."""
    reason: str
    """Why the check was not made, or which part of it was not."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of the doctor, and the checks that it made."""

    findings: tuple[Finding, ...]
    """The findings, the most severe first."""
    made: tuple[FindingCode, ...]
    """The codes of the checks that were made as a whole."""
    not_made: tuple[UnmadeCheck, ...]
    """The checks that were not made, or only in part, and why."""

    @classmethod
    def of(
        cls, findings: Iterable[Finding], asked_codes: Iterable[FindingCode], not_made: Iterable[UnmadeCheck]
    ) -> Diagnosis:
        """Return a diagnosis for the requested codes, with the most severe findings first.

        One check can yield findings of several codes. Those of codes that were not requested are left out.
        """
        codes = tuple(code for code in FindingCode if code in set(asked_codes))
        unmade_checks = tuple(check for check in not_made if check.code in codes)
        requested_findings = [finding for finding in findings if finding.code in codes]
        # Findings of one severity have the order of their codes in FindingCode.
        places = {code: place for place, code in enumerate(FindingCode)}
        requested_findings.sort(
            key=lambda finding: (-finding.severity.rank, places[finding.code], finding.subject)
        )
        unmade_codes = {check.code for check in unmade_checks}
        made = tuple(code for code in codes if code not in unmade_codes)
        return cls(tuple(requested_findings), made, unmade_checks)

    @property
    def severity(self) -> Severity:
        """The severity of the worst finding; ``ok`` without findings."""
        return worst_of(finding.severity for finding in self.findings)

    @property
    def summary(self) -> str:
        """The numbers of findings and checks in one line, as every front end shows them."""
        return self.summary_of([finding.severity for finding in self.findings])

    def summary_of(self, severities: Sequence[Severity]) -> str:
        """Return the summary for the findings that a front end shows, by their severities."""
        counts = count_severities(severities)
        # A check may have several reasons why parts of it were not made.
        unmade_count = len({check.code for check in self.not_made})
        unmade = f", {unmade_count} not made" if unmade_count else ""
        return f"{counts}; {counted(len(self.made), 'check')} made{unmade}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The values from which on something is a finding.

    Raises:
        ValueError: A value is negative.

    Example::

        from pg_scheduler.inspect import Thresholds

        diagnosis = await inspector.doctor(thresholds=Thresholds(dead_rows=1_000_000))
    """

    dead_rows: int = 200_000
    """Dead rows of a table, if these are more than half of its rows: BLOAT. Dead rows at which autovacuum
    begins: AUTOVACUUM."""
    freeze_age: int | None = None
    """Transactions since a table was frozen: WRAPAROUND. None for 1.2 x ``autovacuum_freeze_max_age``."""
    multixact_age: int | None = None
    """Multixacts since a table was frozen: WRAPAROUND. None for 1.2 x
    ``autovacuum_multixact_freeze_max_age``."""
    notify_queue: float = 0.1
    """The share of the server's queue of notifications that is in use: NOTIFY-QUEUE."""
    draining_s: float = 3600.0
    """Seconds since a worker was requested to drain: WORKER-DRAINING."""
    loop_lag_s: float = 1.0
    """Seconds for which the event loop of a worker is blocked, or was lately: LOOP-BLOCKED."""
    late_s: float = LATE_S
    """Seconds for which the oldest due job of a name waits: LATE."""
    failures: int = 5
    """Attempts of a name that failed in the last 15 minutes: FAILING."""
    failure_ratio: float = 0.1
    """The share of the attempts of a name that failed, if it is at least twice the share of the week before:
    FAILING.

    A share of 0.5 or more counts whatever the share of the week before was."""
    expired: int = 1
    """Jobs of a name that expired in the last 15 minutes: JOBS-EXPIRED."""
    stuck_s: float = 60.0
    """Seconds for which a job runs, or that have passed since its lease expired: STUCK."""
    payload_bytes: int = 65_536
    """Bytes of arguments as stored: PAYLOAD."""
    round_trip_s: float = 0.005
    """Seconds of a round trip to the server: DB-RTT."""
    clock_s: float = 1.0
    """Seconds by which clocks differ: CLOCK."""
    held_s: float = 600.0
    """Seconds for which a transaction keeps dead rows: XMIN-HELD."""
    held_transactions: int = 1_000_000
    """Transactions for which a slot or a standby keeps dead rows: XMIN-HELD."""
    notification_s: float = 1.0
    """Seconds within which a notification must arrive: LISTEN-NO-DELIVERY."""
    overdue_s: float = OVERDUE_S
    """Seconds since the fire time of a schedule: SCHED-OVERDUE."""
    herd: int = 50
    """Schedules that fire in the same second: SCHED-HERD."""
    table_bytes: int = 10_000_000_000
    """Bytes of a table without its indexes: RETENTION."""
    table_days: float = 30.0
    """Days within which the table of jobs will have ``table_bytes``: RETENTION."""

    def __post_init__(self) -> None:
        """Raise an error if a value is no number, or negative."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise TypeError(f"{field.name} must be a number, not {value!r}")
            # NaN is neither negative nor at least 0, and is refused too.
            if value is not None and not value >= 0:
                raise ValueError(f"{field.name} must not be negative, not {value!r}")
