"""The test kit in test cases of Django."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT
from tests.support.transactions import django_address

pytestmark = pytest.mark.slow

SETTINGS = """
DATABASES = {{"default": {{
    "ENGINE": "django.db.backends.postgresql", **{address}, "TEST": {{"TEMPLATE": {template!r}}}
}}}}
INSTALLED_APPS = ["shop"]
SECRET_KEY = "test"
"""

MODELS = """
from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)
    invoiced_by = models.CharField(max_length=200, default="")
"""

JOBS = """
import threading

from django.db import transaction

from pg_scheduler import current_job, job
from pg_scheduler.sync import SyncScheduler, current_scheduler
from shop.models import Order

jobs = SyncScheduler()


@job(name="shop.send_invoice", max_retries=3)
def send_invoice(number):
    with transaction.atomic():
        Order.objects.filter(number=number).update(invoiced_by=threading.current_thread().name)
        current_scheduler().enqueue(archive, args=(number,))


@job(name="shop.archive")
async def archive(number):
    order = await Order.objects.aget(number=number)
    order.invoiced_by += " and archived"
    await order.asave()


@job(name="shop.duplicate")
def duplicate(number):
    Order.objects.create(number=number)


def place_order(number):
    with transaction.atomic():
        Order.objects.create(number=number)
        jobs.enqueue(send_invoice, args=(number,), job_id=f"invoice:{number}", connection="default")
"""

TESTS = r"""
import threading

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, connections, transaction
from django.test import TestCase, TransactionTestCase

from pg_scheduler import JobConflictError
from pg_scheduler.testing import DrainResult, TestKit
from shop.jobs import archive, duplicate, jobs, place_order, send_invoice
from shop.models import Order


class Checks:
    def setUp(self):
        self.kit = TestKit("default", scheduler=jobs)

    def test_jobs_are_seen_and_run(self):
        with self.kit.scheduling() as scheduled:
            place_order(7)
        self.assertEqual([job.job_name for job in scheduled], ["shop.send_invoice"])
        self.kit.assert_scheduled(send_invoice, args=(7,))
        self.assertEqual(self.kit.run_due(), DrainResult(completed=1))
        self.kit.assert_scheduled(archive, args=(7,))
        self.assertEqual(self.kit.drain(), DrainResult(completed=1))
        order = Order.objects.get(number=7)
        self.assertEqual(order.invoiced_by, threading.current_thread().name + " and archived")

    def test_same_id_does_not_wait(self):
        place_order(7)
        with self.assertRaises(JobConflictError):
            self.kit.scheduler.enqueue(send_invoice, args=(7,), job_id="invoice:7")
        with self.assertRaises(JobConflictError), transaction.atomic():
            jobs.enqueue(send_invoice, args=(7,), job_id="invoice:7", connection=connection)
        self.assertEqual(self.kit.drain().completed, 2)

    def test_error_leaves_the_transaction_usable(self):
        place_order(7)
        self.kit.scheduler.enqueue(duplicate, args=(7,), priority=self.first())
        with self.assertRaises(IntegrityError):
            self.kit.drain()
        self.assertEqual(self.kit.drain().completed, 2)
        self.assertEqual(Order.objects.count(), 1)

    def test_rollback_leaves_nothing(self):
        self.assertEqual(self.kit.scheduled(), [])
        self.assertEqual(Order.objects.count(), 0)
        with self.assertRaises(ValueError), transaction.atomic():
            place_order(7)
            raise ValueError
        self.kit.assert_not_scheduled(send_invoice)

    @staticmethod
    def first():
        from pg_scheduler import JobPriority

        return JobPriority.CRITICAL


class InTransaction(Checks, TestCase):
    async def test_async_test_calls_the_kit_in_its_thread(self):
        await sync_to_async(place_order)(7)
        remedy = r"make the kit in setUp\(\).* await sync_to_async\(kit.drain\)"
        methods = (self.kit.drain, self.kit.run_due, self.kit.scheduled, self.kit.assert_not_scheduled)
        for method in (lambda: TestKit("default"), *methods, lambda: self.kit.run(archive, 7)):
            with self.assertRaisesRegex(RuntimeError, remedy):
                method()
        with self.assertRaisesRegex(RuntimeError, remedy), self.kit.scheduling():
            pass
        await sync_to_async(self.kit.assert_scheduled)(send_invoice, args=(7,))
        self.assertEqual((await sync_to_async(self.kit.drain)()).completed, 2)
        order = await Order.objects.aget(number=7)
        self.assertIn("archived", order.invoiced_by)


class InAutocommit(Checks, TransactionTestCase):
    def tearDown(self):
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE scheduled_jobs")
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_kit_works_in_test_cases_of_django(dsn: str, tmp_path: Path, seed: int) -> None:
    pytest.importorskip("django")
    address = django_address(dsn)
    shop = tmp_path / "shop"
    shop.mkdir()
    for name, content in {"__init__": "", "models": MODELS, "jobs": JOBS, "tests": TESTS}.items():
        (shop / f"{name}.py").write_text(content, encoding="utf-8")
    (tmp_path / "settings.py").write_text(
        SETTINGS.format(address=address, template=address["NAME"]), encoding="utf-8"
    )
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
    }
    environment.pop("DJANGO_ALLOW_ASYNC_UNSAFE", None)
    command = (sys.executable, "-W", "error", "-m", "django", "test", f"--shuffle={seed}", "shop")
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 9 tests" in done.stderr
