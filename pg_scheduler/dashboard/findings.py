"""Findings of the doctor as pages show them: a plain title, the evidence, the steps of the remedy, a link."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.texts import RUNBOOK, sentence
from pg_scheduler.inspect import Finding, FindingCode, Severity
from pg_scheduler.inspect.audit import Mute, finding_id, is_muted, read_mutes
from pg_scheduler.inspect.doctor.codes import ADVICE
from pg_scheduler.inspect.doctor.jobs import SLOTS_FREE
from pg_scheduler.inspect.texts import term

ABOUT_ONE_NAME: Final = frozenset(
    {FindingCode.JOBS_EXPIRED, FindingCode.FAILING, FindingCode.NAME_UNKNOWN, FindingCode.SCHED_UNKNOWN}
)
"""Findings whose subject is a job name, and whose evidence mentions no other."""

ABOUT_NAMES: Final = ABOUT_ONE_NAME | {FindingCode.LATE, FindingCode.QUARANTINE}
"""Findings whose subject is a job name."""

TITLES: Final[Mapping[FindingCode, str]] = {
    FindingCode.SCHEMA_BEHIND: "The tables are older than this release",
    FindingCode.SCHEMA_NEWER: "The tables are newer than this release",
    FindingCode.SCHEMA_DRIFT: "Table {} differs from its migrations",
    FindingCode.INDEX_MISSING: "Index {} is missing",
    FindingCode.INDEX_INVALID: "Index {} is invalid",
    FindingCode.HOT_LOST: "Index {} slows every claim",
    FindingCode.BLOAT: "Table {} has many dead rows",
    FindingCode.AUTOVACUUM: "Autovacuum cannot keep up: {}",
    FindingCode.WRAPAROUND: "Table {} must be frozen",
    FindingCode.WORKER_NONE: "No live worker runs jobs",
    FindingCode.WORKER_DEAD: "Worker {} died",
    FindingCode.WORKER_MIXED: "Live workers differ: {}",
    FindingCode.WORKER_NO_LISTEN: "Worker {} receives no notifications",
    FindingCode.WORKER_NO_LOCK: "Worker {} holds no liveness lock",
    FindingCode.WORKER_DRAINING: "Draining has not ended: {}",
    FindingCode.LOOP_BLOCKED: "The event loop of worker {} is blocked",
    FindingCode.LOGGER_DISABLED: "Worker {} writes no log records",
    FindingCode.LATE: "Jobs of {} are late",
    FindingCode.NAME_UNKNOWN: "Jobs of {} cannot start: no live worker has this task",
    FindingCode.NAME_SHARED: "Two services run jobs of the same names: {}",
    FindingCode.QUARANTINE: "Jobs of {} were quarantined: their workers died",
    FindingCode.FAILING: "Attempts of {} fail more often than usual",
    FindingCode.JOBS_EXPIRED: "Jobs of {} expire before they start",
    FindingCode.STUCK: "Job {} runs for far too long",
    FindingCode.PAYLOAD: "Jobs of {} have large arguments",
    FindingCode.TZDATA: "Live workers have different time zone data",
    FindingCode.DB_VERSION: "PostgreSQL is too old",
    FindingCode.DB_COPY: "The database {} is a copy, in which no worker starts",
    FindingCode.DB_RTT: "The database is far away",
    FindingCode.CLOCK: "Clocks differ: {}",
    FindingCode.NOTIFY_QUEUE: "The queue of notifications fills up",
    FindingCode.XMIN_HELD: "Dead rows cannot be removed: {}",
    FindingCode.RIGHTS: "The privileges of the role {} are not those of a worker",
    FindingCode.TIMEOUTS: "The server cancels long statements: {}",
    FindingCode.ISOLATION: "Transactions are not READ COMMITTED",
    FindingCode.LISTEN_NO_DELIVERY: "Notifications do not arrive",
    FindingCode.POOLER: "The pool leads to a pooler in transaction mode",
    FindingCode.POOL_SMALL: "The pool of worker {} is small",
    FindingCode.CONNECTIONS: "Connections may run out: {}",
    FindingCode.SCHED_OVERDUE: "Schedule {} is overdue",
    FindingCode.SCHED_UNKNOWN: "Scheduled jobs of {} will not start: no live worker has this task",
    FindingCode.SCHED_LOST: "Schedule {} of the code has no row, so it never fires",
    FindingCode.SCHED_RETIRED: "The code declares schedule {} no longer",
    FindingCode.SCHED_BROKEN: "Schedule {} was paused because of an error",
    FindingCode.SCHED_ZONE: "A node does not know the time zone of schedule {}",
    FindingCode.SCHED_AHEAD: "Schedule {} waits for a time that the clock has left",
    FindingCode.SCHED_DST: "A clock change affects schedule {}",
    FindingCode.SCHED_HERD: "Many schedules fire at {}",
    FindingCode.RETENTION: "Finished jobs are kept for long: {}",
    FindingCode.STEPS_ORPHANED: "Stored steps belong to no job: {}",
}
"""The title of a finding by its code, with a place for its subject."""

LINKS: Final[Mapping[FindingCode, tuple[str, str, str]]] = {
    FindingCode.LATE: ("Show the jobs", "/jobs", "status:due name"),
    FindingCode.NAME_UNKNOWN: ("Show the jobs", "/jobs", "status:due name"),
    FindingCode.QUARANTINE: ("Show the jobs", "/jobs", "status:failed crashed:yes name"),
    FindingCode.FAILING: ("Show the jobs", "/jobs", "status:failed,retrying name"),
    FindingCode.JOBS_EXPIRED: ("Show the jobs", "/jobs", "status:expired name"),
    FindingCode.PAYLOAD: ("Show the jobs", "/jobs", "status:pending name"),
    FindingCode.STUCK: ("Show the job", "/job", ""),
    FindingCode.WORKER_DEAD: ("Show the workers", "/workers", ""),
    FindingCode.WORKER_NONE: ("Show the workers", "/workers", ""),
    FindingCode.WORKER_MIXED: ("Show the workers", "/workers", ""),
    FindingCode.WORKER_DRAINING: ("Show the workers", "/workers", ""),
    FindingCode.WORKER_NO_LISTEN: ("Show the worker", "/worker", ""),
    FindingCode.WORKER_NO_LOCK: ("Show the worker", "/worker", ""),
    FindingCode.LOOP_BLOCKED: ("Show the worker", "/worker", ""),
    FindingCode.LOGGER_DISABLED: ("Show the worker", "/worker", ""),
    FindingCode.POOL_SMALL: ("Show the worker", "/worker", ""),
    FindingCode.SCHED_OVERDUE: ("Show the schedule", "/schedule", ""),
    FindingCode.SCHED_RETIRED: ("Show the schedule", "/schedule", ""),
    FindingCode.SCHED_BROKEN: ("Show the schedule", "/schedule", ""),
    FindingCode.SCHED_AHEAD: ("Show the schedule", "/schedule", ""),
    FindingCode.SCHED_DST: ("Show the schedule", "/schedule", ""),
    FindingCode.SCHED_UNKNOWN: ("Show the schedules", "/schedules", ""),
}
"""The label and the path of the page that shows the subject of a finding; of a search, what precedes it."""

START: Final = "pg-scheduler worker myapp.jobs"
WITHOUT_SUBJECT: Final = frozenset({"/workers", "/schedules"})

_QUOTED: Final = r"""'[^']*'|"[^"]*\""""
_STEP: Final = re.compile(rf"(?:{_QUOTED}|(?!; |, then ).)+", re.DOTALL)
_PROSE: Final = (
    r", or |, and |, before |, after | shows | with a | of the finding| instead| for | the table| its id"
)
_CODE: Final = re.compile(
    r"(?<![\w'\"])(?:pg-scheduler |(?:ALTER|VACUUM|REINDEX|DROP|CREATE|GRANT|REVOKE|SELECT|ANALYZE) "
    r"|await |@job\()(?:" + _QUOTED + r"|(?!" + _PROSE + r").)+",
    re.DOTALL,
)


