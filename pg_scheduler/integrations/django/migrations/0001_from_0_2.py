"""Create the tables, or upgrade those of pg-scheduler 0.2."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations import CreateModel, SeparateDatabaseAndState

from pg_scheduler.integrations.django.models import TextArrayField
from pg_scheduler.integrations.django.operations import MigrateTables


class Migration(migrations.Migration):
    """The tables of the first release."""

    initial = True
    operations: ClassVar = [
        SeparateDatabaseAndState(
            database_operations=[MigrateTables(1)],
            state_operations=[
                CreateModel(
                    name="AuditRecord",
                    fields=[
                        ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                    ],
                    options={
                        "db_table": "scheduler_audit",
                        "default_permissions": (),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="BulkRun",
                    fields=[
                        ("run_id", models.TextField(primary_key=True, serialize=False)),
                    ],
                    options={
                        "db_table": "scheduler_bulk_runs",
                        "default_permissions": (),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="Dependency",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "parent_id",
                                "child_id",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("parent_id", models.TextField()),
                        ("child_id", models.TextField()),
                    ],
                    options={
                        "db_table": "scheduler_after",
                        "default_permissions": (),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="Job",
                    fields=[
                        ("job_id", models.TextField(primary_key=True, serialize=False)),
                        ("job_name", models.TextField()),
                        ("execution_time", models.DateTimeField()),
                        (
                            "status",
                            models.TextField(
                                choices=[
                                    ("pending", "pending"),
                                    ("running", "running"),
                                    ("completed", "completed"),
                                    ("failed", "failed"),
                                    ("cancelled", "cancelled"),
                                    ("expired", "expired"),
                                ]
                            ),
                        ),
                        ("task_data", models.JSONField()),
                        ("created_at", models.DateTimeField()),
                        ("last_heartbeat", models.DateTimeField(null=True)),
                        ("lease_until", models.DateTimeField(null=True)),
                        (
                            "priority",
                            models.IntegerField(
                                choices=[(1, "critical"), (3, "high"), (5, "normal"), (8, "low")]
                            ),
                        ),
                        ("retry_count", models.IntegerField()),
                        ("max_retries", models.IntegerField()),
                        ("worker_id", models.TextField(null=True)),
                        ("error_message", models.TextField(null=True)),
                        ("misfire_grace_time", models.IntegerField(null=True)),
                        ("function", models.TextField(null=True)),
                        ("attempt", models.IntegerField()),
                        ("timeout_seconds", models.FloatField(null=True)),
                        ("lock_key", models.BigIntegerField(null=True)),
                        ("expires_at", models.DateTimeField(null=True)),
                        ("started_at", models.DateTimeField(null=True)),
                        ("finished_at", models.DateTimeField(null=True)),
                        ("on_end", models.JSONField(null=True)),
                        ("crash_count", models.IntegerField()),
                        ("blocked_on", models.TextField(null=True)),
                        ("unique_key", models.TextField(null=True)),
                        ("options", models.JSONField(null=True)),
                        ("progress", models.JSONField(null=True)),
                        ("errors", models.JSONField(null=True)),
                    ],
                    options={
                        "db_table": "scheduled_jobs",
                        "permissions": [
                            ("cancel_job", "Can cancel jobs"),
                            ("retry_job", "Can run finished jobs again"),
                            ("run_job", "Can run pending jobs now"),
                        ],
                        "default_permissions": ("view",),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="PausedTask",
                    fields=[
                        ("name", models.TextField(primary_key=True, serialize=False)),
                    ],
                    options={
                        "db_table": "scheduler_tasks",
                        "default_permissions": (),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="Result",
                    fields=[
                        ("job_id", models.TextField(primary_key=True, serialize=False)),
                        (
                            "status",
                            models.TextField(
                                choices=[
                                    ("pending", "pending"),
                                    ("running", "running"),
                                    ("completed", "completed"),
                                    ("failed", "failed"),
                                    ("cancelled", "cancelled"),
                                    ("expired", "expired"),
                                ]
                            ),
                        ),
                        ("value", models.JSONField(null=True)),
                        ("no_value_reason", models.TextField(null=True)),
                        ("error", models.JSONField(null=True)),
                        ("attempts", models.IntegerField()),
                        ("started_at", models.DateTimeField(null=True)),
                        ("finished_at", models.DateTimeField()),
                        ("expires_at", models.DateTimeField()),
                    ],
                    options={
                        "db_table": "scheduler_results",
                        "default_permissions": (),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="Schedule",
                    fields=[
                        ("schedule_id", models.TextField(primary_key=True, serialize=False)),
                        ("owner", models.TextField(choices=[("code", "code"), ("api", "api")])),
                        ("task", models.TextField()),
                        ("job_name", models.TextField(null=True)),
                        ("derived_key", models.BooleanField()),
                        ("enabled_in_code", models.BooleanField()),
                        ("use_advisory_lock", models.BooleanField()),
                        ("trigger", models.JSONField()),
                        ("kinds", TextArrayField()),
                        ("described", models.TextField()),
                        ("task_data", models.JSONField()),
                        ("options", models.JSONField()),
                        ("metadata", models.JSONField()),
                        ("start_at", models.DateTimeField(null=True)),
                        ("end_at", models.DateTimeField(null=True)),
                        ("max_runs", models.BigIntegerField(null=True)),
                        ("jitter_seconds", models.FloatField()),
                        ("overlap", models.TextField()),
                        ("catch_up", models.TextField()),
                        ("catch_up_limit", models.IntegerField(null=True)),
                        ("catch_up_seconds", models.FloatField(null=True)),
                        ("pause_after_failures", models.IntegerField(null=True)),
                        ("anchor", models.DateTimeField()),
                        ("next_fire_at", models.DateTimeField(null=True)),
                        ("resume_from", models.DateTimeField(null=True)),
                        ("last_fire_at", models.DateTimeField(null=True)),
                        ("last_job_id", models.TextField(null=True)),
                        ("paused_at", models.DateTimeField(null=True)),
                        ("paused_until", models.DateTimeField(null=True)),
                        ("keeps_fire_times", models.BooleanField()),
                        ("note", models.TextField(null=True)),
                        ("is_broken", models.BooleanField()),
                        ("runs", models.BigIntegerField()),
                        ("skipped", models.BigIntegerField()),
                        ("missed", models.BigIntegerField()),
                        ("failures", models.BigIntegerField()),
                        ("created_at", models.DateTimeField()),
                        ("updated_at", models.DateTimeField()),
                        ("finished_at", models.DateTimeField(null=True)),
                        ("version", models.BigIntegerField()),
                    ],
                    options={
                        "db_table": "scheduler_schedules",
                        "permissions": [("run_schedule", "Can run schedules now")],
                        "default_permissions": ("view",),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="Start",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "key",
                                "job_id",
                                "attempt",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("key", models.TextField()),
                        ("job_id", models.TextField()),
                        ("attempt", models.IntegerField()),
                    ],
                    options={
                        "db_table": "scheduler_starts",
                        "default_permissions": (),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="Statistics",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "span",
                                "bucket",
                                "job_name",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("span", models.IntegerField()),
                        ("bucket", models.DateTimeField()),
                        ("job_name", models.TextField()),
                    ],
                    options={
                        "db_table": "scheduler_stats",
                        "default_permissions": (),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="Total",
                    fields=[
                        ("job_name", models.TextField(primary_key=True, serialize=False)),
                    ],
                    options={
                        "db_table": "scheduler_totals",
                        "default_permissions": (),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="VacuumDay",
                    fields=[
                        ("stat_date", models.DateField(primary_key=True, serialize=False)),
                    ],
                    options={
                        "db_table": "vacuum_stats",
                        "default_permissions": (),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="VacuumPass",
                    fields=[
                        ("policies", models.TextField(primary_key=True, serialize=False)),
                    ],
                    options={
                        "db_table": "scheduler_vacuum_passes",
                        "default_permissions": (),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="VacuumRange",
                    fields=[
                        ("first_block", models.BigIntegerField(primary_key=True, serialize=False)),
                    ],
                    options={
                        "db_table": "scheduler_vacuum_ranges",
                        "default_permissions": (),
                        "base_manager_name": "objects",
                    },
                ),
                CreateModel(
                    name="Worker",
                    fields=[
                        ("worker_id", models.TextField(primary_key=True, serialize=False)),
                        ("hostname", models.TextField()),
                        ("pid", models.IntegerField()),
                        ("version", models.TextField()),
                        ("max_concurrent_jobs", models.IntegerField()),
                        ("running_jobs", models.IntegerField()),
                        ("started_at", models.DateTimeField()),
                        ("last_beat", models.DateTimeField()),
                        ("lease_until", models.DateTimeField()),
                        ("liveness_key", models.BigIntegerField(null=True)),
                        ("lease_extension", models.FloatField(null=True)),
                        ("stopping", models.BooleanField()),
                        ("role", models.TextField()),
                        ("identity", models.TextField(null=True)),
                        ("metadata", models.JSONField(null=True)),
                        ("subscriptions", TextArrayField(null=True)),
                        ("names", TextArrayField(null=True)),
                        ("state", models.TextField(null=True)),
                        ("health", models.JSONField(null=True)),
                        ("settings", models.JSONField(null=True)),
                        ("wanted", models.TextField(null=True)),
                        ("statistics_batch", models.BigIntegerField()),
                    ],
                    options={
                        "db_table": "scheduler_workers",
                        "default_permissions": ("view",),
                        "base_manager_name": "objects",
                    },
                ),
            ],
        )
    ]
