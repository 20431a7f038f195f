"""Tests of the models, for Django's test runner."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import NotSupportedError, connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings

from pg_scheduler.integrations.django.models import Job, Result, Schedule, Worker
from pg_scheduler.migrate import TABLES
from pg_scheduler.triggers import Every
from tests.integrations.django_site.shop import ALIAS, LATER, enqueue, greet, scheduler, status_of


class FlushTest(TransactionTestCase):
    """Two tests, each of which begins with empty tables and leaves rows in them."""

    def filled(self) -> set[str]:
        """Return the tables that have rows."""
        with connection.cursor() as cursor:
            found = set()
            for table in TABLES:
                cursor.execute(f"SELECT EXISTS (SELECT FROM {table})")
                if cursor.fetchone() == (True,):
                    found.add(table)
            return found

    def leave_rows(self) -> None:
        self.assertEqual(self.filled(), {"scheduler_migrations"})
        first = enqueue("first", keep_result=LATER)
        enqueue("second", keep_result=LATER)
        with transaction.atomic():
            scheduler.enqueue(greet, after=[first], connection=ALIAS)
            scheduler.cancel_job("second", connection=ALIAS)
            scheduler.schedules.add(greet, Every(hours=1), schedule_id="hourly", connection=ALIAS)
        names = {"after", "audit", "migrations", "results", "schedules"}
        self.assertEqual(self.filled(), {"scheduled_jobs", *(f"scheduler_{name}" for name in names)})

    def test_first(self) -> None:
        self.leave_rows()

    def test_second(self) -> None:
        self.leave_rows()


class ModelTest(TestCase):
    def test_rows_are_read(self) -> None:
        due = datetime(2040, 1, 1, tzinfo=UTC)
        scheduler.schedule(greet, execution_time=due, args=("Ada",), job_id="one", connection=ALIAS)
        scheduler.schedules.add(greet, Every(hours=1), schedule_id="hourly", connection=ALIAS)
        found = Job.objects.get(task_data__args__0="Ada")
        self.assertEqual((str(found), found.execution_time, found.status), ("one", due, "pending"))
        self.assertEqual(found.get_priority_display(), "normal")
        self.assertEqual(Schedule.objects.get(pk="hourly").kinds, ["every"])
        scheduler.cancel_job("one", connection=ALIAS)
        self.assertEqual(Job.objects.values_list("status", flat=True).get(), "cancelled")

    def test_rollback_of_the_previous_test_removed_its_rows(self) -> None:
        self.assertFalse(Job.objects.exists())

    def test_every_way_of_writing_is_rejected_with_the_call_to_use(self) -> None:
        enqueue("one")
        found = Job.objects.get()
        jobs: Any = Job.objects
        ways = [
            found.save,
            found.delete,
            lambda: found.save(update_fields=["status"]),
            lambda: Job(job_id="two").save(force_insert=True),
            lambda: jobs.create(job_id="two"),
            lambda: jobs.get_or_create(job_id="two"),
            lambda: jobs.update_or_create(job_id="two"),
            lambda: jobs.bulk_create([Job(job_id="two")]),
            lambda: jobs.bulk_update([found], ["status"]),
            lambda: jobs.filter(pk="one").update(status="failed"),
            lambda: jobs.all().delete(),
            lambda: Job._base_manager.filter(pk="one").delete(),
            lambda: jobs.all()._raw_delete("default"),
            lambda: Schedule.objects.all().delete(),
            lambda: Worker.objects.update(stopping=True),
            lambda: Result.objects.all().delete(),
        ]
        for write in ways:
            with self.assertRaisesRegex(NotSupportedError, r"is read-only.*call SyncScheduler\(\)\.enqueue"):
                write()
        self.assertEqual(status_of("one"), "pending")

    def test_fixtures_with_jobs_are_rejected(self) -> None:
        enqueue("one")
        with TemporaryDirectory() as folder:
            file = str(Path(folder) / "jobs.json")
            call_command("dumpdata", "pg_scheduler.job", output=file, verbosity=0)
            with self.assertRaisesRegex(NotSupportedError, "Job is read-only.*leave it out of fixtures"):
                call_command("loaddata", file, verbosity=0)

    def test_rows_that_a_serialized_rollback_cannot_restore_can_be_left_out(self) -> None:
        enqueue("one")
        rows = connection.creation.serialize_db_to_string()
        with self.assertRaisesRegex(NotSupportedError, r"TEST_NON_SERIALIZED_APPS = \['pg_scheduler"):
            connection.creation.deserialize_db_from_string(rows)
        with override_settings(TEST_NON_SERIALIZED_APPS=["pg_scheduler.integrations.django"]):
            rows = connection.creation.serialize_db_to_string()
        connection.creation.deserialize_db_from_string(rows)

    def test_permissions_exist_for_what_people_can_do(self) -> None:
        found = Permission.objects.filter(content_type__app_label="pg_scheduler")
        self.assertEqual(
            set(found.values_list("codename", flat=True)),
            {
                "view_job",
                "view_schedule",
                "view_worker",
                "cancel_job",
                "retry_job",
                "run_job",
                "run_schedule",
            },
        )
