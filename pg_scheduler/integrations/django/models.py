"""Read the tables through the ORM.

The models are managed, although SQL files create their tables: ``flush``, which ends each test of a
``TransactionTestCase``, empties the tables of managed models only. For this reason tables that are not for
queries have models too, with their keys. Models and query sets refuse to write, and there are no permissions
to add, change or delete rows: a row that is not written by the library may break its invariants.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, NoReturn

from django.db import NotSupportedError, models

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.migrations.shape import table_columns
from pg_scheduler.jobs.model import JobPriority

__all__ = ["Job", "Result", "Schedule", "Worker"]

CALLS: Final = (
    "SyncScheduler().enqueue(), cancel_job(), retry_job() or schedules.add() with connection= and the alias "
    "of the database"
)
"""What writes instead."""


RESTORES: Final = (
    "leave it out of fixtures, and tests with serialized_rollback = True leave it out with "
    "TEST_NON_SERIALIZED_APPS = ['pg_scheduler.integrations.django']"
)
"""What to do where Django restores rows, which it does by the query set and not by methods of the model."""


class TextArrayField(models.Field):
    """A list of texts; the one of ``django.contrib.postgres`` requires that application."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002
        """Return the type of the column."""
        return "text[]"


class ReadOnlyQuerySet(models.QuerySet):
    """Rows that cannot be written."""

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raise an error that names the calls which write instead."""
        _refuse_to_write(self.model)

    def _refuse_to_restore(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raise an error with the remedy where Django restores rows, such as those of a fixture."""
        _refuse_to_write(self.model, RESTORES)

    create = get_or_create = update_or_create = bulk_create = bulk_update = _refuse
    update = delete = _raw_delete = _refuse
    _insert = _update = _refuse_to_restore


class ReadOnlyModel(models.Model):
    """A row that cannot be written."""

    objects = ReadOnlyQuerySet.as_manager()

    class Meta:
        abstract = True
        base_manager_name = "objects"
        default_permissions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.pk)

    def save_base(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse to write; ``save()`` calls this."""
        _refuse_to_write(type(self))

    def delete(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse to delete."""
        _refuse_to_write(type(self))


def _refuse_to_write(model: type[models.Model], remedy: str = f"call {CALLS}") -> NoReturn:
    """Raise the error that a model is read-only, with what to do instead."""
    raise NotSupportedError(f"{model.__name__} is read-only, because workers own its rows; {remedy}")


class Job(ReadOnlyModel):
    """A job, until retention deletes its row."""

    STATUSES: ClassVar = [(status.value, status.value) for status in JobStatus]
    PRIORITIES: ClassVar = [(priority.db_value, priority.value) for priority in JobPriority]

    job_id = models.TextField(primary_key=True)
    job_name = models.TextField()
    execution_time = models.DateTimeField()
    status = models.TextField(choices=STATUSES)
    task_data = models.JSONField()
    created_at = models.DateTimeField()
    last_heartbeat = models.DateTimeField(null=True)
    lease_until = models.DateTimeField(null=True)
    priority = models.IntegerField(choices=PRIORITIES)
    retry_count = models.IntegerField()
    max_retries = models.IntegerField()
    worker_id = models.TextField(null=True)
    error_message = models.TextField(null=True)
    misfire_grace_time = models.IntegerField(null=True)
    function = models.TextField(null=True)
    attempt = models.IntegerField()
    timeout_seconds = models.FloatField(null=True)
    lock_key = models.BigIntegerField(null=True)
    expires_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    on_end = models.JSONField(null=True)
    crash_count = models.IntegerField()
    blocked_on = models.TextField(null=True)
    unique_key = models.TextField(null=True)
    options = models.JSONField(null=True)
    progress = models.JSONField(null=True)
    errors = models.JSONField(null=True)

    class Meta(ReadOnlyModel.Meta):
        db_table = "scheduled_jobs"
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("cancel_job", "Can cancel jobs"),
            ("retry_job", "Can run finished jobs again"),
            ("run_job", "Can run pending jobs now"),
        ]


class Result(ReadOnlyModel):
    """The end and the value of a job that keeps its result."""

    job_id = models.TextField(primary_key=True)
    status = models.TextField(choices=Job.STATUSES)
    value = models.JSONField(null=True)
    no_value_reason = models.TextField(null=True)
    error = models.JSONField(null=True)
    attempts = models.IntegerField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta(ReadOnlyModel.Meta):
        db_table = "scheduler_results"


