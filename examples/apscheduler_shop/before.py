"""The shop with APScheduler. Only one process may start the scheduler: others would run every job too."""

from __future__ import annotations

from datetime import datetime

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

__all__ = ["create_scheduler", "remind", "remind_at", "sync_stock"]


def sync_stock() -> None:
    """Read the stock."""
    print("reading the stock", flush=True)


def remind(customer: str) -> None:
    """Remind a customer."""
    print("reminding", customer, flush=True)


def create_scheduler(url: str) -> BackgroundScheduler:
    """Return the scheduler of the one process that may start it."""
    stores = {"default": SQLAlchemyJobStore(url)}  # glue: connect to the database
    scheduler = BackgroundScheduler(jobstores=stores)  # glue: connect to the database
    scheduler.add_job(  # glue: a job at regular times
        sync_stock,
        "interval",
        minutes=15,
        id="sync",
        max_instances=1,
        replace_existing=True,
    )
    return scheduler


def remind_at(scheduler: BackgroundScheduler, customer: str, when: datetime) -> None:
    """Remind a customer at a time, or move the reminder."""
    scheduler.add_job(
        remind,
        "date",
        run_date=when,
        args=[customer],
        id=f"remind-{customer}",
        misfire_grace_time=None,
        replace_existing=True,
    )
