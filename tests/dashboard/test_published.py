"""What a job has published, on its page."""

from __future__ import annotations

import json
from collections.abc import Callable

import asyncpg
import pytest

from pg_scheduler.dashboard import Access
from pg_scheduler.inspect import Inspector, Published, PublishedItem
from tests.dashboard.client import App, Page, request
from tests.support.hostile_texts import HOSTILE
from tests.support.world import World

JOB = "/job?id=order"


@pytest.fixture(autouse=True)
async def order(world: World, pool: asyncpg.Pool) -> None:
    """Insert a job that has published a value and a stream of 30 items."""
    await world.job("order", "board.order", options={"streams": "first"})
    await publish(pool, "url", 0, {"card": "visa 4711"})
    for number in range(1, 31):
        await publish(pool, "words", number, f"word{number}")
    await publish(pool, "words", 31, "of a former job", definition="former")


async def publish(
    pool: asyncpg.Pool, name: str, number: int, value: object, definition: str = "first"
) -> None:
    await pool.execute(
        "INSERT INTO scheduler_streams VALUES ('order', $1, $2, $3, $4)",
        definition,
        name,
        number,
        json.dumps(value),
    )


async def words_of(app: App) -> str:
    page = Page((await request(app, JOB)).text)
    return " ".join(page.text.split())


async def test_page_shows_values_and_the_last_items(app: App) -> None:
    text = await words_of(app)
    assert "Published" in text
    assert "30 items, of which these are the last" in text
    assert "word30" in text
    assert "word11" in text
    assert "word10" not in text
    assert "former" not in text


async def test_job_that_has_published_nothing_has_no_such_card(app: App, pool: asyncpg.Pool) -> None:
    await pool.execute("UPDATE scheduled_jobs SET options = NULL")
    assert "Published" not in await words_of(app)


async def test_request_without_arguments_sees_nothing_of_it(build: Callable[..., App]) -> None:
    app = build(authorize=lambda _: Access("ada", sees_arguments=False))
    text = await words_of(app)
    assert "word30" not in text
    assert "4711" not in text


async def test_hidden_keys_and_names_are_redacted(build: Callable[..., App], pool: asyncpg.Pool) -> None:
    await publish(pool, "password", 0, "hunter2")
    app = build(redact=("card", "password"))
    text = await words_of(app)
    assert "4711" not in text
    assert "hunter2" not in text
    assert "word30" in text


@pytest.mark.parametrize("value", HOSTILE[:3])
async def test_hostile_texts_are_escaped(app: App, pool: asyncpg.Pool, value: str) -> None:
    text = value.replace("\0", "")
    await publish(pool, text or "empty", 1, text)
    assert (await request(app, JOB)).status == 200


async def test_inspector_returns_values_and_the_last_items(pool: asyncpg.Pool) -> None:
    await publish(pool, "large", 0, "x" * 5000)
    large, url, words = await Inspector(pool).published("order")
    assert url == Published("url", PublishedItem(0, {"card": "visa 4711"}, None), 0, [])
    assert (words.name, words.value, words.count) == ("words", None, 30)
    assert words.items == [PublishedItem(number, f"word{number}", None) for number in range(11, 31)]
    assert large.value
    assert large.value.value is None
    assert str(large.value.no_value_reason).startswith("it is large: ")