class Schedule(ReadOnlyModel):
    """A schedule, declared in code or added by a call."""

    schedule_id = models.TextField(primary_key=True)
    owner = models.TextField(choices=[("code", "code"), ("api", "api")])
    task = models.TextField()
    job_name = models.TextField(null=True)
    derived_key = models.BooleanField()
    enabled_in_code = models.BooleanField()
    use_advisory_lock = models.BooleanField()
    trigger = models.JSONField()
    kinds = TextArrayField()
    described = models.TextField()
    task_data = models.JSONField()
    options = models.JSONField()
    metadata = models.JSONField()
    start_at = models.DateTimeField(null=True)
    end_at = models.DateTimeField(null=True)
    max_runs = models.BigIntegerField(null=True)
    jitter_seconds = models.FloatField()
    overlap = models.TextField()
    catch_up = models.TextField()
    catch_up_limit = models.IntegerField(null=True)
    catch_up_seconds = models.FloatField(null=True)
    pause_after_failures = models.IntegerField(null=True)
    anchor = models.DateTimeField()
    next_fire_at = models.DateTimeField(null=True)
    resume_from = models.DateTimeField(null=True)
    last_fire_at = models.DateTimeField(null=True)
    last_job_id = models.TextField(null=True)
    paused_at = models.DateTimeField(null=True)
    paused_until = models.DateTimeField(null=True)
    keeps_fire_times = models.BooleanField()
    note = models.TextField(null=True)
    is_broken = models.BooleanField()
    runs = models.BigIntegerField()
    skipped = models.BigIntegerField()
    missed = models.BigIntegerField()
    failures = models.BigIntegerField()
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    version = models.BigIntegerField()
    searched_from = models.DateTimeField(null=True)
    tzdata = models.TextField(null=True)
    module = models.TextField(null=True)
    retired_at = models.DateTimeField(null=True)
    names = TextArrayField(null=True)

    class Meta(ReadOnlyModel.Meta):
        db_table = "scheduler_schedules"
        default_permissions = ("view",)
        permissions: ClassVar = [("run_schedule", "Can run schedules now")]


class Worker(ReadOnlyModel):
    """A worker that runs, or whose death no other worker has noticed yet."""

    worker_id = models.TextField(primary_key=True)
    hostname = models.TextField()
    pid = models.IntegerField()
    version = models.TextField()
    max_concurrent_jobs = models.IntegerField()
    running_jobs = models.IntegerField()
    started_at = models.DateTimeField()
    last_beat = models.DateTimeField()
    lease_until = models.DateTimeField()
    liveness_key = models.BigIntegerField(null=True)
    lease_extension = models.FloatField(null=True)
    stopping = models.BooleanField()
    role = models.TextField()
    identity = models.TextField(null=True)
    metadata = models.JSONField(null=True)
    subscriptions = TextArrayField(null=True)
    names = TextArrayField(null=True)
    state = models.TextField(null=True)
    health = models.JSONField(null=True)
    settings = models.JSONField(null=True)
    wanted = models.TextField(null=True)
    statistics_batch = models.BigIntegerField()

    class Meta(ReadOnlyModel.Meta):
        db_table = "scheduler_workers"
        default_permissions = ("view",)


# -- keys of the tables that only ``flush`` needs -------------------------------------------------------

_KEYS: Final = {
    "AuditRecord": ("scheduler_audit", "id"),
    "Deadline": ("scheduler_deadlines", "entry_id"),
    "Database": ("scheduler_database", "id"),
    "BulkRun": ("scheduler_bulk_runs", "run_id"),
    "Dependency": ("scheduler_after", "parent_id", "child_id"),
    "ErrorCount": ("scheduler_error_counts", "fingerprint", "span", "bucket"),
    "ErrorGroup": ("scheduler_error_groups", "fingerprint"),
    "Failure": ("scheduler_failures", "failure_id"),
    "PausedTask": ("scheduler_tasks", "name"),
    "SequenceHead": ("scheduler_sequences", "key"),
    "Start": ("scheduler_starts", "key", "job_id", "attempt"),
    "Statistics": ("scheduler_stats", "span", "bucket", "job_name"),
    "Step": ("scheduler_steps", "job_id", "name"),
    "StreamItem": ("scheduler_streams", "job_id", "definition", "name", "number"),
    "Total": ("scheduler_totals", "job_name"),
    "VacuumDay": ("vacuum_stats", "stat_date"),
    "VacuumPass": ("scheduler_vacuum_passes", "policies"),
    "VacuumRange": ("scheduler_vacuum_ranges", "first_block"),
}
_FIELDS: Final = {
    "bigint": models.BigIntegerField,
    "date": models.DateField,
    "integer": models.IntegerField,
    "text": models.TextField,
    "timestamp with time zone": models.DateTimeField,
    "uuid": models.UUIDField,
}


def _key_model(name: str, table: str, *keys: str) -> type[ReadOnlyModel]:
    """Return a model class of this name for a table, which has only the columns of the primary key."""
    field_classes = {
        column.name: _FIELDS[column.type] for column in table_columns()[table] if column.name in keys
    }
    is_single = len(keys) == 1
    fields: dict[str, Any] = {}
    if not is_single:
        fields["pk"] = models.CompositePrimaryKey(*keys)
    for key in keys:
        fields[key] = field_classes[key](primary_key=is_single)
    meta = type("Meta", (ReadOnlyModel.Meta,), {"db_table": table})
    # Django finds the application of a model by its module.
    return type(name, (ReadOnlyModel,), {"__module__": __name__, "Meta": meta, **fields})


globals().update({name: _key_model(name, *key) for name, key in _KEYS.items()})
"""``manage.py shell`` imports the models by their names."""
