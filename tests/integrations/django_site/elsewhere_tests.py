"""Tests of the admin of a project whose jobs are in another database than its users."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.models import User
from django.test import TestCase

from pg_scheduler.integrations.django.models import Job
from pg_scheduler.sync import SyncScheduler
from tests.integrations.django_site.shop import LATER, greet


class ElsewhereTest(TestCase):
    databases: ClassVar[Any] = {"default", "jobs"}

    def setUp(self) -> None:
        self.client.force_login(User.objects.create_superuser("ada"))
        SyncScheduler().enqueue(greet, delay=LATER, job_id="one", connection="jobs")

    def test_pages_show_the_rows_of_the_database_of_the_backend(self) -> None:
        for page in ("job/", "job/one/change/", "schedule/", "worker/"):
            response = self.client.get(f"/admin/pg_scheduler/{page}")
            self.assertEqual(response.status_code, 200, page)
            if page.startswith("job"):
                self.assertContains(response, "shop.greet")

    def test_action_changes_rows_of_the_database_of_the_backend(self) -> None:
        data = {"action": "cancel", "_selected_action": "one", "index": 0}
        response = self.client.post("/admin/pg_scheduler/job/", data, follow=True)
        self.assertContains(response, "Cancelled: 1 of 1.")
        self.assertEqual(Job.objects.using("jobs").get(pk="one").status, "cancelled")
