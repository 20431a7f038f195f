"""The tests of the shop: tasks run in the transaction of their test."""

from django.db import IntegrityError, transaction
from django.test import TestCase
from orders.models import Order
from orders.tasks import send_invoice

from pg_scheduler.testing import TestKit


class OrderTests(TestCase):
    """Each test is rolled back, with its tasks."""

    def test_order_gets_its_invoice(self) -> None:
        """The task of a request runs in the test."""
        kit = TestKit("default")  # glue: tasks in a test's transaction
        self.assertEqual(self.client.post("/orders/7").status_code, 201)
        self.assertEqual(kit.drain().completed, 1)
        self.assertEqual(Order.objects.get().invoice, "7.pdf")

    def test_transaction_that_fails_leaves_no_task(self) -> None:
        """A transaction is rolled back with the task that it enqueued."""
        Order.objects.create(number=7)
        with self.assertRaises(IntegrityError), transaction.atomic():
            send_invoice.enqueue(7)
            Order.objects.create(number=7)
        self.assertEqual(TestKit("default").drain().completed, 0)

    def test_result_is_that_of_the_task(self) -> None:
        """A task that has not run yet is ready."""
        result = send_invoice.enqueue(7)
        self.assertEqual(send_invoice.get_result(result.id).status, "READY")
