"""The input of a page: the settings of the dashboard, and one request."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Final, TypeAlias, TypeVar, TypeVarTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request

from pg_scheduler.base.text.times import OutOfRangeError, TimeError, read_instant
from pg_scheduler.dashboard.access import Access, Authorize, Right
from pg_scheduler.dashboard.cache import SharedReads
from pg_scheduler.dashboard.operations import Operations
from pg_scheduler.dashboard.redaction import HIDDEN, Redaction, without_key, without_other_job
from pg_scheduler.errors import JobConflictError
from pg_scheduler.inspect import Bounds, Inspector, SearchError, SearchPage, parse_search
from pg_scheduler.inspect.errors import ErrorGroup
from pg_scheduler.inspect.names import TaskNames, parameters_of, positional_names
from pg_scheduler.inspect.other_jobs import class_about_other_job
from pg_scheduler.inspect.texts import term
from pg_scheduler.jobs.history import PARENT, AttemptError
from pg_scheduler.jobs.model import Job, Worker
from pg_scheduler.jobs.worker_report import Parameter
from pg_scheduler.triggers.zones import named_zone

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Text = TypeVar("Text", bound=str)

JobTexts: TypeAlias = Callable[[Job], str]
JobLinks: TypeAlias = Callable[[Job], Mapping[str, str]]

EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""The times of a form, so that each is an instant in any zone, and also a moment later."""

MORNING: Final = " 08:00"
"""What follows a day in the choices of a form."""

_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)+/?")


