"""Jobs with options that the release before does not have. It runs the same code, as far as it can.

A test copies this file to the folder of that release.
"""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

from pg_scheduler import RetryPolicy, Unique, call, current_job, job
from tests.cluster.node import report

SOON = RetryPolicy(base=timedelta(seconds=0.3), maximum=timedelta(seconds=0.3))


def known(function: Any, **options: Any) -> dict[str, Any]:
    """Return those of the options that this release has."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in parameters}


def report_text(event: str, text: object) -> None:
    report(event, job_id=current_job().job_id, text=text)


@job(name="options.turn", **known(job, sequence=lambda account, *_: account))
async def turn(account: str, number: int) -> None:
    report_text("turned", f"{account} {number}")


@job(name="options.index", unique=Unique(args=("document",), **known(Unique, debounce=0.5, max_wait=5)))
async def index(document: str, version: int) -> None:
    report_text("indexed", version)


async def charge() -> str:
    report_text("charged", current_job().attempt)
    return "paid"


@job(name="options.pay", max_retries=1000, retry=SOON)
async def pay() -> None:
    report_text("paid", await current_job().steps.run("charge", charge, retry=SOON, max_retries=3))


@job(name="options.speak", max_retries=1000, retry=SOON)
async def speak() -> None:
    await current_job().publish("name", "speaker")
    stream = current_job().stream("words")
    for number in (1, 2, 3):
        await stream.append(f"word {number}", number=number)


@job(name="options.listen", max_retries=1000, retry=SOON)
async def listen() -> None:
    steps = current_job().steps
    report_text("received", [await steps.receive("items") for _ in range(3)])


@job(name="options.attend", max_retries=1000, retry=SOON)
async def attend() -> None:
    report_text("attended", await current_job().steps.wait("news"))


@job(name="options.member")
async def member() -> None:
    await current_job().steps.wait("never")


@job(name="options.book")
async def book() -> str:
    report_text("booked", "")
    return "booked"


@job(name="options.clean_up")
async def clean_up(job_id: str, steps: list[dict[str, Any]], **_: Any) -> None:
    report_text("cleaned", [job_id, *(step["name"] for step in steps)])


@job(name="options.family", max_retries=1000, retry=SOON, **known(job, on_cancel="options.clean_up"))
async def family() -> None:
    steps = current_job().steps
    await steps.child("booking", call(book), detached=True)
    await steps.child("member", call(member))
