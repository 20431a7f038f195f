"""Inspector.audit(): who did what, page by page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler.inspect import AuditPage, Inspector
from tests.support.world import MINUTE, World

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def inspector(pool: asyncpg.Pool) -> Inspector:
    return Inspector(pool)


async def fill(world: World, count: int) -> None:
    await world.audit(
        lambda n: ("pause_task", "cancel_jobs")[n % 2],
        lambda n: f"subject-{n % 10}",
        count=count,
        at=lambda n: START + n * MINUTE,
        actor=lambda n: f"actor-{n % 3}",
        via=lambda n: ("api", "cli")[n % 2],
        details=lambda n: {"n": n},
    )


def numbers(page: AuditPage) -> list[int]:
    return [record.details["n"] for record in page.items]


async def test_audit_returns_the_newest_records_first_page_by_page(
    inspector: Inspector, world: World
) -> None:
    await fill(world, 5)
    first = await inspector.audit(limit=3)
    assert numbers(first) == [5, 4, 3]
    record = first.items[0]
    assert (record.at, record.actor, record.via) == (START + timedelta(minutes=5), "actor-2", "cli")
    assert (record.action, record.subject) == ("cancel_jobs", "subject-5")
    assert first.summary == "3+ records found, older records follow"
    second = await inspector.audit(limit=3, after=first.next)
    assert (numbers(second), second.next) == ([2, 1], None)
    assert second.summary == "2 records found, all records searched"
    assert (await inspector.audit(limit=5)).next is None


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"action": "cancel_jobs"}, [29, 27, 25]),
        ({"actor": "actor-1", "via": "api"}, [28, 22, 16]),
        ({"subject": "subject-7"}, [27, 17, 7]),
        ({"subject": "subject-7", "until": START + timedelta(minutes=17)}, [7]),
        ({"since": START + timedelta(minutes=29)}, [30, 29]),
        ({"subject": "subject-'"}, []),
    ],
)
async def test_audit_filters_records(
    inspector: Inspector, world: World, filters: dict[str, Any], expected: list[int]
) -> None:
    await fill(world, 30)
    assert numbers(await inspector.audit(limit=3, **filters)) == expected


async def test_page_examines_20000_records_and_the_next_one_continues(
    inspector: Inspector, world: World
) -> None:
    await fill(world, 20_001)
    page = await inspector.audit(subject=None, actor="actor-1", until=START + timedelta(minutes=2))
    assert (page.items, page.next is None) == ([], False)
    assert numbers(await inspector.audit(actor="actor-1", after=page.next)) == [1]
    recent = await inspector.audit(action="nothing", since=START + timedelta(minutes=9))
    assert recent.next is None, "older records cannot match"


async def test_records_written_by_hand_can_be_read(inspector: Inspector, pool: asyncpg.Pool) -> None:
    await pool.execute("""
        INSERT INTO scheduler_audit (at, actor, via, action, details) VALUES
            ('infinity', E'\\x1b', 'x', 'y', '[]'), ('4713-01-01 BC', '', '', '', NULL),
            ('290000-01-01', '', '', '', '"text"')
    """)
    assert [record.details for record in (await inspector.audit()).items] == [{}] * 3


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": 0},
        {"after": "x"},
        {"after": "-1"},
        {"after": "9" * 19},
        {"since": START.replace(tzinfo=None)},
        {"actor": "\x00"},
    ],
)
async def test_invalid_argument_is_rejected(inspector: Inspector, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"limit|position|time zone|NUL"):
        await inspector.audit(**arguments)


async def test_action_of_a_front_end_is_recorded(pool: asyncpg.Pool) -> None:
    await Inspector(pool, actor="ada").record_action("add_job", "mail:9", name="mail.send")
    (record,) = (await Inspector(pool).audit(subject="mail:9")).items
    assert (record.actor, record.via, record.action) == ("ada", "inspector", "add_job")
    assert record.details["name"] == "mail.send"
