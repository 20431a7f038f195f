"""The shop with pg_scheduler. Any process may schedule, any number of workers may run the jobs."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from pg_scheduler import ConflictResolution, Overlap, job, periodic
from pg_scheduler.sync import SyncScheduler

__all__ = ["remind", "remind_at", "scheduler", "sync_stock"]

scheduler = SyncScheduler(os.environ["DATABASE_URL"])  # glue: connect to the database


@periodic(every=timedelta(minutes=15), dedup_key="sync", overlap=Overlap.SKIP)  # glue: a job at regular times
def sync_stock() -> None:
    """Read the stock."""
    print("reading the stock", flush=True)


@job(name="shop.remind", aliases=["examples.apscheduler_shop.before.remind"], misfire_grace_time=None)
def remind(customer: str) -> None:
    """Remind a customer. The alias is the name of the function in the jobs that were imported."""
    print("reminding", customer, flush=True)


def remind_at(customer: str, when: datetime) -> None:
    """Remind a customer at a time, or move the reminder."""
    scheduler.schedule(
        remind,
        execution_time=when,
        args=(customer,),
        job_id=f"aps:remind-{customer}",  # the id of an imported one, so that it is moved too
        conflict_resolution=ConflictResolution.REPLACE,
    )
