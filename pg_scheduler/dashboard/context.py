"""The input of a page: the settings of the dashboard, and one request."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, TypeVar, TypeVarTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request

from pg_scheduler.base.text.times import OutOfRangeError, TimeError, read_instant
from pg_scheduler.dashboard.access import Access, Authorize, Right
from pg_scheduler.dashboard.cache import SharedReads
from pg_scheduler.dashboard.operations import Operations
from pg_scheduler.dashboard.redaction import Redaction
from pg_scheduler.dashboard.search_runs import SearchRuns
from pg_scheduler.dashboard.visibility import Visibility
from pg_scheduler.errors import JobConflictError
from pg_scheduler.inspect import AuditRecord, Bounds, Inspector, SearchError, SearchPage, parse_search
from pg_scheduler.inspect.audit import AuditPage
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.errors import ErrorGroup
from pg_scheduler.inspect.jobs import search_part
from pg_scheduler.inspect.names import (
    TaskNames,
    options_of,
    parameters_of,
    positional_names,
    with_reported_options,
)
from pg_scheduler.inspect.pages import Wanted
from pg_scheduler.inspect.search.parser import names_term
from pg_scheduler.inspect.search.terms import Pattern, StepsTerm, Term, TextField, TextTerm, escape_like
from pg_scheduler.inspect.tasks import by_stopped_name, paused_tasks
from pg_scheduler.inspect.texts import command, term
from pg_scheduler.jobs.model import Job, Worker
from pg_scheduler.jobs.pause import Pause, linked_names
from pg_scheduler.jobs.worker_report import Parameter
from pg_scheduler.triggers.zones import named_zone

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Text = TypeVar("Text", bound=str)

JobTexts: TypeAlias = Callable[[Job], str]
JobLinks: TypeAlias = Callable[[Job], Mapping[str, str]]

EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""The first and the last time that a form accepts. They keep a distance from the limits of ``datetime``, so
that neither another time zone nor a small addition overflows."""

MORNING: Final = " 08:00"
"""The end of a choice of a form that means a morning, such as ``tomorrow 08:00``."""

_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)+/?")

PART_MILLISECONDS: Final = 25
"""Milliseconds after which no further statement of a part of a search examines jobs."""

WORKERS_AGE_S: Final = 10.0
DEATHS_AGE_S: Final = 10.0

DECLARE_DEAD: Final = "declare_dead"
DEAD_FOR: Final = timedelta(days=1)
"""For how long the pages mention a dead worker."""

MAX_DEAD: Final = 200
NAMES_AGE_S: Final = 10.0
PAUSES_AGE_S: Final = 2.0
"""Seconds for which the pauses are kept."""


class View(SimpleNamespace):
    """What a page shows: the values that its template names, in the order in which its JSON has them.

    The JSON leaves out values whose names start with ``_``. A page with values that other code uses too is a
    dataclass instead.
    """


