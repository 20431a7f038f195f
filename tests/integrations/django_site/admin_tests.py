"""Tests of the pages of the admin, for Django's test runner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from django.contrib.admin import site
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from pg_scheduler.base.status import JobStatus
from pg_scheduler.integrations.django.models import Job
from pg_scheduler.integrations.django.paginator import EstimatingPaginator
from pg_scheduler.triggers import Every
from tests.integrations.django_site.shop import (
    ALIAS,
    LATER,
    enqueue,
    execute,
    greet,
    scheduler,
    status_of,
)

LISTS = ("job", "schedule", "worker")


def url_of(model: str, page: str = "") -> str:
    return f"/admin/pg_scheduler/{model}/{page}"


def set_status(job_id: str) -> None:
    """End or start a job without a worker; its id is the status."""
    execute(
        "UPDATE scheduled_jobs SET status = job_id, attempt = 1, worker_id = 'w', "
        "finished_at = CASE WHEN job_id <> 'running' THEN now() END, "
        "error_message = CASE WHEN job_id NOT IN ('running', 'completed') THEN 'no' END WHERE job_id = %s",
        job_id,
    )


class AdminTest(TestCase):
    def login(self, *permissions: str) -> User:
        user = User.objects.create_user("ada", password="secret", is_staff=True)
        codenames = ["view_job", "view_schedule", "view_worker", *permissions]
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        self.client.force_login(user)
        return user

    @contextmanager
    def statements(self) -> Iterator[list[str]]:
        texts: list[str] = []
        with CaptureQueriesContext(connection) as captured:
            yield texts
        texts += [query["sql"] for query in captured.captured_queries]

    def rows_read(self, statement: str) -> int:
        """Return how many rows the nodes of the plan of a statement read."""
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
            found: Any = cursor.fetchone()[0]
        plans = [(json.loads(found) if isinstance(found, str) else found)[0]["Plan"]]
        read = 0
        while plans:
            plan = plans.pop()
            plans += plan.get("Plans", [])
            read += plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        return int(read)

    def ids(self, path: str) -> list[str]:
        response = self.client.get(path)
        self.assertEqual(response.status_code, 200)
        return [row.pk for row in response.context["cl"].result_list]


class PageTest(AdminTest):
    def test_no_page_counts_rows_or_reads_large_values_in_lists(self) -> None:
        self.login("cancel_job", "retry_job", "run_job", "run_schedule")
        execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, execution_time) "
            "SELECT 'job ' || lpad(n::text, 4, '0'), 'shop.greet', now() FROM generate_series(1, 450) AS n"
        )
        queries = ("", "?p=2", "?p=5", "?p=x", "?p=-1", "?all=", "?q=job+0001", "?_facets=True", "?o=1")
        paths = [url_of(model, query) for model in LISTS for query in queries]
        paths += [
            url_of("job", "?status=pending&job_name=shop.greet"),
            url_of("schedule", "?owner__exact=api"),
        ]
        paths += [
            "/admin/",
            "/admin/pg_scheduler/",
            url_of("job", "job%200001/change/"),
            url_of("job", "job%200001/history/"),
        ]
        for path in paths:
            with self.subTest(path), self.statements() as texts:
                self.assertEqual(self.client.get(path, follow=True).status_code, 200)
            self.assertTrue(texts, path)
            for text in texts:
                self.assertNotRegex(text, r"(?i)count\(", path)
                self.assertNotRegex(text, "(?i)DISTINCT", path)
                if "job%" not in path:
                    self.assertNotIn("task_data", text, path)

    def test_pages_show_all_jobs_once_the_newest_first(self) -> None:
        self.login()
        execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, execution_time) "
            "SELECT 'job ' || lpad(n::text, 4, '0'), 'shop.greet', now() FROM generate_series(1, 250) AS n"
        )
        pages = [self.ids(url_of("job", f"?p={number}")) for number in (1, 2, 3)]
        self.assertEqual([len(page) for page in pages], [100, 100, 50])
        self.assertEqual(pages[0], self.ids(url_of("job", "?o=2")))
        self.assertEqual(
            [*pages[0], *pages[1], *pages[2]], [f"job {number:04}" for number in range(250, 0, -1)]
        )
        last = self.client.get(url_of("job", "?p=3")).context["cl"]
        self.assertEqual((last.result_count, last.paginator.num_pages), (250, 3))
        behind = self.client.get(url_of("job", "?p=9"))
        self.assertRedirects(behind, url_of("job", "?e=1"))
        self.assertEqual(len(self.ids(url_of("job", "?all="))), 100)

    def test_number_of_rows_is_estimated_by_the_planner(self) -> None:
        self.login()
        execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, execution_time) "
            "SELECT 'job ' || n, 'shop.greet', now() FROM generate_series(1, 5000) AS n"
        )
        execute("ANALYZE scheduled_jobs")
        found = self.client.get(url_of("job")).context["cl"]
        self.assertEqual((found.result_count, found.paginator.num_pages), (5000, 50))
        self.assertEqual(len(found.result_list), 100)

    def test_number_of_pages_is_bounded(self) -> None:
        paginator = EstimatingPaginator(Job.objects.order_by("pk"), 100)
        paginator.__dict__["count"] = 10_000_000
        self.assertEqual(paginator.num_pages, 1000)

    def test_search_finds_an_exact_id(self) -> None:
        self.login()
        for job_id in ("one two", "one", "One"):
            enqueue(job_id)
        self.assertEqual(self.ids(url_of("job", "?q=one")), ["one"])
        self.assertEqual(self.ids(url_of("job", "?q=one+two")), ["one two"])
        self.assertEqual(self.ids(url_of("job", "?q=on")), [])
        with self.statements() as texts:
            self.ids(url_of("job", "?q=one"))
        self.assertFalse([text for text in texts if "UPPER" in text or "LIKE" in text])

    def test_filters_have_the_registered_names_and_those_of_workers(self) -> None:
        self.login()
        enqueue("one")
        scheduler.schedule_job("elsewhere.work", datetime.now(UTC), {}, job_id="two", connection=ALIAS)
        execute(
            "INSERT INTO scheduler_workers (worker_id, hostname, pid, version, max_concurrent_jobs, "
            "started_at, last_beat, lease_until, names) VALUES ('w', 'h', 1, '1', 1, now(), now(), now(), "
            "'{elsewhere.work}'), ('v', 'h', 1, '1', 1, now(), now(), now(), NULL)"
        )
        page = self.client.get(url_of("job")).content.decode()
        for name in ("elsewhere.work", "shop.greet"):
            self.assertIn(f"?job_name={name}", page)
        self.assertEqual(self.ids(url_of("job", "?job_name=elsewhere.work")), ["two"])
        # A periodic job has the name of its schedule beside that of its function.
        execute("UPDATE scheduled_jobs SET job_name = 'periodic_greet', function = 'shop.greet'")
        self.assertEqual(self.ids(url_of("job", "?job_name=shop.greet")), ["two", "one"])
        self.assertNotContains(self.client.get(url_of("job")), "periodic_greet")
        self.assertEqual(self.ids(url_of("job", "?job_name=periodic_greet")), [])
        self.assertEqual(self.ids(url_of("job", "?status=running")), [])
        self.assertEqual(self.ids(url_of("worker")), ["v", "w"])

    def test_filter_of_a_status_finds_all_of_its_jobs(self) -> None:
        self.login()
        enqueue("pending")
        for job_id in ("completed", "failed", "cancelled", "expired", "running"):
            enqueue(job_id)
            set_status(job_id)
        with transaction.atomic():
            scheduler.enqueue(greet, job_id="blocked", after=["pending"], connection=ALIAS)
        for status in JobStatus:
            expected = ["pending", "blocked"] if status is JobStatus.PENDING else [status.value]
            self.assertEqual(self.ids(url_of("job", f"?status={status}")), expected)
        self.assertEqual(len(self.ids(url_of("job"))), 7)

    def test_filters_of_rare_statuses_read_an_index_of_few_jobs(self) -> None:
        self.login()
        execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, attempt, finished_at) "
            "SELECT 'job ' || n, 'x', now(), 'completed', 1, now() FROM generate_series(1, 20000) AS n"
        )
        execute("ANALYZE scheduled_jobs")
        for status in ("pending", "running", "failed", "cancelled", "expired"):
            rows = self.client.get(url_of("job", f"?status={status}")).context["cl"].queryset
            plan = rows.order_by("-pk")[:101].explain()
            self.assertRegex(plan, "scheduled_jobs_(claim|blocked|unsuccessful)", status)
            self.assertNotRegex(plan, "scheduled_jobs_pkey|Seq Scan", status)

    def test_page_of_unsuccessful_jobs_reads_about_as_many_rows_as_it_shows(self) -> None:
        self.login()
        execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, attempt, finished_at, "
            "error_message) SELECT 'job ' || n, 'x', now(), "
            "CASE mod(n, 4) WHEN 1 THEN 'cancelled' ELSE 'failed' END, 1, now() + n * interval '1 s', 'no' "
            "FROM generate_series(1, 20000) AS n"
        )
        execute("ANALYZE scheduled_jobs")
        with self.statements() as texts:
            found = self.ids(url_of("job", "?status=cancelled"))
        self.assertEqual(found[:2], ["job 19997", "job 19993"])  # the last to end, not the greatest id
        (text,) = [each for each in texts if each.endswith("LIMIT 101") and "cancelled" in each]
        self.assertLess(self.rows_read(text), 1000)

    def test_filter_that_reads_too_many_rows_is_stopped(self) -> None:
        self.login("cancel_job")
        enqueue("one")
        execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, attempt, finished_at) "
            "SELECT 'job ' || n, 'x', now(), 'completed', 1, now() FROM generate_series(1, 200000) AS n"
        )
        query = "?job_name=shop.greet&status=completed"
        with patch.object(site.get_model_admin(Job), "time_limit", "1ms"):
            page = self.client.get(url_of("job", f"{query}&p=3"))
            data = {"action": "cancel", "_selected_action": ["one"], "select_across": "1", "index": "0"}
            action = self.client.post(url_of("job", query), data, follow=True)
        self.assertContains(page, "These filters were stopped")
        self.assertEqual(([*page.context["cl"].result_list], page.context["cl"].result_count), ([], 0))
        self.assertContains(action, "These filters were stopped")
        self.assertEqual(status_of("one"), "pending")
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            self.assertEqual(cursor.fetchone(), ("0",))

    def test_job_is_shown_whole_and_cannot_be_edited(self) -> None:
        self.login("cancel_job")
        enqueue("mail:7/a b", args=("Ada",))
        path = self.client.get(url_of("job")).context["cl"].url_for_result(Job.objects.get())
        page = self.client.get(path)
        self.assertContains(page, "Ada")
        self.assertNotContains(page, 'name="_save"')
        self.assertEqual(self.client.post(path, {"status": "failed"}).status_code, 403)
        self.assertEqual(self.client.get(url_of("job", "add/")).status_code, 403)
        self.assertEqual(self.client.post(path.replace("change", "delete")).status_code, 403)
        self.assertEqual(status_of("mail:7/a b"), "pending")


# -- actions -----------------------------------------------------------------------------------------------


class ActionTest(AdminTest):
    def act(self, model: str, action: str, *ids: str, across: bool = False) -> list[str]:
        """Choose an action for some rows; return the messages that are shown."""
        data = {"action": action, "_selected_action": ids, "select_across": str(int(across)), "index": "0"}
        response = self.client.post(url_of(model), data, follow=True)
        self.assertEqual(response.status_code, 200)
        return [str(message) for message in response.context["messages"]]

    def test_actions_change_the_jobs_whose_status_allows_it(self) -> None:
        user = self.login("cancel_job", "retry_job", "run_job")
        enqueue("now", delay=LATER)
        enqueue("never", delay=LATER)
        ids = ("now", "never")
        self.assertEqual(self.act("job", "run", "now"), ["Made due: 1 of 1."])
        self.assertLess(Job.objects.get(pk="now").execution_time, datetime.now(UTC) + LATER / 2)
        self.assertGreater(Job.objects.get(pk="never").execution_time, datetime.now(UTC) + LATER / 2)
        self.assertEqual(self.act("job", "cancel", *ids), ["Cancelled: 2 of 2."])
        self.assertEqual({status_of(each) for each in ids}, {"cancelled"})
        self.assertIn("cancelled by ada", Job.objects.get(pk="now").error_message)
        (text,) = self.act("job", "cancel", *ids)
        self.assertRegex(text, r"^Cancelled: 0 of 2\. The others are in no status that allows it")
        self.assertEqual(self.act("job", "retry", "never"), ["Retried: 1 of 1."])
        (text,) = self.act("job", "run", *ids)
        self.assertRegex(text, r"^Made due: 1 of 2\. ")
        self.assertEqual((status_of("now"), status_of("never")), ("cancelled", "pending"))
        logged = LogEntry.objects.filter(user=user, object_id="never").order_by("pk")
        self.assertEqual(
            [entry.get_change_message() for entry in logged], ["Cancelled", "Retried", "Made due"]
        )
        self.assertContains(self.client.get(url_of("job", "never/history/")), "Retried")

    def test_action_requires_its_own_permission(self) -> None:
        self.login("retry_job")
        enqueue("one")
        self.assertEqual(self.act("job", "cancel", "one"), ["No action selected."])
        self.assertEqual(self.act("job", "run", "one"), ["No action selected."])
        self.assertEqual(status_of("one"), "pending")
        page = self.client.get(url_of("job"))
        offered = [name for name, _ in page.context["action_form"].fields["action"].choices if name]
        self.assertEqual(offered, ["retry"])

    def test_viewer_has_no_actions(self) -> None:
        self.login()
        enqueue("one")
        for model, action in (("job", "cancel"), ("job", "retry"), ("job", "run"), ("schedule", "run")):
            self.act(model, action, "one")
        self.assertEqual(status_of("one"), "pending")

    def test_conflict_of_one_job_leaves_the_others_changed(self) -> None:
        self.login("retry_job")
        for job_id in ("a", "c"):
            enqueue(job_id)
            scheduler.cancel_job(job_id, connection=ALIAS)
        enqueue("b", unique="key")
        scheduler.cancel_job("b", connection=ALIAS)
        enqueue("holder", unique="key")
        (text,) = self.act("job", "retry", "a", "b", "c")
        self.assertRegex(text, r"^Retried: 2 of 3\..*'holder'")
        self.assertEqual([status_of(each) for each in "abc"], ["pending", "cancelled", "pending"])

    def test_action_on_more_rows_than_one_request_changes_is_rejected(self) -> None:
        self.login("cancel_job")
        execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, execution_time) "
            "SELECT 'job ' || n, 'shop.greet', now() FROM generate_series(1, 1001) AS n"
        )
        (text,) = self.act("job", "cancel", "job 1", across=True)
        self.assertRegex(text, "^Select at most 1000 rows")
        self.assertFalse(Job.objects.exclude(status="pending").exists())

    def test_schedule_runs_now(self) -> None:
        self.login("run_schedule")
        scheduler.schedules.add(greet, Every(hours=1), schedule_id="hourly", connection=ALIAS)
        self.assertEqual(self.act("schedule", "run", "hourly"), ["Enqueued: 1 of 1."])
        found = Job.objects.get()
        self.assertEqual((found.job_name, found.options["schedule_id"]), ("shop.greet", "hourly"))
        with connection.cursor() as cursor:
            cursor.execute("SELECT actor, via FROM scheduler_audit WHERE action = 'trigger_schedule'")
            self.assertEqual(cursor.fetchall(), [("ada", "admin")])

    def test_schedule_whose_task_needs_the_code_gets_no_job_and_the_page_states_why(self) -> None:
        self.login("run_schedule")
        execute(
            "INSERT INTO scheduler_workers (worker_id, hostname, pid, version, max_concurrent_jobs, "
            "started_at, last_beat, lease_until, settings) "
            "VALUES ('w', 'h', 1, '1', 1, now(), now(), now() + interval '1 hour', %s::jsonb)",
            json.dumps({"options": {"elsewhere.work": {"code": ["unique"]}}}),
        )
        for name in ("elsewhere.work", "shop.greet"):
            scheduler.schedules.add(name, Every(hours=1), schedule_id=name, connection=ALIAS)
        (text,) = self.act("schedule", "run", "elsewhere.work", "shop.greet")
        self.assertRegex(text, r"^Enqueued: 1 of 2\..*'elsewhere.work' has unique, which only its code can ")
        self.assertEqual([job.job_name for job in Job.objects.all()], ["shop.greet"])

    def test_action_notifies_workers_by_its_commit(self) -> None:
        self.login("run_job")
        enqueue("one", delay=LATER)
        with self.statements() as texts:
            self.act("job", "run", "one")
        self.assertTrue([text for text in texts if "pg_notify" in text])
