"""Findings of the doctor as pages show them: a plain title, the evidence, the steps of the remedy, a link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from zlib import crc32

from pg_scheduler.base.text.remedies import RemedyStep
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.texts import RUNBOOK, sentence, short
from pg_scheduler.inspect import Diagnosis, Finding, FindingCode, Severity
from pg_scheduler.inspect.audit import Mute, finding_id, is_muted, read_mutes
from pg_scheduler.inspect.doctor.codes import ABOUT_NAMES, ADVICE
from pg_scheduler.inspect.status import STATUS_CODES, problems_of
from pg_scheduler.inspect.texts import listed, term


class SubjectLink(NamedTuple):
    """A link to the page that shows the subject of a finding.

    Attributes:
        label: Its text.
        path: The path of the page.
        terms: The search for its jobs, up to the field whose value is the subject; empty for a page that is
            no search.
    """

    label: str
    path: str
    terms: str = ""


LINKS: Final[Mapping[FindingCode, SubjectLink]] = {
    FindingCode.LATE: SubjectLink("Show the jobs", "/jobs", "status:due name"),
    FindingCode.NAME_UNKNOWN: SubjectLink("Show the jobs", "/jobs", "status:due name"),
    FindingCode.QUARANTINE: SubjectLink("Show the jobs", "/jobs", "status:failed crashed:yes name"),
    FindingCode.FAILING: SubjectLink("Show the jobs", "/jobs", "status:failed,retrying name"),
    FindingCode.JOBS_EXPIRED: SubjectLink("Show the jobs", "/jobs", "status:expired name"),
    FindingCode.PAYLOAD: SubjectLink("Show the jobs", "/jobs", "status:pending name"),
    FindingCode.STUCK: SubjectLink("Show the job", "/job"),
    FindingCode.WORKER_DEAD: SubjectLink("Show the workers", "/workers"),
    FindingCode.WORKER_NONE: SubjectLink("Show the workers", "/workers"),
    FindingCode.WORKER_MIXED: SubjectLink("Show the workers", "/workers"),
    FindingCode.WORKER_DRAINING: SubjectLink("Show the workers", "/workers"),
    FindingCode.WORKER_NO_LISTEN: SubjectLink("Show the worker", "/worker"),
    FindingCode.WORKER_NO_LOCK: SubjectLink("Show the worker", "/worker"),
    FindingCode.LOOP_BLOCKED: SubjectLink("Show the worker", "/worker"),
    FindingCode.LOGGER_DISABLED: SubjectLink("Show the worker", "/worker"),
    FindingCode.THREAD_STUCK: SubjectLink("Show the worker", "/worker"),
    FindingCode.POOL_SMALL: SubjectLink("Show the worker", "/worker"),
    FindingCode.SCHED_OVERDUE: SubjectLink("Show the schedule", "/schedule"),
    FindingCode.SCHED_RETIRED: SubjectLink("Show the schedule", "/schedule"),
    FindingCode.SCHED_BROKEN: SubjectLink("Show the schedule", "/schedule"),
    FindingCode.SCHED_ZONE: SubjectLink("Show the schedule", "/schedule"),
    FindingCode.SCHED_AHEAD: SubjectLink("Show the schedule", "/schedule"),
    FindingCode.SCHED_DST: SubjectLink("Show the schedule", "/schedule"),
    FindingCode.SCHED_UNKNOWN: SubjectLink("Show the schedules", "/schedules"),
}
"""The links of findings whose subject a page shows."""

TITLES_OF_MANY: Final[Mapping[FindingCode, str]] = {
    FindingCode.LATE: "Jobs of {} tasks are late",
    FindingCode.NAME_UNKNOWN: "Jobs of {} tasks cannot start: no live worker has these tasks",
    FindingCode.QUARANTINE: "Jobs of {} tasks were quarantined: their workers died",
    FindingCode.FAILING: "{} tasks fail more often than usual",
    FindingCode.JOBS_EXPIRED: "Jobs of {} tasks expire before they start",
}
"""The titles of several findings of a code, each about a task, which the overview shows as one."""

STEPS_OF_PAGES: Final[Mapping[FindingCode, str]] = {
    FindingCode.LATE: "Open one of the jobs: its page states why it has not started",
    FindingCode.JOBS_EXPIRED: "Open one of the jobs: its page states why it did not start",
    FindingCode.FAILING: "Open one of the jobs: its page has its error",
    FindingCode.STUCK: "Open the job: its page shows its log and its stack",
}
"""What a page states instead of the commands that list and explain jobs, since it links to these jobs."""

READING_COMMANDS: Final = tuple(f"pg-scheduler jobs {verb}" for verb in ("errors", "explain", "list", "show"))
"""How these commands begin."""

DIAGNOSIS_AGE_S: Final = 10.0
"""Seconds for which a diagnosis is kept: its checks cost some statements."""

SHOWN_OBJECTS: Final = 3
SHOWN_TASKS: Final = 3
LABEL_LENGTH: Final = 30

START: Final = "pg-scheduler worker myapp.jobs"
WITHOUT_SUBJECT: Final = frozenset({"/workers", "/schedules"})
"""Pages that list all objects, so that the address of the link has no subject."""


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
    _steps: tuple[RemedyStep, ...] = ()
    _links: tuple[tuple[str, str], ...] = ()
    """The labels and addresses of the pages of the objects that cause it."""
    _rows: tuple[FindingRow, ...] = ()
    """The findings that were folded into this one, at most three."""
    _left_out: int = 0
    """Further findings that were folded into it."""

    @property
    def key(self) -> str:
        """Identifies it among the findings of a page."""
        return f"{self.code.lower()}-{crc32((self.subject or self.title).encode()):08x}"

    @property
    def shown_evidence(self) -> str:
        """The evidence, or else the meaning, without the name of a task that the title has."""
        return (self.evidence or self.meaning).replace(f" of {self.subject!r}", "")

    @property
    def steps(self) -> tuple[RemedyStep, ...]:
        """The steps of the remedy, as a page shows them."""
        return self._steps

    @property
    def links(self) -> tuple[tuple[str, str], ...]:
        """The links to the objects that cause it, and to its subject."""
        return (*self._links, *([self.link] if self.link is not None else []))

    @property
    def parts(self) -> tuple[str, str, str]:
        """The title in three parts: what is before its subject, the subject, and what is after it.

        The page emphasizes the subject. If the title has none, the title is the first part.
        """
        # In a title of the advice, "{}" stands for the subject.
        before, placeholder, after = ADVICE[FindingCode(self.code)].title.partition("{}")
        if not placeholder or not self.name:
            return self.title, "", ""
        return before, self.name, after


def needs_attention(number: int) -> str:
    """Return how many findings need attention, as the overview and the page of the doctor state it."""
    return f"{number:,} {'thing needs' if number == 1 else 'things need'} attention"


async def read_diagnosis(request: PageRequest, *, is_age_shown: bool = True) -> Diagnosis:
    """Return the findings of the checks that decide whether all is well.

    The side bar, the overview and the page of the doctor share this read, so that their numbers agree.
    ``is_age_shown`` is whether its age counts for the age that the page shows.
    """
    return await request.read_shared(_diagnose, age_s=DIAGNOSIS_AGE_S, is_age_shown=is_age_shown)


async def _diagnose(request: PageRequest) -> Diagnosis:
    """Make the checks that decide whether all is well; requests share the result."""
    return await request.inspector.doctor(only=STATUS_CODES)


def visible_problems(findings: Sequence[Finding], request: PageRequest) -> list[Finding]:
    """Return the findings that need attention, the worst first, without those about hidden job names."""
    return [
        finding
        for finding in problems_of(findings)
        if finding.code.value in STATUS_CODES
        and (finding.code not in ABOUT_NAMES or request.access.sees_name(finding.subject))
    ]


async def rows_of(findings: Sequence[Finding], request: PageRequest) -> list[FindingRow]:
    """Return findings as rows of a page, with their mutes (who has silenced a finding, and until when).

    Findings of the same code whose subjects are hidden have equal rows, of which one is returned.
    """
    mutes = await read_mutes(request.inspector, "finding", map(finding_id, findings))
    names = await request.worker_names()
    rows = (_row(finding, mutes.get(finding_id(finding), ()), names, request) for finding in findings)
    # Unlike a set, a dict keeps the order of the rows.
    return list(dict.fromkeys(rows))


def folded(rows: Sequence[FindingRow]) -> list[FindingRow]:
    """Return findings in which one row stands for all findings of the same code about several tasks.

    It stands at the place of the first of them.
    """
    rows_by_code: dict[str, list[FindingRow]] = {}
    for row in rows:
        rows_by_code.setdefault(row.code, []).append(row)
    folded_rows: list[FindingRow] = []
    for row in rows:
        group = rows_by_code[row.code]
        if row.code not in TITLES_OF_MANY or len(group) == 1:
            folded_rows.append(row)
        elif row is group[0]:
            folded_rows.append(_fold(group))
    return folded_rows


def by_code(rows: Sequence[FindingRow]) -> list[list[FindingRow]]:
    """Return groups of findings: those of one code about several tasks, and each other finding by itself.

    The findings of a group have the same remedy, which is stated once. The group stands at the place of its
    first finding.
    """
    groups: dict[object, list[FindingRow]] = {}
    for place, row in enumerate(rows):
        can_be_grouped = row.code in TITLES_OF_MANY and row.name is not None
        # A finding that cannot be grouped has its place as the key, which no other finding has.
        key: object = (row.code, row.steps) if can_be_grouped else place
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def title_of_many(rows: Sequence[FindingRow]) -> str:
    """Return the title of a group of findings."""
    return TITLES_OF_MANY[FindingCode(rows[0].code)].format(len(rows))


def _fold(rows: Sequence[FindingRow]) -> FindingRow:
    """Return one row for the findings of a code, whose evidence is the names of their tasks."""
    named_rows = [row for row in rows if row.name is not None]
    evidence = f"the tasks {listed([row.name or '' for row in named_rows])}"
    shown_rows = tuple(named_rows[:SHOWN_TASKS])
    # The name, links and retry of the first finding concern its task only.
    return replace(
        rows[0],
        title=title_of_many(rows),
        name=None,
        evidence=evidence,
        link=None,
        retry=None,
        _links=(),
        _rows=shown_rows,
        _left_out=len(rows) - len(shown_rows),
    )


def _row(
    finding: Finding, mutes: Sequence[Mute], workers: Mapping[str, str], request: PageRequest
) -> FindingRow:
    """Return a finding as a row of a page, without the texts that could mention what is hidden.

    ``mutes`` are the records of who muted it, ``workers`` the names of workers by their ids.
    """
    # If the finding is open, the request may see all of its texts.
    is_open = request.access.visible_names is None and request.visibility.sees_evidence(finding)
    # A finding about a visible name shows the subject and the evidence about this name alone.
    is_about_visible_name = finding.code in ABOUT_NAMES and request.access.sees_name(finding.subject)
    subject = finding.subject if is_open or is_about_visible_name else None
    evidence: str | None = None
    if is_open:
        evidence = finding.evidence
    elif is_about_visible_name:
        # The evidence about the subject alone, which mentions no other names.
        evidence = finding.own_evidence or None
    advice, name = ADVICE[finding.code], subject
    # The subject of a finding about a worker is the id of the worker, and the title has the name instead.
    is_about_worker = finding.code in LINKS and LINKS[finding.code].path.startswith("/worker")
    if is_about_worker and subject is not None:
        name = workers.get(subject, subject)
    # Without its subject, a title that has a place for it cannot be used.
    if subject is None and "{}" in advice.title:
        title = sentence(finding.meaning)
    else:
        title = advice.title.format(name)
    return FindingRow(
        code=finding.code.value,
        severity=finding.severity,
        title=title,
        meaning=finding.meaning,
        subject=subject,
        name=name,
        evidence=evidence,
        remedy=finding.remedy if is_open else advice.remedy,
        _steps=_shown_steps(finding.code, finding.steps if is_open else advice.steps),
        runbook=RUNBOOK + finding.anchor,
        link=None if subject is None else _link(finding, request),
        _links=tuple(_object_links(finding, request)) if is_open else (),
        retry=None if subject is None else _retry(finding, request),
        mute_id="" if subject is None else finding_id(finding),
        is_muted=is_muted(mutes, request.now),
        mutes=() if subject is None else mutes,
    )


def _shown_steps(code: FindingCode, steps: Sequence[RemedyStep]) -> tuple[RemedyStep, ...]:
    """Return the steps of a remedy as the page shows them, as sentences.

    If the finding is that no worker is live, a step has an example of the command that starts one. Commands
    that list and explain jobs are replaced by one step that refers to the links of the page.
    """
    shown_steps = [replace(step, text=sentence(step.text)) for step in steps]
    if code is FindingCode.WORKER_NONE:
        shown_steps = [replace(step, command=START) for step in shown_steps]
    if code in STEPS_OF_PAGES:
        other_steps = [step for step in shown_steps if not step.command.startswith(READING_COMMANDS)]
        if len(other_steps) < len(shown_steps):
            shown_steps = [RemedyStep(STEPS_OF_PAGES[code]), *other_steps]
    return tuple(shown_steps)


def _link(finding: Finding, request: PageRequest) -> tuple[str, str] | None:
    """Return the label and the address of the page that shows the subject; None if no page shows it."""
    if finding.code not in LINKS:
        return None
    label, path, terms = LINKS[finding.code]
    if terms:
        return label, request.url(path, q=_terms(finding))
    if path in WITHOUT_SUBJECT:
        return label, request.url(path)
    return label, request.url(path, id=finding.subject)


def _object_links(finding: Finding, request: PageRequest) -> Iterator[tuple[str, str]]:
    """Yield the links to the objects that cause a finding."""
    for kind, name in finding.objects[:SHOWN_OBJECTS]:
        match kind:
            case "limit":
                yield f"Limit {short(name, LABEL_LENGTH)}", request.url("/limit", name=name)
            case "share":
                yield f"Share {short(name, LABEL_LENGTH)}", request.url("/limits")
            case "task":
                yield "Show the task", request.url("/task", id=name)
            case "workers":
                yield "Show the workers", request.url("/workers")


def _retry(finding: Finding, request: PageRequest) -> str | None:
    """Return the address of the action that retries the quarantined jobs of a finding; None for none."""
    if finding.code is not FindingCode.QUARANTINE or not request.may("retry"):
        return None
    return request.url("/actions/bulk/retry", q=_terms(finding))


def _terms(finding: Finding) -> str:
    """Return the search for the jobs of a finding."""
    # The stored text ends with the name of the field whose value is the subject: "status:due name".
    other_terms, _, field = LINKS[finding.code].terms.rpartition(" ")
    return f"{other_terms} {term(field, finding.subject)}"
