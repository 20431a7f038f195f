"""Pages of the admin: lists of jobs, schedules and workers, and actions on jobs and schedules.

They are made for tables of many millions of rows. A list is in the order of the primary key, and its rows are
neither counted nor sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, ClassVar, Final

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections, router, transaction
from django.db.models import Q
from django.db.models.functions import Coalesce

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.database.faults import sqlstate_of
from pg_scheduler.errors import ConfigurationError, JobConflictError
from pg_scheduler.facts.outcomes import UNSUCCESSFUL_JOBS
from pg_scheduler.integrations.django.models import Job, Schedule, Worker
from pg_scheduler.integrations.django.paginator import MAX_PAGES, EstimatingPaginator
from pg_scheduler.jobs.registry import catalogue
from pg_scheduler.sync import SyncScheduler

MAX_CHANGED: Final = 1000
"""The maximum number of rows that an action changes: it is one transaction, for which the browser waits."""

TOO_SLOW: Final = (
    "These filters were stopped after {}, since they read too many rows. Remove one, or search for an id. "
    "The dashboard searches part by part."
)


CANCELLED_STATEMENT: Final = "57014"
"""The SQLSTATE of a statement that exceeds its time limit."""

PLACEHOLDER: Final = "%s"
SET_LIMIT: Final = f"SELECT pg_catalog.set_config('statement_timeout', {PLACEHOLDER}, true)"

MAX_CONFLICTS: Final = 3
"""The maximum number of conflicts that the message of an action names."""


@contextmanager
def limited(alias: str, limit: str) -> Iterator[None]:
    """Limit the time of each statement of the block, which runs in a transaction.

    Raises:
        TimeoutError: A statement was stopped.
    """
    try:
        with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_catalog.current_setting('statement_timeout')")
            (previous_timeout,) = cursor.fetchone()
            # The limit applies until the end of the transaction. An outer transaction may continue after the
            # block, so the limit is set back at the end. An error rolls it back.
            cursor.execute(SET_LIMIT, [limit])
            yield
            cursor.execute(SET_LIMIT, [previous_timeout])
    except OperationalError as error:
        if sqlstate_of(error) != CANCELLED_STATEMENT:
            raise
        raise TimeoutError(TOO_SLOW.format(limit)) from error


def _routed_database(choose: Callable[..., str], model: Any) -> str:
    """Return the database that the routers choose for a model; if none does, that of the backends.

    ``choose`` is ``router.db_for_read`` or ``router.db_for_write``.
    """
    row = model()
    # Django returns the database of the instance if no router chooses one.
    row._state.db = _database_of_backends()
    return choose(model, instance=row)


def _database_of_backends() -> str:
    """Return the database of all backends; the default one if there are several databases, or no backends."""
    default: str = DEFAULT_DB_ALIAS
    if not (find_spec("django.tasks") or find_spec("django_tasks")):
        return default
    from pg_scheduler.integrations.django.backend import all_backends  # noqa: PLC0415 - needs django.tasks

    databases = {backend.settings.database for backend in all_backends()}
    return databases.pop() if len(databases) == 1 else default


def _may(permission: str) -> Callable[[Any, Any], bool]:
    """Return a method for an admin that checks whether the user of a request has a permission."""
    return lambda _admin, request: bool(request.user.has_perm(f"pg_scheduler.{permission}"))


class StatusFilter(admin.SimpleListFilter):
    """The status of jobs."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the statuses."""
        return Job.STATUSES

    def queryset(self, request: Any, queryset: Any) -> Any:  # noqa: ARG002
        """Return the jobs of the selected status."""
        status = self.value()
        jobs = queryset if status is None else queryset.filter(status=status)
        # The further conditions follow from the status. They are here because PostgreSQL uses a partial index
        # only for a query that has its condition.
        if status in {JobStatus.PENDING, JobStatus.RUNNING}:
            return jobs.filter(
                Q(finished_at__isnull=True, blocked_on__isnull=True) | Q(blocked_on__isnull=False)
            )
        if status in UNSUCCESSFUL_JOBS:
            return jobs.filter(finished_at__isnull=False, error_message__isnull=False)
        return jobs