WORKERS_AGE_S: Final = 10.0
NAMES_AGE_S: Final = 10.0


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
    """Nothing visible has this address. What exists and is not visible answers the same."""

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
    """A request that may be answered.

    Attributes:
        settings: The settings of the dashboard.
        access: The rights of the request.
        inspector: Reads it.
        parameters: The parameters of the address.
        base: The path under which browsers reach the dashboard, without a slash at the end.
        now: The time of the operations.
        cache: The values that requests share.
        operations: Makes the changes, and has the clock.
        did: The message about the action before, as its cookie has it; empty for none.
        is_compact: Whether tables are dense in this browser.
        standby_lag_s: How many seconds the data is behind the primary; None if it is not that of a standby.
    """

    settings: Settings
    access: Access
    inspector: Inspector
    parameters: Mapping[str, str]
    base: str
    now: datetime
    cache: SharedReads
    operations: Operations
    did: str = ""
    is_compact: bool = False
    standby_lag_s: float | None = None

    async def dated(self) -> PageRequest:
        """Return the request as of now, with the delay of a standby, before anything shared was read."""
        fresh = replace(self, now=self.operations.now, cache=self.cache.renewed(), standby_lag_s=None)
        if not self.settings.has_read_pool:
            return fresh
        lag_s = await fresh.read_shared(_read_standby_lag, age_s=self.settings.refresh_s, is_data=False)
        return replace(fresh, standby_lag_s=lag_s)

    async def read_shared(
        self,
        read: Callable[[PageRequest, *Arguments], Awaitable[T]],
        *arguments: *Arguments,
        age_s: float,
        is_data: bool = True,
        depends_on: Hashable = None,
    ) -> T:
        """Return what a function reads, or has read for another request; see ``SharedReads.get()``."""
        return await self.cache.get(
            read, self, *arguments, age_s=age_s, is_data=is_data, depends_on=depends_on
        )

    def check_search(self, q: str) -> None:
        """Reject a search that is invalid, or whose result would show what the request may not see.

        Raises:
            SearchError: It is rejected.
        """
        self.settings.redaction.check_search(parse_search(q, now=self.now, tz=UTC), self.access)

    async def search_jobs(self, where: str, limit: int, after: str | None = None) -> SearchPage:
        """Return a page of the visible jobs that match a search, whose times are in UTC."""
        names = self.access.visible_names
        return await self.inspector.search_jobs(where, limit=limit, after=after, tz=UTC, names=names)

    async def sample_jobs(
        self, where: str, limit: int, age_s: float, *, version: Hashable = None, is_data: bool = True
    ) -> Sequence[Job]:
        """Return the first visible jobs that match a search; requests share the read.

        Args:
            where: The search.
            limit: The number of jobs.
            age_s: For how many seconds they are kept.
            version: Changes when they must be read again before.
            is_data: Whether the age of the read matters to those who read the page.
        """
        depends_on = version, self.access.visible_names
        return await self.read_shared(
            _read_sample, where, limit, age_s=age_s, is_data=is_data, depends_on=depends_on
        )

    def visible_job(self, job: Job) -> Job:
        """Return a job as far as the request may see it: the one place that hides parts of jobs.

        Without arguments, there are no metadata, progress notes and log lines either, and the keys of limits
        and of unique jobs are hidden; the latter also with any value, because it may be a digest of the
        arguments. With ``names=``, the history has no entry that names another job, and errors that carry
        something of another job are hidden.
        """
        hide, errors = self.settings.redaction.values, job.errors
        if self.access.visible_names is not None:
            errors = tuple(_own_part(entry) for entry in errors if entry.outcome != PARENT)
            if job.error_message is not None:
                job = replace(job, error_message=without_other_job(job.error_message))
        if self.access.sees_arguments:
            return replace(
                job,
                args=tuple(hide(job.args)),
                kwargs=hide(job.kwargs),
                metadata=hide(job.metadata),
                errors=errors,
                unique_key=job.unique_key if self.sees_all(job) else job.unique_key and HIDDEN,
            )
        return replace(
            job,
            args=(),
            kwargs={},
            metadata={},
            errors=tuple(replace(error, log=()) for error in errors),
            progress=None if job.progress is None else replace(job.progress, note=None),
            unique_key=job.unique_key and HIDDEN,
            blocked_on=without_key(job.blocked_on),
        )

    def visible_error(self, error: str) -> str:
        """Return an error as far as the request may see it; see ``visible_job()``."""
        return error if self.access.visible_names is None else without_other_job(error)

    def visible_conflict(self, error: JobConflictError) -> str:
        """Return why a job was not added; without the other job if that may be of a hidden name."""
        if self.access.visible_names is None:
            return str(error)
        return f"another job has the {'id' if error.unique_key is None else 'unique key'} of this one"

    def visible_groups(self, groups: Iterable[ErrorGroup]) -> list[ErrorGroup]:
        """Return the groups of errors of visible names, as far as the request may see them."""
        return [
            replace(group, text=self.visible_error(group.text), example=self.visible_error(group.example))
            for group in groups
            if self.access.sees_name(group.job_name)
        ]

    def sees_all(self, job: Job) -> bool:
        """Return whether the request sees every argument and all metadata of a job."""
        values = {"args": list(job.args), "kwargs": job.kwargs, "metadata": job.metadata}
        is_read = job.no_args_reason is None
        return is_read and self.access.sees_arguments and self.settings.redaction.shows(values)

    async def visible(
        self, kind: str, key: str, read: Callable[[str], Awaitable[T | None]], sees: Callable[[T], bool]
    ) -> T:
        """Return an object that the request sees.

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
        except ValueError as error:  # no id that a row can have
            raise NotFoundError.of(kind, key) from error
        if item is None or not sees(item):
            raise NotFoundError.of(kind, key)
        return item

    async def names_of_tasks(self, names: Iterable[str]) -> dict[str, set[str]]:
        """Return names of tasks, each with the main one by which this process or the workers know the task.

        A pause holds all names of a task. So those who see only one of them may neither pause the task, nor
        read who did.
        """
        reported = TaskNames.of(await self.workers())
        return {name: {reported.task_of(name), *self.operations.names_of(name)} for name in names}

    async def task_names(self) -> TaskNames:
        """Return the visible tasks that live workers claim, whose main names every page offers and lists."""
        workers = await self.workers()
        return TaskNames.of((worker for worker in workers if worker.is_alive), self.access.sees_name)

    async def task_parameters(self, task: str | None) -> Sequence[Parameter]:
        """Return the parameters of a visible task that live workers report; none if arguments are hidden."""
        if task is None or not self.access.sees_arguments or not self.access.sees_name(task):
            return ()
        main = (await self.task_names()).task_of(task)
        return parameters_of(await self.workers(), main) or ()

    async def argument_names(self, job: Job) -> Sequence[str]:
        """Return the parameters of the positional arguments of a visible job that live workers report."""
        if not job.args or not self.access.sees_arguments:
            return ()
        return positional_names(await self.workers(), (await self.task_names()).task_of(job.job_name))

    async def workers(self, *, is_data: bool = False) -> Sequence[Worker]:
        """Return every worker that has a row; all requests share the read for some seconds.

        Args:
            is_data: Whether the age of the read matters to those who read the page.
        """
        return await self.read_shared(_read_workers, age_s=WORKERS_AGE_S, is_data=is_data)

    async def job_names(self) -> Sequence[str]:
        """Return the names of jobs whose attempts were counted, of which the request may not see all."""
        return await self.read_shared(_read_job_names, age_s=NAMES_AGE_S, is_data=False)

    async def worker_names(self) -> dict[str, str]:
        """Return the names of workers that have one, by their ids."""
        return {worker.worker_id: worker.identity for worker in await self.workers() if worker.identity}

    def uncounted(self, text: str | None) -> str | None:
        """Return which live workers count nothing, without their names if only some job names are visible."""
        return text if text is None or self.access.visible_names is None else "some workers count nothing"

    def may(self, right: Right) -> bool:
        """Return whether the request may make such changes."""
        return not self.settings.read_only and self.access.may(right)

    def url(self, path: str, /, **parameters: object) -> str:
        """Return the address of a page."""
        query_fields = {key: str(value) for key, value in parameters.items() if value not in {None, ""}}
        query = urlencode(query_fields, quote_via=quote)
        return f"{self.base}{path}{'?' if query else ''}{query}"

    def source_url(self, name: str) -> str:
        """Return the address of another source."""
        return f"{self.base.rpartition('/')[0]}/{name}/"

    def search_url(self, **terms: str) -> str:
        """Return the address of a search for jobs with these values."""
        return self.url("/jobs", q=" ".join(term(field, value) for field, value in terms.items()))

    def required(self, name: str) -> str:
        """Return a parameter.

        Raises:
            RejectedError: It is missing.
        """
        value = self.parameters.get(name, "")
        if not value:
            raise RejectedError(f"the parameter {name!r} is missing in the address")
        return value

    def choice(self, name: str, choices: Collection[Text], default: str = "") -> Text:
        """Return the value of a parameter, which must be one of the known values.

        Raises:
            RejectedError: The value is not a known one.
        """
        value = self.parameters.get(name) or default
        choice = next((option for option in choices if option == value), None)
        if choice is None:
            choice_names = ", ".join(filter(None, choices))
            raise RejectedError(f"{name} must be one of {choice_names}, not {value[:50]!r}")
        return choice


async def _read_standby_lag(request: PageRequest) -> float | None:
    return await request.inspector.standby_lag_s()


async def _read_sample(request: PageRequest, where: str, limit: int) -> Sequence[Job]:
    try:
        return (await request.search_jobs(where, limit)).items
    except SearchError:  # a text of a row written by hand, for which no search can be written
        return ()


async def _read_workers(request: PageRequest) -> Sequence[Worker]:
    return await request.inspector.workers()


async def _read_job_names(request: PageRequest) -> Sequence[str]:
    return await request.inspector.job_names()


def base_of(request: Request, *, trust_forwarded: bool) -> str:
    """Return the path under which browsers reach the dashboard, without a slash at the end."""
    base = str(request.scope.get("root_path", "")).rstrip("/")
    prefix = request.headers.get("x-forwarded-prefix", "") if trust_forwarded else ""
    if _PREFIX.fullmatch(prefix):
        base = prefix.rstrip("/") + base
    return quote(base, safe="/~")


def path_of(request: Request) -> str:
    """Return the path of the request within the dashboard. ``path`` contains the ``root_path`` or not."""
    path, root = str(request.scope["path"]), str(request.scope.get("root_path", "")).rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return path.rstrip("/") or "/"


def _own_part(entry: AttemptError) -> AttemptError:
    """Return an entry of the history without what it carries of another job."""
    texts = entry.error_type, entry.message, entry.traceback
    if not any(map(class_about_other_job, texts)):
        return entry
    return replace(entry, message=HIDDEN, traceback=None)


def entered_instant(name: str, text: str, now: datetime, zone: str = "") -> datetime | None:
    """Return the instant of a field; None if the field is empty.

    Args:
        name: The name of the field.
        text: The time, or the time from now on or the morning of a list of choices.
        now: The time.
        zone: The time zone of a time without an offset; empty for UTC.

    Raises:
        RejectedError: It is none.
    """
    if not text:
        return None
    try:
        tz = named_zone(zone or "UTC")[1]
    except ValueError as error:
        raise RejectedError(str(error)) from error
    day = text.removesuffix(MORNING)
    try:
        instant: datetime | None = read_instant(day, now, tz)
        if instant is not None and day != text:
            instant = instant.astimezone(tz).replace(hour=8).astimezone(UTC)
    except OutOfRangeError:
        instant = None
    except TimeError as error:
        raise RejectedError(f"{name} must be a time such as 2027-01-31T09:00, not {text[:50]!r}") from error
    if instant is None or not EARLIEST <= instant <= LATEST:
        raise RejectedError(f"{name} must be between 0001-01-02 and 9999-12-30, not {text[:50]!r}")
    return instant
