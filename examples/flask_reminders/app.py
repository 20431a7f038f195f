"""Reminders by HTTP, and a report at intervals: a Flask application ported from APScheduler 3.

======================================================== ========================================
BackgroundScheduler                                      here
======================================================== ========================================
``BackgroundScheduler(jobstores=...)``, in each process  ``SyncScheduler(dsn)``
``start()``                                              ``start()``
``add_job(f, "date", run_date=..., id=...,``             ``schedule(f, execution_time=..., job_id=...,``
``replace_existing=True)``                               ``conflict_resolution=...)``
``add_job(f, "interval", minutes=30, max_instances=1)``  ``@periodic(every=..., overlap=Overlap.SKIP)``
``modify_job(id, next_run_time=now)``                    ``schedules.trigger(id)``
``get_jobs()``, ``remove_job(id)``                       ``list_jobs()``, ``cancel_job(id)``
``add_listener(f, EVENT_JOB_ERROR)``                     ``subscribe(f, JobFailed)``
======================================================== ========================================

Start it with gunicorn::

    export DATABASE_URL=postgresql://localhost/app
    gunicorn --workers 4 --preload "examples.flask_reminders.app:create_app()"

With BackgroundScheduler, each of the four workers would send every reminder. Here they share a table, so one
of them sends it.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from flask import Flask, request
from werkzeug.exceptions import NotFound

from pg_scheduler import ConflictResolution, Job, Overlap, job, periodic
from pg_scheduler.events import Event, JobFailed
from pg_scheduler.sync import SyncScheduler

__all__ = ["create_app"]


@job(name="reminders.send")
def send_reminder(to: str, text: str) -> None:
    """Send a reminder. It is a plain function, so it runs in a thread."""
    if "@" not in to:
        raise ValueError(f"{to!r} is no address")
    print(f"to {to}: {text}", flush=True)


@periodic(every=timedelta(minutes=30), dedup_key="reminders.report", overlap=Overlap.SKIP)
async def report() -> None:
    """Print that the service runs."""
    print("report", flush=True)


def print_failure(event: Event) -> None:
    """Print a failed job. Only the process that ran it calls this."""
    print(event, flush=True)


def to_json(found: Job | None) -> dict[str, Any]:
    """Return a reminder as JSON, or answer 404."""
    if found is None:
        raise NotFound
    return {"id": found.job_id, "at": found.execution_time.isoformat(), "status": found.status.value}


def create_app() -> Flask:
    """Return the application. The first request makes a process a worker, after gunicorn has forked."""
    app = Flask(__name__)
    scheduler = SyncScheduler(os.environ["DATABASE_URL"])
    scheduler.subscribe(print_failure, JobFailed)

    @app.before_request
    def start() -> None:
        if not scheduler.is_running:
            scheduler.start()

    @app.put("/reminders/<name>")
    def put(name: str) -> dict[str, Any]:
        given = request.get_json()
        scheduler.schedule(
            send_reminder,
            execution_time=datetime.fromisoformat(given["at"]),  # with its time zone
            args=given["args"],
            job_id=name,
            conflict_resolution=ConflictResolution.REPLACE,
        )
        return to_json(scheduler.get_job(name))

    @app.get("/reminders/<name>")
    def get(name: str) -> dict[str, Any]:
        return to_json(scheduler.get_job(name))

    @app.get("/reminders")
    def list_pending() -> list[str]:
        return [each.job_id for each in scheduler.list_jobs(status="pending", job_name="reminders.send")]

    @app.delete("/reminders/<name>")
    def delete(name: str) -> dict[str, Any]:
        scheduler.cancel_job(name)
        return to_json(scheduler.get_job(name))

    @app.post("/report")
    def report_now() -> dict[str, Any]:
        return {"id": scheduler.schedules.trigger("reminders.report")}

    return app
