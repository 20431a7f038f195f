"""No output of the dashboard has a secret that its request may not see, and no search finds one.

These tests read each page, each address that streams, and each field of searches, also those that are added.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from urllib.parse import quote

import pytest

from pg_scheduler import JobFailedError, Limit, Scheduler, Share, call, current_job
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.app import STREAMS
from pg_scheduler.dashboard.pages import PAGES
from pg_scheduler.events import Event, JobSuspended
from pg_scheduler.inspect.search.parser import FIELDS
from pg_scheduler.telemetry.logging import JobLogHandler
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, App, request, stream
from tests.dashboard.conftest import read_all
from tests.support.worker import PATIENCE
from tests.support.world import HOUR, World

pytestmark = pytest.mark.slow

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
    "unique key": "sec-unique",
    "argument of a schedule": "sec-schedule",
    "log line": "sec-line",
}
"""What only a request sees that sees arguments."""

OF_OTHERS = {"error of a hidden job": "salary of ada", "name of a hidden task": "payroll"}
"""What only a request sees that sees all names."""

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "/job": (
        "id=order",
        "id=report",
        "id=charge",
        "id=export",
        "id=closing",
        "id=noted",
        "id=looked&look=log",
    ),
    "/error": ("id={group}&since=all",),
    "/schedule": ("id=nightly",),
    "/schedule-pause": ("id=nightly",),
    "/job-form": ("id=order", "id=closing"),
    "/signal-form": ("id=order",),
    "/task": ("id=shop.order", "id=shop.close"),
    "/limit": ("name=cards", "id=cards"),
    "/worker": ("id=w1",),
    "/chart": ("name=shop.order", "chart=ended"),
    "/value": tuple(
        f"id=order&part={part}" for part in ("result", "arguments", "metadata", "step&name=quote")
    ),
    "/export": ("format=csv", "format=jsonl"),
    "/complete": ("term=arg.", "term=tag:", "term=limit:", "term=error:", "term=name:"),
    "/find": ("q=sec", "q=salary", "q=payroll"),
    "/jobs": ("q=status:blocked", "q=status:failed", "q=status:completed"),
    "/errors": ("since=all",),
}
"""The parameters with which an address is read, apart from none."""


@pytest.fixture
async def filled(scheduler: Scheduler, world: World) -> None:
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

    scheduler.register(order, name="shop.order")
    scheduler.register(report, name="shop.report")
    scheduler.register(noted, name="shop.noted")
    scheduler.register(close, name="shop.close")
    scheduler.register(pay, name="payroll.pay")
    cards = Limit("cards", max_running=1, key=lambda card: card)
    scheduler.register(charge, name="shop.charge", limits=[cards])
    scheduler.register(export, name="shop.export", share=Share("exports", key=lambda tenant: tenant))
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


async def addresses(app: App) -> list[str]:
    """Return the address of each page and stream, with each of its parameters."""
    groups = (await request(app, "/errors?since=all", headers=JSON)).data["items"]
    urls = []
    for path in (*PAGES, *STREAMS):
        for parameters in ("", *PARAMETERS.get(path, ())):
            for group in groups if "{group}" in parameters else groups[:1]:
                query = parameters.format(group=group["fingerprint"])
                urls.append(f"{path}?{query}" if query else path)
    return urls


async def outputs(app: App, urls: list[str]) -> dict[tuple[str, str], str]:
    """Return the texts that these addresses answer, as pages and as JSON."""
    texts = {}
    for url in urls:
        if url.startswith("/live"):
            continue
        for form, headers in (("page", {}), ("json", JSON)):
            answer = await request(app, url, headers=headers)
            assert answer.status < 500, url
            texts[url, form] = answer.text
    for url in urls:
        path, _, query = url.partition("?")
        if path in PAGES and PAGES[path].is_live:
            live = f"/live?page={path}" + (f"&{query}" if query else "")
            with suppress(TimeoutError, AssertionError):
                async with asyncio.timeout(PATIENCE), stream(app, live) as read:
                    texts[live, "stream"] = await read() + await read()
    return texts


async def count(app: App, search: str) -> int | None:
    """Return how many jobs a search finds; None if it is rejected."""
    answer = await request(app, f"/jobs?q={quote(search)}", headers=JSON)
    assert answer.status in {200, 400}, (search, answer.status)
    return len(answer.data["items"]) if answer.status == 200 else None


def searches(text: str) -> list[str]:
    """Return searches for a text by each field: with wildcards, by a part of it, and negated."""
    questions = []
    for field in FIELDS:
        name = field.replace("<name>", "to" if field.startswith("arg") else "note")
        questions += [f'{name}:*"{text}"*', f'{name}:~"{text}"', f'-{name}:~"{text}"', f'{name}:*:"{text}"']
    return questions


@pytest.mark.parametrize(
    ("access", "secrets"),
    [
        (Access("bob", "admin", sees_arguments=False), OF_ARGUMENTS),
        (Access("bob", "admin", names=("shop.*",)), OF_OTHERS),
        (Access("bob", "admin", names=("shop.*",), sees_arguments=False), OF_ARGUMENTS | OF_OTHERS),
    ],
    ids=["no arguments", "some names", "neither"],
)
async def test_no_output_and_no_search_has_what_a_request_may_not_see(
    filled: None, build: Callable[..., App], access: Access, secrets: Mapping[str, str]
) -> None:
    whole, limited = build(authorize=read_all), build(authorize=lambda _: access)
    urls = await addresses(whole)
    outputs_of_all = await outputs(whole, urls)
    for what, secret in secrets.items():
        assert any(secret in text for text in outputs_of_all.values()), f"no output has the {what}"
    for address, text in (await outputs(limited, urls)).items():
        for what, secret in secrets.items():
            echoed = secret in address[0]  # a page repeats what was searched
            assert echoed or secret not in text, f"{address} shows the {what}"
    for what, secret in secrets.items():
        for search, other in zip(searches(secret), searches("no-such-text"), strict=True):
            assert await count(limited, search) == await count(limited, other), f"{search} finds the {what}"


async def test_limits_are_searched_by_their_name_without_their_keys(
    filled: None, build: Callable[..., App]
) -> None:
    limited = build(authorize=lambda _: Access("bob", sees_arguments=False))
    assert await count(limited, "limit:cards") == 1
    for search in ("limit:cards:*", "limit:*", "limit:~sec", f"limit:cards:{OF_ARGUMENTS['key of a limit']}"):
        assert await count(limited, search) is None
        assert await count(build(), search) == 1