class RejectedError(Exception):
    """A request that cannot be answered; the message is shown."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class NotFoundError(RejectedError):
    """Nothing visible has this address. The error is the same for an object that exists and is hidden."""

    def __init__(self, text: str) -> None:
        super().__init__(text, 404)

    @classmethod
    def of(cls, kind: str, name: str) -> NotFoundError:
        """Return the error about an object."""
        return cls(f"there is no {kind} {name[:200]!r}, or you may not see it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of ``dashboard()``, checked."""

    authorize: Authorize
    title: str
    environment: str | None
    redaction: Redaction
    format_arguments: JobTexts | None
    links: JobLinks | None
    refresh_s: float
    bounds: Bounds
    trust_forwarded: bool
    read_only: bool
    trusted_origins: frozenset[str]
    views: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    """The names of all sources; empty for one without a name."""
    source: str | None = None
    has_read_pool: bool = False
    """Whether pages are read on a pool of their own, which may lead to a standby."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request that ``authorize=`` has let in, with all that a page or an action needs to answer it.

    Attributes:
        settings: The settings of the dashboard.
        access: The rights of the request.
        inspector: Reads the database for the request.
        parameters: The parameters of the address.
        base: The path under which browsers reach the dashboard, without a slash at the end.
        now: The time, by the clock of the operations.
        cache: The values that requests share.
        operations: Makes the changes, and has the clock.
        searches: The searches that continue while their lists have viewers.
        did: The message about the previous action, as its cookie contains it; empty for none.
        is_compact: Whether tables are dense in this browser.
        standby_lag_s: How many seconds the data is behind the primary; None if it does not come from a
            standby.
    """

    settings: Settings
    access: Access
    inspector: Inspector
    parameters: Mapping[str, str]
    base: str
    now: datetime
    cache: SharedReads
    operations: Operations
    searches: SearchRuns
    did: str = ""
    is_compact: bool = False
    standby_lag_s: float | None = None

    async def dated(self) -> PageRequest:
        """Return a copy of this request whose time is now, and which has not read any cached data yet.

        A page is built from such a copy. An event stream makes a new one for each update of its page, so that
        the page states the right time and the age of its own data. If pages are read on a pool of their own,
        which may lead to a standby, the copy also has the lag of this standby.
        """
        fresh = replace(self, now=self.operations.now, cache=self.cache.renewed(), standby_lag_s=None)
        if not self.settings.has_read_pool:
            return fresh
        lag_s = await fresh.read_shared(_read_standby_lag, age_s=self.settings.refresh_s, is_age_shown=False)
        return replace(fresh, standby_lag_s=lag_s)

    async def read_shared(
        self,
        read: Callable[[PageRequest, *Arguments], Awaitable[T]],
        *arguments: *Arguments,
        age_s: float,
        is_age_shown: bool = True,
        depends_on: Hashable = None,
    ) -> T:
        """Return what a function reads, or what it has read for another request some seconds ago.

        ``SharedReads.get()`` describes the parameters. ``age_s`` is for how many seconds a result is used.
        """
        return await self.cache.get(
            read, self, *arguments, age_s=age_s, is_age_shown=is_age_shown, depends_on=depends_on
        )

    def check_search(self, q: str) -> None:
        """Reject a search that is invalid, or whose result would show what the request may not see.

        Raises:
            SearchError: It is rejected.
        """
        self.settings.redaction.check_search(parse_search(q, now=self.now, tz=UTC), self.access)

    async def search_jobs(self, where: str, limit: int, after: str | None = None) -> SearchPage:
        """Return a page of the visible jobs that match a search. Times in the search are in UTC."""
        names = self.access.visible_names
        return await self.inspector.search_jobs(where, limit=limit, after=after, tz=UTC, names=names)

    async def continue_search(self, where: str, limit: int, after: str | None) -> SearchPage:
        """Return the jobs that a search finds after a position within some milliseconds."""
        return await self._search_briefly(where, limit, after, ())

    async def search_workflows(self, where: str, limit: int, after: str | None = None) -> SearchPage:
        """Return a page of the visible jobs with steps that match a search."""
        query = self._query(where, (StepsTerm(),))
        return await search_part(self.inspector, query, limit, after, self.settings.bounds)

    async def jobs_that_match(self, where: str, jobs: Sequence[Job]) -> dict[str, Job]:
        """Return which of these jobs match a search now, as they are now, by their ids."""
        if not jobs:
            return {}
        # The search is repeated with one more term, which permits the ids of these jobs only.
        id_patterns = tuple(Pattern(escape_like(job.job_id), job.job_id) for job in jobs)
        page = await self._search_briefly(where, len(jobs), None, (TextTerm(TextField.ID, id_patterns),))
        return {job.job_id: job for job in page.items}

    async def _search_briefly(
        self, where: str, limit: int, after: str | None, terms: Sequence[TextTerm]
    ) -> SearchPage:
        """Return the visible jobs that match a search and these terms, found within some milliseconds."""
        bounds = self.settings.bounds
        part_bounds = replace(bounds, milliseconds=min(bounds.milliseconds, PART_MILLISECONDS))
        return await search_part(self.inspector, self._query(where, terms), limit, after, part_bounds)

    def _query(self, where: str, terms: Sequence[Term]) -> Wanted:
        """Return the query for the visible jobs that match the text of a search and also these terms."""
        names = self.access.visible_names
        # Without ``names=``, all jobs are visible, so the query needs no term about names.
        visible_term = None if names is None else names_term(names)
        return Wanted(where, UTC, terms=terms, visible=visible_term)

    async def sample_jobs(
        self, where: str, limit: int, age_s: float, *, version: Hashable = None, is_age_shown: bool = True
    ) -> Sequence[Job]:
        """Return the first visible jobs that match a search; requests share the read.

        Args:
            where: The search.
            limit: The number of jobs.
            age_s: For how many seconds they are kept.
            version: A value that changes when the jobs must be read again before that.
            is_age_shown: Whether the age of the read counts for the age that the page shows.
        """
        depends_on = version, self.access.visible_names
        return await self.read_shared(
            _read_sample, where, limit, age_s=age_s, is_age_shown=is_age_shown, depends_on=depends_on
        )

    @property
    def visibility(self) -> Visibility:
        """Hides what the request may not see."""
        return Visibility(self.access, self.settings.redaction)

    def visible_job(self, job: Job) -> Job:
        """Return a job as far as the request may see it."""
        return self.visibility.job(job)

    def visible_error(self, error: str) -> str:
        """Return the text of an error; with ``names=``, only its class if it mentions another job."""
        return self.visibility.error(error)

    def visible_conflict(self, error: JobConflictError) -> str:
        """Return why a job was not added, without the name of a job that may be hidden."""
        return self.visibility.conflict(error)

    def visible_groups(self, groups: Iterable[ErrorGroup]) -> list[ErrorGroup]:
        """Return the groups of errors of visible names, as far as the request may see them."""
        return self.visibility.groups(groups)

    def sees_all(self, job: Job) -> bool:
        """Return whether the request sees every argument and all metadata of a job."""
        return self.visibility.sees_all(job)

    async def visible(
        self, kind: str, key: str, read: Callable[[str], Awaitable[T | None]], sees: Callable[[T], bool]
    ) -> T:
        """Read an object, such as a job or a schedule, and return it if the request may see it.

        Args:
            kind: What it is, for the message.
            key: Its id.
            read: Reads it.
            sees: Returns whether the request sees it.

        Raises:
            NotFoundError: It does not exist, or is hidden.
        """
        try:
            item = await read(key)
        except ValueError as error:  # The key is a text that the id of a row cannot be.
            raise NotFoundError.of(kind, key) from error
        if item is None or not sees(item):
            raise NotFoundError.of(kind, key)
        return item

    async def names_of_tasks(self, names: Iterable[str]) -> dict[str, set[str]]:
        """Return, for each of these job names, all known names of the task to which it belongs.

        A task can have former names besides its main name. Names are known from workers, from this process,
        and from the pause of the task. A pause holds the jobs of all names of a task. So a user who does not
        see all of these names may neither pause the task, nor read who paused it.
        """
        reported_names = TaskNames.of(await self.workers())
        pauses = (await self.read_shared(_read_pauses, age_s=PAUSES_AGE_S)).values()
        names_by_name: dict[str, set[str]] = {}
        for name in names:
            known_names = {reported_names.task_of(name), *self.operations.names_of(name)}
            names_by_name[name] = linked_names(known_names, pauses)
        return names_by_name

    async def pauses(self) -> Mapping[str, Pause]:
        """Return the pauses of tasks, by each job name whose jobs they hold back."""
        return by_stopped_name(await self.read_shared(_read_pauses, age_s=PAUSES_AGE_S))

    async def task_names(self) -> TaskNames:
        """Return the names of the visible tasks that live workers claim.

        A task can have former names. The result leads from each of them to the main name, which pages show.
        """
        workers = await self.workers()
        return TaskNames.of((worker for worker in workers if worker.is_alive), self.access.sees_name)

    async def task_parameters(self, task: str | None) -> Sequence[Parameter]:
        """Return the parameters of a task that workers report.

        There are none without a task, or if the request may not see the task or arguments.
        """
        if task is None or not self.access.sees_arguments or not self.access.sees_name(task):
            return ()
        # The page may have been asked for by a former name of the task.
        current_name = (await self.task_names()).task_of(task)
        return parameters_of(await self.workers(), current_name) or ()

    async def argument_names(self, job_name: str, args: Sequence[object]) -> Sequence[str]:
        """Return the names of the parameters to which a visible job passes its positional arguments.

        There are none if the job has no such arguments, the request may not see arguments, or no worker
        reports the parameters.
        """
        if not args or not self.access.sees_arguments:
            return ()
        workers = await self.workers()
        # The job may have a former name of its task, but workers report parameters by the main name.
        main_name = (await self.task_names()).task_of(job_name)
        return positional_names(workers, main_name)

    async def reported_options(
        self, name: str, options: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], str | None]:
        """Return the options with which a new job is added, and a sentence about them for the user.

        If this process has registered the task, the Scheduler itself applies the options of the task. So the
        options stay as they are, and there is no sentence (None). Otherwise the options that live workers
        report for the task are added. The sentence states which options of the task the job has or lacks.
        """
        if self.operations.is_registered(name):
            return options, None
        return with_reported_options(
            name, options, await self.workers(), remedy=f"run {command_with_options(name)}"
        )

    async def reports_options(self, name: str) -> bool:
        """Return whether the options of a task are known: from this process, or from a live worker."""
        if self.operations.is_registered(name):
            return True
        task = (await self.task_names()).task_of(name)
        return options_of(await self.workers(), task) is not None

    async def workers(self, *, is_age_shown: bool = False) -> Sequence[Worker]:
        """Return every worker that has a row; all requests share the read for some seconds.

        Args:
            is_age_shown: Whether the age of the read counts for the age that the page shows.
        """
        return await self.read_shared(_read_workers, age_s=WORKERS_AGE_S, is_age_shown=is_age_shown)

    async def job_names(self) -> Sequence[str]:
        """Return the names of jobs whose attempts were counted, also those that the request may not see."""
        return await self.read_shared(_read_job_names, age_s=NAMES_AGE_S, is_age_shown=False)

    async def deaths(self) -> AuditPage:
        """Return the records of workers that died within a day, the newest first, a page of them."""
        return await self.read_shared(_read_deaths, age_s=DEATHS_AGE_S, is_age_shown=False)

    async def worker_names(self) -> dict[str, str]:
        """Return, by the ids of workers, the names that people gave them; those without a name are left out.

        Workers that died within a day are included.
        """
        names = {record.subject or "": identity_of(record) for record in (await self.deaths()).items}
        names |= {worker.worker_id: worker.identity for worker in await self.workers()}
        return {worker_id: name for worker_id, name in names.items() if name}

    def uncounted(self, text: str | None) -> str | None:
        """Return the text about workers whose statistics are off, as far as the request may see it.

        The text is None if all workers count their attempts, and then the result is None too. It contains the
        hosts of the other workers, which a request that sees only some names (``names=``) does not see.
        """
        if text is None or self.access.visible_names is None:
            return text
        return "some workers count nothing"

    def may(self, right: Right) -> bool:
        """Return whether the request has a right, and the dashboard accepts changes."""
        return not self.settings.read_only and self.access.may(right)

    def url(self, path: str, /, **parameters: object) -> str:
        """Return the address of a page, without parameters that are None or empty."""
        query_fields = {key: str(value) for key, value in parameters.items() if value not in {None, ""}}
        query = urlencode(query_fields, quote_via=quote)
        return f"{self.base}{path}?{query}" if query else f"{self.base}{path}"

    def source_url(self, name: str) -> str:
        """Return the address of the same dashboard for another of its sources (Schedulers)."""
        # The base ends with the name of the present source, which is replaced.
        base_of_all, _, _ = self.base.rpartition("/")
        return f"{base_of_all}/{name}/"

    def search_url(self, **terms: str) -> str:
        """Return the address of a search for jobs with these values in these fields of the search."""
        search = " ".join(term(field, value) for field, value in terms.items())
        return self.url("/jobs", q=search)

    def required(self, name: str) -> str:
        """Return a parameter of the address.

        Raises:
            RejectedError: It is missing or empty.
        """
        value = self.parameters.get(name, "")
        if not value:
            raise RejectedError(f"the parameter {name!r} is missing in the address")
        return value

    def choice(self, name: str, choices: Collection[Text], default: str = "") -> Text:
        """Return the value of a parameter, or the default if it is missing or empty.

        Raises:
            RejectedError: The value is not one of the choices.
        """
        value = self.parameters.get(name) or default
        # The result is the element of ``choices`` and not the equal text from the address: only the former
        # has the type of the choices, which may be a literal or an enumeration.
        choice = next((option for option in choices if option == value), None)
        if choice is None:
            choice_names = ", ".join(filter(None, choices))
            raise RejectedError(f"{name} must be one of {choice_names}, not {value[:50]!r}")
        return choice


