"""A check: bounded statements that read facts, and a judgement of these facts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pg_scheduler.base.text.remedies import RemedyStep, as_steps, execute, sentence_of
from pg_scheduler.errors import SchemaForbiddenError, SchemaMissingError
from pg_scheduler.facts.lateness import held_names
from pg_scheduler.inspect.doctor.codes import FindingCode, Severity
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds, UnmadeCheck
from pg_scheduler.inspect.store.inspections import BacklogRows
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.tasks import paused_tasks, tasks_of_aliases
from pg_scheduler.jobs.naming import likely_new_name

CheckResults: TypeAlias = AsyncIterator[Finding | UnmadeCheck]

T = TypeVar("T")


class SharedFacts:
    """The facts of one examination. Some of them are read once for several checks.

    Attributes:
        store: Reads the facts.
    """

    def __init__(self, store: InspectionStore) -> None:
        self.store = store
        self._results: dict[Callable[[], Awaitable[Any]], Any] = {}

    async def once(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a method, which is called only for the first check that needs this result."""
        if read not in self._results:
            self._results[read] = await read()
        result: T = self._results[read]
        return result

    async def require_own_tables(self) -> None:
        """Raise SchemaMissingError if the tables are missing, or older than this release.

        Old tables have the indexes and settings of another release. A check that compares them with those of
        this release would advise to drop what that release needs, or to build what only a migration can.
        """
        # A role that may not read the record of the migrations can make such a check nevertheless.
        with suppress(SchemaForbiddenError):
            problem = await self.once(self.store.doctor.schema_problem)
            if isinstance(problem, SchemaMissingError):
                raise problem

    async def backlog(self) -> BacklogRows:
        """Return the due jobs by name, without the names whose task is paused.

        Jobs of a paused task wait on purpose, so they are no problem.
        """
        backlog = await self.store.inspections.backlog()
        tasks = tasks_of_aliases(await self.once(self.store.worker_reads.workers))
        pauses = await paused_tasks(self.store)
        held = held_names((row.name for row in backlog.rows), pauses.values(), tasks)
        return backlog._replace(rows=[row for row in backlog.rows if row.name not in held])


class Check(NamedTuple):
    """A check of one subject.

    Attributes:
        codes: The codes of its findings.
        run: Reads the facts and yields the findings.
    """

    codes: tuple[FindingCode, ...]
    run: Callable[[SharedFacts, Thresholds], CheckResults]


def check(*codes: FindingCode) -> Callable[[Callable[[SharedFacts, Thresholds], CheckResults]], Check]:
    """Return a decorator that replaces a function with a `Check`, whose findings have these codes."""
    return partial(Check, codes)


class Evidence(NamedTuple):
    """The evidence of a finding, in two parts, because a person may see its subject but not other names.

    Attributes:
        own: The first part, which mentions no name except the subject.
        other: The second part, which mentions other names.
        objects: The objects that cause it, see ``Finding.objects``.
    """

    own: str
    other: str = ""
    objects: tuple[tuple[str, str], ...] = ()


def finding(
    code: FindingCode,
    severity: Severity,
    subject: str,
    evidence: str | Evidence,
    *steps: str | RemedyStep,
) -> Finding:
    """Return a finding. ``steps`` are what to do about it, as data and, in the finding, as one sentence."""
    remedy_steps = as_steps(steps)
    # A plain text may mention any name, so all of it is the part that only some people may see.
    if isinstance(evidence, str):
        evidence = Evidence(own="", other=evidence)
    own, other, objects = evidence
    remedy = sentence_of(remedy_steps)
    return Finding(code, severity, subject, own + other, remedy, remedy_steps, own, other, objects)


def error(code: FindingCode, subject: str, evidence: str | Evidence, *steps: str | RemedyStep) -> Finding:
    """Return a finding that is an error: because of it, jobs do not run, or will not run."""
    return finding(code, Severity.ERROR, subject, evidence, *steps)


def warning(code: FindingCode, subject: str, evidence: str | Evidence, *steps: str | RemedyStep) -> Finding:
    """Return a finding that is a warning: it costs performance, or will become an error."""
    return finding(code, Severity.WARNING, subject, evidence, *steps)


def info(code: FindingCode, subject: str, evidence: str | Evidence, *steps: str | RemedyStep) -> Finding:
    """Return a finding for which nothing has to be done."""
    return finding(code, Severity.INFO, subject, evidence, *steps)


def hint_at_new_name(name: str, candidates: Sequence[str]) -> tuple[RemedyStep, ...]:
    """Return how to declare the name that a function probably has now; no step if none is likely."""
    new_name = likely_new_name(name, candidates)
    if not new_name:
        return ()
    declaration = f"@job(name={new_name!r}, aliases=[{name!r}])"
    return (execute(declaration, before=f"or is {new_name!r} its new name? then"),)
