"""The programs of the README run, its chart has measured figures, its first screen what people look for."""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import asyncpg
import pytest

from pg_scheduler.events import JobCompleted
from pg_scheduler.testing import TestScheduler
from tests.docs import asgi
from tests.docs.snippets import ROOT, run_python
from tests.docs.test_files import FILES
from tests.support.worker import Recorder

README = (ROOT / "README.md").read_text(encoding="utf-8")
CHART = ET.fromstring((ROOT / "docs" / "figures" / "speed.svg").read_text(encoding="utf-8"))
SVG = "{http://www.w3.org/2000/svg}"
PROGRAMS = [name for name in FILES if name.startswith("README.md ")]


async def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a program of the README, under the name of its file."""
    module = ModuleType(name.removesuffix(".py"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    await run_python(FILES[f"README.md {name}"], module)
    return module


def test_first_screen_of_the_readme_names_what_people_search_for() -> None:
    first_screen = README.partition("```")[0]
    assert "durable" in first_screen
    assert "PostgreSQL you already\nhave" in first_screen


def test_first_sections_of_the_readme_lead_from_the_demo_to_the_first_change() -> None:
    assert re.findall(r"^## (.*)", README, re.MULTILINE)[:3] == ["Try it", "Your first job", "Change it"]
    for heading, command in (("Try it", "dev.py demo"), ("Change it", "dev.py test")):
        section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        assert f"$ python3 {command}\n" in section
        assert re.search(r"\b(minutes?|seconds)\b", section), "how long it takes"


def test_programs_of_the_readme_have_at_most_15_lines_besides_imports() -> None:
    assert len(PROGRAMS) == 4
    other = re.compile(r"\s*(from |import |$)")
    lengths = {
        name: sum(not other.match(line) for line in FILES[name].code.splitlines()) for name in PROGRAMS
    }
    assert {name: length for name, length in lengths.items() if length > 15} == {}


def test_readme_has_a_command_for_each_program() -> None:
    for name in PROGRAMS:
        module = name.removeprefix("README.md ").removesuffix(".py")
        _, _, rest_of_page = README.partition(f"<!-- snippet: file {module}.py -->")
        text = rest_of_page.partition("<!-- snippet")[0].partition("\n## ")[0]
        assert re.search(rf"(python|uvicorn|worker) {module}\b", text), name


async def test_readme_shop_stores_an_order_and_its_receipt_together(
    dsn: str,
    pool: asyncpg.Pool[asyncpg.Record],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    (statement,) = re.findall(r'psql "\$PG_SCHEDULER_DSN" -c \'(CREATE TABLE orders .*)\'', README)
    await pool.execute(statement)
    await pool.execute("ALTER TABLE orders ADD UNIQUE (total) DEFERRABLE INITIALLY DEFERRED")
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    await load("example.py", monkeypatch)
    shop = await load("shop.py", monkeypatch)
    async with asgi.lifespan(shop.app) as state, asyncio.timeout(30):
        seen = Recorder(state["scheduler"])
        number = await asgi.post(shop.app, "/orders?total=40", state=state)
        await seen.until(JobCompleted)
        # The commit refuses the same total, after the receipt was enqueued.
        with pytest.raises(asyncpg.UniqueViolationError):
            await asgi.post(shop.app, "/orders?total=40", state=state)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1
    assert capsys.readouterr().out == f"receipt for order {number}\n"


async def test_readme_offer_is_sent_each_morning_at_nine_in_berlin(
    pool: asyncpg.Pool[asyncpg.Record], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await load("mornings.py", monkeypatch)
    async with TestScheduler(pool, now=datetime(2030, 1, 7, 7, 59, tzinfo=UTC)) as t:
        await t.run_until(timedelta(minutes=2))
        assert capsys.readouterr().out == "today's offer: a chair for 40 euros\n"
        await t.run_until(timedelta(days=2))
        assert capsys.readouterr().out == "today's offer: a chair for 40 euros\n" * 2


async def test_readme_job_sleeps_three_days_and_charges_once(
    pool: asyncpg.Pool[asyncpg.Record], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reviews = await load("reviews.py", monkeypatch)
    async with TestScheduler(pool) as t:
        await t.scheduler.enqueue(reviews.process_order, args=(17,))
        await t.run_until(timedelta(days=2, hours=23))
        assert capsys.readouterr().out == "charging for order 17\n"
        await t.run_until(timedelta(hours=2))
        assert capsys.readouterr().out == "are you content with order 17\n"


def test_chart_of_the_readme_has_figures_of_the_tables() -> None:
    """That each is the figure of its library is tested with those of the other charts."""
    tables = (ROOT / "docs" / "performance-tables.md").read_text(encoding="utf-8")
    texts = ["".join(text.itertext()) for text in CHART.iter(f"{SVG}text")]
    figures = [figure for text in texts for figure in re.findall(r"[\d,.]*\d(?= (?:jobs/s|x|ms))", text)]
    assert figures == ["74,400", "0.82", "1.11", "3.91", "16.7", "47", "73"]
    assert [figure for figure in figures if not re.search(rf"\b{figure} (jobs/s|x|ms)", tables)] == []


def test_chart_of_the_readme_is_drawn_to_scale() -> None:
    widths = [float(rect.get("width", "0")) for rect in CHART.iter(f"{SVG}rect") if "x" in rect.attrib]
    rates, instants = widths[:4], widths[4:]
    assert [rates[0] / rate for rate in rates] == pytest.approx([1, 0.82, 1.11, 3.91], abs=0.01)
    assert [instant / instants[-1] for instant in instants] == pytest.approx(
        [16.7 / 73, 47 / 73, 1], abs=0.01
    )


def test_figures_of_the_readme_are_those_of_the_pages_that_it_links() -> None:
    tables, reliability = (
        (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        for page in ("performance-tables", "reliability")
    )
    _, _, speed = README.partition("\n## How fast it is\n")
    speed, _, others = speed.partition("\n## Where others are ahead\n")
    figures = re.findall(r"[\d,.]*\d(?= (?:x|jobs a second|times as fast))", speed)
    assert figures == ["74,400", "3.91", "113,600", "1.42", "1.60"]
    assert [figure for figure in figures if not re.search(rf"\b{re.escape(figure)} ", tables)] == []
    comparison = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    # Each row has the ratios of one, two and four processes; that of Python 3.14 is the first.
    rounds = re.findall(
        r"nine rounds in turn.* x graphile-worker|same rounds with Python 3.11.* x graphile", tables
    )
    ratios_by_python = [re.findall(r"([\d.]+)(?:,| and| x)", row.rpartition("|")[2])[1:] for row in rounds]
    assert ratios_by_python == [["1.18", "1.05"], ["0.94", "0.88"]]
    for text, beginning in ((others, "- **graphile-worker**"), (comparison, "**Speed**")):
        paragraph = text.partition(beginning)[2].partition("\n\n")[0].partition("\n- ")[0]
        assert re.findall(r"([\d.]+) x", paragraph) == ["0.94", "0.88", "1.18", "1.05"]
        assert paragraph.index("0.94") > paragraph.index("Python 3.11")
        assert re.search(r"1\.05 x as many with\s+Python 3\.14", paragraph)
    assert "| faults | 1,181 |\n| jobs | 471,955 |\n" in reliability
    assert "1,181 faults" in " ".join(README.split())
    assert "471,955 jobs none was lost" in " ".join(README.split())