async def _read_standby_lag(request: PageRequest) -> float | None:
    """Read how many seconds the database of the pages is behind its primary; requests share the result."""
    return await request.inspector.standby_lag_s()


async def _read_sample(request: PageRequest, where: str, limit: int) -> Sequence[Job]:
    """Return the first visible jobs that match a search; none if the search is invalid."""
    try:
        return (await request.search_jobs(where, limit)).items
    # Pages make this search from texts of rows. No search can be written for some texts of a row that was
    # written by hand.
    except SearchError:
        return ()


async def _read_workers(request: PageRequest) -> Sequence[Worker]:
    """Read all workers that have a row; requests share the result."""
    return await request.inspector.workers()


async def _read_deaths(request: PageRequest) -> AuditPage:
    """Read the audit records of workers that died within a day; requests share the result."""
    since = request.now - DEAD_FOR
    return await request.inspector.audit(action=DECLARE_DEAD, since=since, limit=MAX_DEAD)


async def _read_job_names(request: PageRequest) -> Sequence[str]:
    """Read the names of all jobs whose attempts were counted; requests share the result."""
    return await request.inspector.job_names()


def identity_of(death: AuditRecord) -> str | None:
    """Return the name that people gave to a dead worker, from the record of its death; None if it had none.

    The record may have been written by hand, so the types of its details are checked.
    """
    worker = death.details.get("worker")
    identity = worker.get("identity") if isinstance(worker, Mapping) else None
    return identity if isinstance(identity, str) else None


