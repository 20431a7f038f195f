"""The pages of docs/start: their programs are files that run, and each page with a program has a picture."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path

import pytest
from asyncpg import Pool

from pg_scheduler import JobStatus
from pg_scheduler.testing import TestScheduler
from tests.browser.pictures import TARGET
from tests.docs.snippets import ROOT, Snippet, page_id, snippets_of
from tests.docs.terminal import EXAMPLES
from tools.reference.programs import new_lines, with_new_lines

PAGES = sorted((ROOT / "docs" / "start").rglob("*.md"))
PROGRAMS = {
    snippet.file: snippet
    for page in PAGES
    for snippet in snippets_of(page)
    if snippet.file is not None and "/" in snippet.file
}
MAX_BYTES = 150_000


@pytest.mark.parametrize("snippet", PROGRAMS.values(), ids=str)
def test_program_on_a_page_is_the_file_that_the_tests_run(snippet: Snippet) -> None:
    assert snippet.code == (ROOT / str(snippet.file)).read_text(encoding="utf-8")


def test_each_program_of_the_shop_is_on_a_page() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in EXAMPLES.glob("*.py") if path.stem != "__init__"}
    assert set(PROGRAMS) == files


def test_first_program_has_at_most_twelve_lines() -> None:
    code = (EXAMPLES / "hello.py").read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 12


def pictures_of(page: Path) -> list[Path]:
    found = re.findall(r"!\[[^\]]+\]\((\S+\.png)\)", page.read_text(encoding="utf-8"))
    return [(page.parent / path).resolve() for path in found]


def test_each_page_with_a_program_has_one_picture() -> None:
    pages = {snippet.page for snippet in PROGRAMS.values()}
    shown = [picture for page in pages for picture in pictures_of(page)]
    assert len(shown) == len(pages)
    assert set(shown) == set(TARGET.glob("shop-*.png"))
    assert {picture.name for picture in shown if picture.stat().st_size > MAX_BYTES} == set()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_cell_of_a_table_has_more_than_one_sentence(page: Path) -> None:
    cells = re.findall(r"(?<=\|)[^|\n]+(?=\|)", page.read_text(encoding="utf-8"))
    assert [cell for cell in cells if re.search(r"[.!?]\s+\S", cell)] == []


async def test_job_with_a_time_expires_by_an_outage_of_six_minutes_as_the_pages_state(pool: Pool) -> None:
    """A reader of the tutorial lost ``enqueue(delay=)`` to a short outage, which no page mentioned."""
    pages = {page.stem: " ".join(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert "must start within five minutes of that time" in pages["five-minutes"]
    chapter = pages["4-every-morning-at-nine"]
    assert "A job with a time must start within five minutes of it" in chapter
    assert "`@job(misfire_grace_time=None)`" in chapter
    hour = timedelta(hours=1)
    async with TestScheduler(pool) as kit:
        kit.scheduler.register(asyncio.sleep, name="shop.ask")
        await kit.scheduler.enqueue("shop.ask", args=(0,), job_id="late", delay=hour)
        await kit.scheduler.enqueue("shop.ask", args=(0,), job_id="kept", delay=hour, misfire_grace_time=None)
        await kit.scheduler.enqueue("shop.ask", args=(0,), job_id="receipt")
        kit.advance(hour + timedelta(minutes=6))
        await kit.drain()
        states = {job.job_id: job.status for job in await kit.scheduler.list_jobs()}
    assert states == {
        "late": JobStatus.EXPIRED,
        "kept": JobStatus.COMPLETED,
        "receipt": JobStatus.COMPLETED,
    }


def test_new_lines_of_a_program_are_marked_on_its_page() -> None:
    page = next(page for page in PAGES if page.stem.startswith("7-"))
    marked = with_new_lines(page.read_text(encoding="utf-8"))
    program = marked.partition("```{code-block} python\n")[2].splitlines()
    number = int(program[0].removeprefix(":emphasize-lines: "))
    # An empty line ends the options.
    assert "start=False" in program[number + 1]
    first = next(page for page in PAGES if page.stem.startswith("1-")).read_text(encoding="utf-8")
    assert with_new_lines(first) == first


def test_lines_that_a_chapter_adds_are_its_new_lines() -> None:
    before = "import os\n\n\ndef one():\n    print(1)\n"
    program = "import os\nimport sys\n\n\ndef one():\n    print(2)\n\n\ndef two():\n    print(3)\n"
    assert new_lines(before, program) == [2, 6, 9, 10]
    assert new_lines(program, before) == [5]
    assert new_lines(program, program) == []
