"""The tasks of the shop."""

import sys

from orders.models import Order

if sys.version_info >= (3, 12):  # Django 6
    from django.tasks import task
else:  # Django 5.2
    from django_tasks import task

from pg_scheduler import periodic


@task
def send_invoice(number: int) -> None:
    """Send the invoice of an order."""
    Order.objects.filter(number=number).update(invoice=f"{number}.pdf")


@periodic(cron="0 7 * * MON", timezone="Europe/Berlin", dedup_key="report")  # glue: a task at regular times
@task
def report() -> None:
    """Print how many orders there are."""
    print(Order.objects.count(), "orders", flush=True)
