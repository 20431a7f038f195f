"""No output of the dashboard has a secret that its request may not see, and no search finds one.

These tests read each page, each address that streams, and each field of searches, also those that are added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import quote

import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from tests.dashboard.client import JSON, App, request, stream
from tests.dashboard.conftest import read_all
from tests.support.inside import dashboard_pages, dashboard_streams
from tests.support.patience import PATIENCE
from tests.support.secret_world import OF_ARGUMENTS, OF_OTHERS, fill_with_secrets, searches
from tests.support.stories import LONG
from tests.support.world import World

pytestmark = pytest.mark.slow

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "/job": (
        "id=order",
        "id=report",
        "id=charge",
        "id=export",
        "id=transfer",
        "id=stopped",
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
    await fill_with_secrets(scheduler, world)


async def addresses(app: App) -> list[str]:
    """Return the address of each page and stream, with each of its parameters."""
    groups = (await request(app, "/errors?since=all", headers=JSON)).data["items"]
    urls = []
    for path in (*dashboard_pages(), *dashboard_streams()):
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
        if path in dashboard_pages() and dashboard_pages()[path].is_live:
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


@pytest.mark.parametrize(
    ("access", "secrets"),
    [
        (Access("bob", "admin", names=("shop.*",), sees_arguments=False), OF_ARGUMENTS | OF_OTHERS),
        *(
            [
                (Access("bob", "admin", sees_arguments=False), OF_ARGUMENTS),
                (Access("bob", "admin", names=("shop.*",)), OF_OTHERS),
            ]
            if LONG
            else []
        ),
    ],
    ids=["neither", *(["no arguments", "some names"] if LONG else [])],
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