def command_with_options(name: str) -> str:
    """Return the command that adds a job of a task with the options that its code has."""
    return command("jobs", "add", name, "--jobs", "MODULE")


def base_of(request: Request, *, trust_forwarded: bool) -> str:
    """Return the path under which browsers reach the dashboard, without a slash at the end."""
    base = str(request.scope.get("root_path", "")).rstrip("/")
    prefix = request.headers.get("x-forwarded-prefix", "") if trust_forwarded else ""
    # The prefix becomes a part of links, so a header that is no plain path is ignored.
    if _PREFIX.fullmatch(prefix):
        base = prefix.rstrip("/") + base
    return quote(base, safe="/~")


def path_of(request: Request) -> str:
    """Return the path of the request within the dashboard.

    Some servers and host applications keep the ``root_path`` in the ``path`` of the scope, others remove it.
    """
    path = str(request.scope["path"])
    root = str(request.scope.get("root_path", "")).rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return path.rstrip("/") or "/"


def entered_instant(name: str, text: str, now: datetime, zone: str = "") -> datetime | None:
    """Return the instant of a field; None if the field is empty.

    Args:
        name: The name of the field.
        text: A time, or a choice of a list: ``+1h`` for an hour from now, or ``tomorrow 08:00``.
        now: The current time.
        zone: The time zone of a time without an offset; empty for UTC.

    Raises:
        RejectedError: The text is no time, the zone is unknown, or the time is out of range.
    """
    if not text:
        return None
    try:
        tz = named_zone(zone or "UTC")[1]
    except ValueError as error:
        raise RejectedError(str(error)) from error
    # read_instant() does not read "tomorrow 08:00", but "tomorrow". So the end is removed, and the hour is
    # set afterwards by the clock of the zone.
    text_without_hour = text.removesuffix(MORNING)
    is_morning = text_without_hour != text
    try:
        instant: datetime | None = read_instant(text_without_hour, now, tz)
        if instant is not None and is_morning:
            instant = instant.astimezone(tz).replace(hour=8).astimezone(UTC)
    except OutOfRangeError:
        instant = None
    except TimeError as error:
        raise RejectedError(f"{name} must be a time such as 2027-01-31T09:00, not {text[:50]!r}") from error
    if instant is None or not EARLIEST <= instant <= LATEST:
        raise RejectedError(f"{name} must be between 0001-01-02 and 9999-12-30, not {text[:50]!r}")
    return instant


async def _read_pauses(request: PageRequest) -> Mapping[str, Pause]:
    """Read the pauses of all names, whichever the request may see."""
    return await paused_tasks(tables_of(request.inspector).reads)