class Step(NamedTuple):
    """A step of a remedy: a sentence, and what is to be executed, of which one may be empty."""

    text: str
    code: str
    rest: str


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding. What the request may not see is None."""

    code: str
    severity: Severity
    title: str
    meaning: str
    subject: str | None
    name: str | None
    """The subject as people call it: of a worker its name, else the subject."""
    evidence: str | None
    remedy: str | None
    runbook: str
    link: tuple[str, str] | None
    """The label and the address of a page that shows the subject."""
    retry: str | None = None
    """The address of the action that retries the jobs of the subject; None if the request may not."""
    mute_id: str = ""
    """Identifies it in the audit; empty if the request does not see its subject."""
    is_muted: bool = False
    mutes: Sequence[Mute] = ()
    """Who muted it, the newest record first."""

    @property
    def key(self) -> str:
        """Identifies it among the findings of a page."""
        return f"{self.code.lower()}-{crc32((self.subject or self.title).encode()):08x}"

    @property
    def parts(self) -> tuple[str, str, str]:
        """The title around its subject, which is the second part."""
        before, placeholder, after = TITLES[FindingCode(self.code)].partition("{}")
        return (before, self.name or "", after) if placeholder and self.name else (self.title, "", "")

    @property
    def steps(self) -> list[Step]:
        """The steps of the remedy."""
        steps = steps_of(self.remedy or "")
        is_start = self.code == FindingCode.WORKER_NONE
        return [step._replace(code=START) for step in steps] if is_start else steps


async def rows_of(findings: Sequence[Finding], request: PageRequest) -> list[FindingRow]:
    """Return findings with their mutes, each row once: without subjects, those of a code are equal."""
    mutes = await read_mutes(request.inspector, "finding", map(finding_id, findings))
    names = await request.worker_names()
    rows = (_row(finding, mutes.get(finding_id(finding), ()), names, request) for finding in findings)
    return list(dict.fromkeys(rows))


def _row(
    finding: Finding, mutes: Sequence[Mute], workers: Mapping[str, str], request: PageRequest
) -> FindingRow:
    """Return the finding without the texts that could mention what is hidden."""
    is_open = request.access.visible_names is None and (
        request.access.sees_arguments or finding.code is not FindingCode.XMIN_HELD  # contains a statement
    )
    is_own = finding.code in ABOUT_NAMES and request.access.sees_name(finding.subject)
    subject = finding.subject if is_open or is_own else None
    title, name = TITLES[finding.code], subject
    if finding.code in LINKS and LINKS[finding.code][1].startswith("/worker") and subject is not None:
        name = workers.get(subject, subject)
    return FindingRow(
        code=finding.code.value,
        severity=finding.severity,
        title=title.format(name) if subject is not None or "{}" not in title else sentence(finding.meaning),
        meaning=finding.meaning,
        subject=subject,
        name=name,
        evidence=finding.evidence if is_open else _own_evidence(finding) if is_own else None,
        remedy=finding.remedy if is_open else ADVICE[finding.code].remedy,
        runbook=RUNBOOK + finding.anchor,
        link=None if subject is None else _link(finding, request),
        retry=None if subject is None else _retry(finding, request),
        mute_id="" if subject is None else finding_id(finding),
        is_muted=is_muted(mutes, request.now),
        mutes=() if subject is None else mutes,
    )


def _link(finding: Finding, request: PageRequest) -> tuple[str, str] | None:
    if finding.code not in LINKS:
        return None
    label, path, terms = LINKS[finding.code]
    if terms:
        return label, request.url(path, q=_terms(finding))
    return label, request.url(path) if path in WITHOUT_SUBJECT else request.url(path, id=finding.subject)


def _retry(finding: Finding, request: PageRequest) -> str | None:
    if finding.code is not FindingCode.QUARANTINE or not request.may("retry"):
        return None
    return request.url("/actions/bulk/retry", q=_terms(finding))


def _terms(finding: Finding) -> str:
    """Return the search for the jobs of a finding."""
    before, _, field = LINKS[finding.code][2].rpartition(" ")
    return f"{before} {term(field, finding.subject)}"


def _own_evidence(finding: Finding) -> str | None:
    """Return the evidence of a finding as far as it concerns the name that is its subject."""
    if finding.code in ABOUT_ONE_NAME:
        return finding.evidence
    beginning, marker, _ = finding.evidence.partition(SLOTS_FREE)
    return beginning + marker if marker and finding.code is FindingCode.LATE else None


def steps_of(remedy: str) -> list[Step]:
    """Return the steps of a remedy, and what each of them executes, which can be copied."""
    steps = []
    for text in _STEP.findall(remedy):
        words = text.strip(" ,;")
        words = words.removeprefix("then ").removeprefix("and ")
        match = _CODE.search(words)
        if match is None:
            steps.append(Step(sentence(words), "", ""))
        else:
            before, after = words[: match.start()].strip(" ,"), words[match.end() :].strip(" ,")
            steps.append(Step(sentence(before), match[0].strip(), after))
    return steps
