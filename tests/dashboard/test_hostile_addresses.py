"""Texts in addresses that no page expects: each page answers, and blames neither the database nor itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest

import pg_scheduler.dashboard
from tests.dashboard.client import App, request
from tests.support.inside import dashboard_pages, dashboard_streams, fingerprint_of
from tests.support.stories import NIGHTLY
from tests.support.world import World

READING: Final = re.compile(
    r"(?:parameters\.get|choice|text|number|required)\(\s*\"(\w+)\"|parameters\[\"(\w+)\"\]"
)
"""How the code of a page reads a parameter."""

TEXTS: Final = ("a\0b", "\ud800", "x" * 5000)
ERROR: Final = "ValueError: no"
BASES: Final = {
    "/chart": {"id": "outcomes"},
    "/error": {"id": fingerprint_of("app.work", ERROR)},
    "/job": {"id": "job"},
    "/job-form": {"id": "job"},
    "/limit": {"name": "bank"},
    "/schedule": {"id": "daily"},
    "/schedule-pause": {"id": "daily"},
    "/signal-form": {"id": "job"},
    "/task": {"id": "app.work"},
    "/value": {"id": "job", "part": "step", "name": "charge"},
    "/worker": {"id": "w1"},
}
"""What a page needs before it reads its other parameters."""

ENDLESS: Final = {"/live"}


def parameter_names() -> set[str]:
    """Return the names of all parameters that some page reads."""
    sources = Path(pg_scheduler.dashboard.__file__).parent.rglob("*.py")
    return {name or key for source in sources for name, key in READING.findall(source.read_text("utf-8"))}


def test_list_has_the_parameters_that_pages_read() -> None:
    assert {"after", "hour", "id", "name", "q", "range", "task"} <= parameter_names()


@NIGHTLY
@pytest.mark.slow
@pytest.mark.parametrize("path", sorted({*dashboard_pages(), *dashboard_streams()} - ENDLESS))
async def test_page_answers_each_text_in_each_parameter(path: str, world: World, app: App) -> None:
    await world.job(name="app.work", status="failed", error_message=ERROR)
    await world.step("job", "charge")
    await world.worker("w1", names=("app.work",))
    for name in sorted(parameter_names()):
        for text in TEXTS:
            query = urlencode({**BASES.get(path, {}), name: text}, errors="surrogatepass")
            answer = await request(app, f"{path}?{query}")
            assert answer.status < 500, (query[:100], answer.text[:500])
