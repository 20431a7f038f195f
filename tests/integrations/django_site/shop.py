"""The application of the project: a function and the calls that its tests share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import connection

from pg_scheduler import job
from pg_scheduler.integrations.django.models import Job
from pg_scheduler.sync import SyncScheduler

ALIAS = "default"
LATER = timedelta(hours=1)


@job(name="shop.greet")
async def greet(name: str = "") -> None: ...


scheduler = SyncScheduler()


def enqueue(job_id: str, **options: Any) -> str:
    return scheduler.enqueue(greet, job_id=job_id, connection=ALIAS, **options)


def execute(statement: str, *values: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def status_of(job_id: str) -> str:
    return str(Job.objects.get(pk=job_id).status)