class NameFilter(admin.SimpleListFilter):
    """The names under which functions are registered in this process or in workers."""

    title = "name"
    parameter_name = "job_name"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the names."""
        names = {task.name for task in catalogue.tasks()}
        workers = Worker.objects.using(_routed_database(router.db_for_read, Worker))
        for names_of_worker in workers.values_list("names", flat=True):
            names.update(names_of_worker or ())
        return [(name, name) for name in sorted(names)]

    def queryset(self, request: Any, queryset: Any) -> Any:  # noqa: ARG002
        """Return the jobs of the selected name.

        This is the name of the function of a job, if its row has one apart from the name of the job.
        """
        if self.value() is None:
            return queryset
        return queryset.alias(name=Coalesce("function", "job_name")).filter(name=self.value())


class KeyedList(ChangeList):
    """A list in the order of the admin, whatever order the URL asks for. Its rows are read by their keys."""

    paginator: Any
    queryset: Any

    def get_ordering(self, request: Any, queryset: Any) -> list[str]:  # noqa: ARG002
        """Return the order of the rows."""
        return list(self.model_admin.get_ordering(request))

    def get_results(self, request: Any) -> None:
        """Search for the keys of the page once, within the time limit, since a filter may read many rows."""
        try:
            with limited(self.queryset.db, self.model_admin.time_limit):
                # The paginator finds the keys of the page, by which the rows are read without a second
                # search.
                super().get_results(request)
                self.result_list = self.queryset.filter(pk__in=self.paginator.keys[: self.list_per_page])
        except TimeoutError as error:
            messages.warning(request, str(error))
            # The page shows an empty list. None stands for an unknown number of rows.
            self.result_list = self.queryset.none()
            self.paginator = Paginator(self.result_list, self.list_per_page)
            self.result_count, self.full_result_count = 0, None
            self.show_all = self.can_show_all = self.multi_page = False


class ReadOnlyAdmin(admin.ModelAdmin):
    """Pages of rows that are not edited.

    Attributes:
        large_fields: The fields that lists do not read.
        time_limit: The time limit of a statement whose filters may read many rows to find few.
    """

    large_fields: ClassVar[tuple[str, ...]] = ()
    time_limit = "5s"
    list_max_show_all = 0
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ()
    search_fields = ("pk__exact",)
    search_help_text = "An id"

    def _refuse(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        """Return that no user may edit rows."""
        return False

    # Without these permissions, Django offers no form or button that edits rows.
    has_add_permission = has_change_permission = has_delete_permission = _refuse

    def get_queryset(self, request: Any) -> Any:
        """Return the rows, without the large values unless one row is shown."""
        rows = super().get_queryset(request).using(_routed_database(router.db_for_read, self.model))
        # The address of the page of one row contains its id.
        is_single_row = "object_id" in request.resolver_match.kwargs
        return rows if is_single_row else rows.defer(*self.large_fields)

    def get_changelist(self, request: Any, **_options: Any) -> type[ChangeList]:  # noqa: ARG002
        """Return the class of the list."""
        return KeyedList

    def get_paginator(self, request: Any, queryset: Any, per_page: int, **options: Any) -> Any:
        """Return a paginator that counts no rows."""
        paginator = EstimatingPaginator(queryset, per_page, **options)
        # The number of the page in the URL may be missing or any text. Then the page is the first one.
        page = request.GET.get("p", "")
        if page.isdecimal():
            paginator.page_number = min(max(int(page), 1), MAX_PAGES)
        return paginator

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:  # noqa: ARG002
        """Return the row with this id, or all rows if the search is empty.

        The second value is for Django: no row can occur twice in the result.
        """
        term = search_term.strip()
        return queryset.filter(pk=term) if term else queryset, False

    def _change(self, request: Any, rows: Any, change: Callable[..., object], summary: str) -> None:
        """Change each selected row in one transaction, and show to the user how many were changed.

        Args:
            request: The request of the action.
            rows: The query for the selected rows.
            change: Called with a Scheduler, the id of a row and ``connection=``. Its result is true if it has
                changed the row.
            summary: What it does, such as ``"Cancelled"``, for the message and the history of the row.
        """
        try:
            with limited(rows.db, self.time_limit):
                # One more row shows that too many are selected.
                selected_rows = list(rows[: MAX_CHANGED + 1])
        except TimeoutError as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        # Two actions lock rows in the same order, so that they cause no deadlock.
        selected_rows.sort(key=attrgetter("pk"))
        if len(selected_rows) > MAX_CHANGED:
            text = f"Select at most {MAX_CHANGED} rows. The dashboard changes any number."
            self.message_user(request, text, messages.ERROR)
            return
        alias = _routed_database(router.db_for_write, self.model)
        scheduler = SyncScheduler()
        changed_rows, conflicts = [], []
        author = Author(request.user.get_username(), "admin")
        with transaction.atomic(using=alias), acting_as(author):
            for row in selected_rows:
                try:
                    if change(scheduler, row.pk, connection=alias):
                        changed_rows.append(row)
                # A ConfigurationError is about a schedule whose task this process has not imported.
                except (JobConflictError, ConfigurationError) as error:
                    conflicts.append(str(error))
        # Django's history of a row states who has changed it.
        for row in changed_rows:
            self.log_change(request, row, summary)
        texts = [f"{summary}: {len(changed_rows)} of {len(selected_rows)}."]
        if len(changed_rows) < len(selected_rows):
            texts += ["The others are in no status that allows it.", *conflicts[:MAX_CONFLICTS]]
        level = messages.SUCCESS if changed_rows else messages.WARNING
        self.message_user(request, " ".join(texts), level)


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Jobs, the newest first."""

    actions = ("cancel", "retry", "run")
    large_fields = ("errors", "on_end", "options", "progress", "task_data")
    list_display = ("job_id", "name", "status", "execution_time", "priority", "attempt", "worker_id")
    list_filter = (StatusFilter, NameFilter)
    ordering = ("-job_id",)

    @admin.display(description="name")
    def name(self, job: Job) -> str:
        """Return the name by which the filter finds a job: that of its function, if it has one of its own."""
        name: str = job.function or job.job_name
        return name

    def get_ordering(self, request: Any) -> tuple[str, ...]:
        """Return the order: for unsuccessful jobs that of their index, which contains few other jobs."""
        is_unsuccessful = request.GET.get("status") in UNSUCCESSFUL_JOBS
        return ("-finished_at", "-job_id") if is_unsuccessful else self.ordering

    has_cancel_permission = _may("cancel_job")
    has_retry_permission = _may("retry_job")
    has_run_permission = _may("run_job")

    @admin.action(description="Cancel the selected jobs", permissions=["cancel"])
    def cancel(self, request: Any, queryset: Any) -> None:
        """Cancel pending and running jobs."""
        self._change(request, queryset, SyncScheduler.cancel_job, "Cancelled")

    @admin.action(description="Run the selected finished jobs again", permissions=["retry"])
    def retry(self, request: Any, queryset: Any) -> None:
        """Run finished jobs again."""
        self._change(request, queryset, SyncScheduler.retry_job, "Retried")

    @admin.action(description="Run the selected pending jobs now", permissions=["run"])
    def run(self, request: Any, queryset: Any) -> None:
        """Make pending jobs due."""
        self._change(request, queryset, SyncScheduler.run_job_now, "Made due")


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    """Schedules, in the order of their ids."""

    actions = ("run",)
    large_fields = ("metadata", "options", "task_data", "trigger")
    list_display = (
        "schedule_id",
        "task",
        "described",
        "next_fire_at",
        "last_fire_at",
        "paused_at",
        "failures",
    )
    list_filter = ("owner",)
    ordering = ("schedule_id",)

    has_run_permission = _may("run_schedule")

    @admin.action(description="Run the selected schedules now", permissions=["run"])
    def run(self, request: Any, queryset: Any) -> None:
        """Enqueue a job of each schedule."""

        def trigger(scheduler: SyncScheduler, schedule_id: str, *, connection: str) -> str | None:
            return scheduler.schedules.trigger(schedule_id, connection=connection)

        self._change(request, queryset, trigger, "Enqueued")


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Workers, in the order of their ids."""

    list_display = ("worker_id", "hostname", "pid", "state", "running_jobs", "started_at", "last_beat")
    ordering = ("worker_id",)
    large_fields = ("health", "metadata", "names", "settings", "subscriptions")
