"""A database with a secret in each place that arguments reach, and in jobs that some may not see.

The tests of what people see read all of it as a person who may not see the secrets.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

from pg_scheduler import JobFailedError, Limit, Scheduler, Sequence, Share, call, current_job
from pg_scheduler.events import Event, JobSuspended
from pg_scheduler.inspect.search.parser import FIELDS
from pg_scheduler.telemetry.logging import JobLogHandler
from pg_scheduler.triggers import Every
from tests.support.patience import PATIENCE
from tests.support.world import HOUR, World

OF_ARGUMENTS = {
    "argument": "sec-positional",
    "keyword argument": "sec-keyword",
    "metadata": "sec-metadata",
    "tag": "sec-tag",
    "result": "sec-result",
    "note of progress": "sec-note",
    "value of a step": "sec-step",
    "value of a signal": "sec-signal",
    "key of a limit": "sec-card",
    "tenant of a share": "sec-tenant",
    "key of a sequence": "sec-account",
    "key of a stopped sequence": "sec-booking",
    "unique key": "sec-unique",
    "argument of a schedule": "sec-schedule",
    "log line": "sec-line",
}
"""What only a request sees that sees arguments."""

OF_OTHERS = {"error of a hidden job": "salary of ada", "name of a hidden task": "payroll"}
"""What only a request sees that sees all names."""


async def fill_with_secrets(scheduler: Scheduler, world: World) -> None:
    """Put each secret somewhere in the database."""
    logger = logging.getLogger("world")
    handler = JobLogHandler()
    logger.addHandler(handler)

    async def order(*_args: str, **_kwargs: str) -> None:
        current_job().progress(1, 2, note=OF_ARGUMENTS["note of progress"])
        await current_job().steps.run("quote", quoted)
        await current_job().steps.wait("approval")
        await current_job().steps.wait("delivery")

    async def quoted() -> str:
        return OF_ARGUMENTS["value of a step"]

    async def report() -> str:
        return OF_ARGUMENTS["result"]

    async def noted() -> None:
        logger.error(OF_ARGUMENTS["log line"])
        raise RuntimeError("noted")

    async def pay() -> None:
        raise ValueError(f"the {OF_OTHERS['error of a hidden job']} is 4711")

    async def close() -> None:
        await current_job().steps.child("pay", call(pay))

    async def charge(_card: str) -> None: ...

    async def export(_tenant: str) -> None: ...

    async def book(_booking: str) -> None:
        raise RuntimeError("booked twice")

    scheduler.register(order, name="shop.order")
    scheduler.register(report, name="shop.report")
    scheduler.register(noted, name="shop.noted")
    scheduler.register(close, name="shop.close")
    scheduler.register(pay, name="payroll.pay")
    cards = Limit("cards", max_running=1, key=lambda card: card)
    scheduler.register(charge, name="shop.charge", limits=[cards])
    scheduler.register(export, name="shop.export", share=Share("exports", key=lambda tenant: tenant))
    scheduler.register(book, name="shop.book", sequence=Sequence("bookings", key=lambda booking: booking))
    waits_again = asyncio.Event()

    def note_wait(event: Event) -> None:
        if isinstance(event, JobSuspended) and event.step == "delivery":
            waits_again.set()

    scheduler.subscribe(note_wait, JobSuspended)
    async with scheduler:
        await scheduler.run_job("shop.report", job_id="report", keep_result=timedelta(hours=1))
        for name, job_id in (("shop.close", "closing"), ("shop.noted", "noted")):
            with suppress(JobFailedError):
                await scheduler.run_job(name, job_id=job_id)
        booking = (OF_ARGUMENTS["key of a stopped sequence"],)
        with suppress(JobFailedError):
            await scheduler.run_job("shop.book", args=booking, job_id="booked")
        await scheduler.enqueue("shop.book", args=booking, job_id="stopped")
        await scheduler.enqueue(
            "shop.order",
            job_id="order",
            args=(OF_ARGUMENTS["argument"],),
            kwargs={"to": OF_ARGUMENTS["keyword argument"]},
            metadata={"note": OF_ARGUMENTS["metadata"], "tags": [OF_ARGUMENTS["tag"]]},
            unique=OF_ARGUMENTS["unique key"],
        )
        await scheduler.signal("order", "approval", OF_ARGUMENTS["value of a signal"])
        await asyncio.wait_for(waits_again.wait(), PATIENCE)
    logger.removeHandler(handler)
    # No worker runs any more: it would unblock these two jobs, since nothing else is within their limits.
    for job_id, blocked_on in (
        ("charge", f"limit:cards:{OF_ARGUMENTS['key of a limit']}"),
        ("export", f"share:exports:{OF_ARGUMENTS['tenant of a share']}"),
    ):
        await world.job(job_id, f"shop.{job_id}", due=HOUR, blocked_on=blocked_on)
    account = OF_ARGUMENTS["key of a sequence"]
    await world.job("transfer", "shop.transfer", due=-HOUR, blocked_on=f"zsequence:accounts:{account}")
    line = OF_ARGUMENTS["log line"]
    look = {"attempt": 1, "log": [line], "stack": {"at": "2026-11-01T00:00:00+00:00", "text": line}}
    await world.job("looked", "shop.order", status="running", progress={"look": look}, attempt=1)
    abandoned = {"job_id": "pay", "job_name": "payroll.pay", "attempt": 1, "reason": "cancelled"}
    health = {"abandoned": [{**abandoned, "since": "2026-11-01T00:00:00+00:00", "in_thread": True}]}
    await world.worker("w1", names=["shop.order", "shop.charge", "payroll.pay"], health=health)
    await scheduler.schedules.add(
        "shop.order",
        Every(timedelta(days=1)),
        schedule_id="nightly",
        kwargs={"token": OF_ARGUMENTS["argument of a schedule"]},
    )


def searches(text: str) -> list[str]:
    """Return searches for a text by each field: with wildcards, by a part of it, and negated."""
    questions = []
    for field in FIELDS:
        name = field.replace("<name>", "to" if field.startswith("arg") else "note")
        questions += [f'{name}:*"{text}"*', f'{name}:~"{text}"', f'-{name}:~"{text}"', f'{name}:*:"{text}"']
    return questions
