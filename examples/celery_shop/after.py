"""The shop with pg_scheduler. An order and its jobs exist together or not at all."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from pg_scheduler import RetryPolicy, job, periodic
from pg_scheduler.sync import SyncScheduler

__all__ = ["ask_for_review", "cancel_order", "place_order", "report", "send_invoice"]

REVIEW_AFTER = timedelta(days=14)

scheduler = SyncScheduler()  # glue: connect to the queue


@job(name="shop.send_invoice", max_retries=5, retry=RetryPolicy(only=(ConnectionError,)))
def send_invoice(number: int) -> None:
    """Send the invoice of an order."""
    print("invoice", number, flush=True)


@job(name="shop.ask_for_review", misfire_grace_time=None)  # waits for a worker for any time, as in Celery
def ask_for_review(number: int) -> None:
    """Ask the customer for a review."""
    print("review of order", number, flush=True)


@periodic(cron="0 7 * * MON", timezone="Europe/Berlin", dedup_key="report")  # glue: a task at regular times
def report() -> None:
    """Print a report."""
    print("report", flush=True)


def place_order(session: Session, number: int) -> None:
    """Store an order and its jobs, in one transaction."""
    session.execute(text("INSERT INTO orders (number) VALUES (:number)"), {"number": number})
    scheduler.enqueue(send_invoice, args=(number,), connection=session)
    scheduler.enqueue(
        ask_for_review, args=(number,), delay=REVIEW_AFTER, job_id=f"review:{number}", connection=session
    )
    session.commit()


def cancel_order(session: Session, number: int) -> None:
    """Delete an order and cancel its review, in one transaction."""
    session.execute(text("DELETE FROM orders WHERE number = :number"), {"number": number})
    scheduler.cancel_job(f"review:{number}", connection=session)
    session.commit()
