"""The shop with Celery. An order whose process ends between the two commits has no invoice."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.schedules import crontab
from sqlalchemy import text
from sqlalchemy.orm import Session

__all__ = ["app", "cancel_order", "place_order"]

REVIEW_AFTER_S = 14 * 24 * 3600

app = Celery("shop", broker=os.environ.get("BROKER_URL", "redis://"))  # glue: connect to the queue
app.conf.timezone = "Europe/Berlin"
app.conf.task_acks_late = True  # glue: run a task again when its worker dies
app.conf.task_reject_on_worker_lost = True  # glue: run a task again when its worker dies
app.conf.broker_transport_options = {  # glue: keep long countdowns from running twice
    "visibility_timeout": 2 * REVIEW_AFTER_S
}
app.conf.beat_schedule = {  # glue: a task at regular times
    "report": {
        "task": "shop.report",
        "schedule": crontab(minute="0", hour="7", day_of_week="mon"),
    }
}


@app.task(name="shop.send_invoice", bind=True, max_retries=5, default_retry_delay=60)
def send_invoice(self: Any, number: int) -> None:
    """Send the invoice of an order."""
    try:
        print("invoice", number, flush=True)
    except ConnectionError as error:
        raise self.retry(exc=error) from error


@app.task(name="shop.ask_for_review")
def ask_for_review(number: int) -> None:
    """Ask the customer for a review."""
    print("review of order", number, flush=True)


@app.task(name="shop.report")
def report() -> None:
    """Print a report."""
    print("report", flush=True)


def place_order(session: Session, number: int) -> None:
    """Store an order; then send its tasks, if this process still can."""
    session.execute(text("INSERT INTO orders (number) VALUES (:number)"), {"number": number})
    session.commit()
    send_invoice.delay(number)
    ask_for_review.apply_async(args=[number], countdown=REVIEW_AFTER_S, task_id=f"review:{number}")


def cancel_order(session: Session, number: int) -> None:
    """Delete an order; then revoke its review, on the workers that run now."""
    session.execute(text("DELETE FROM orders WHERE number = :number"), {"number": number})
    session.commit()
    app.control.revoke(f"review:{number}")
