"""Tables in the documentation that repeat what the code says, held to it."""

from __future__ import annotations

import logging
import re
from itertools import takewhile

import pg_scheduler
from pg_scheduler import Scheduler, events
from pg_scheduler.events.log import _RECORDS, LEVELS, record_fields
from pg_scheduler.store.faults import TRANSIENT_CLASSES, TRANSIENT_STATES
from tests.docs.snippets import ROOT

OUTAGES = ("| Fault | Effect | Recovery | Test |", "| Fault | Effect | Test |")


def table(page: str, header: str) -> list[list[str]]:
    """The rows of the tables with this header, as cells."""
    _, *tables = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"\n{header}\n")
    assert tables, f"{page} has no table {header!r}"
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for rest in tables
        for line in takewhile(lambda line: line.startswith("|"), rest.splitlines()[1:])
    ]


def code(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


async def test_parts_are_listed_in_the_order_of_their_start(scheduler: Scheduler) -> None:
    assert scheduler._runtime
    parts = [type(part).__name__.lower() for part in scheduler._runtime._supervisor._parts]
    assert [row[0] for row in table("development/architecture.md", "| Part | Pass | Rhythm |")] == parts


def test_the_table_of_log_levels_lists_every_event_once() -> None:
    listed = [
        (name, row[0])
        for row in table("operations/monitoring.md", "| Level | Events |")
        for name in code(row[1])
    ]
    levels = {kind.__name__: logging.getLevelName(level) for kind, level in LEVELS.items()}
    assert sorted(listed) == sorted(levels.items())
    assert all(hasattr(events, name) for name in levels)


def test_the_table_of_log_fields_is_complete() -> None:
    listed = [name for row in table("operations/monitoring.md", "| Field | Value |") for name in code(row[0])]
    assert listed == list(record_fields())


def test_the_log_lines_in_the_documentation_are_real() -> None:
    page = (ROOT / "docs/operations/monitoring.md").read_text(encoding="utf-8")
    lines = page.partition("`%(levelname)s %(message)s`:\n\n```text\n")[2].partition("\n```")[0].splitlines()
    end_of_an_outage = (logging.WARNING, "database available again after %(seconds)s; all services resumed")
    patterns = [
        f"{logging.getLevelName(level)} " + ".+".join(map(re.escape, re.split(r"%\(\w+\)s", template)))
        for level, template in (*_RECORDS.values(), end_of_an_outage)
    ]
    assert lines
    for line in lines:
        assert any(re.fullmatch(pattern, line) for pattern in patterns), line


def test_faults_that_pass() -> None:
    told = {
        state for row in table("operations/database.md", "| SQLSTATE | Meaning |") for state in code(row[0])
    }
    assert told == TRANSIENT_CLASSES | TRANSIENT_STATES


def test_tests_that_are_named_exist() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    folder = ""
    for name in re.findall(r"`((?:tests/)?[\w/]*test_[\w*]+\.py)`", page):
        folder = name.rpartition("/")[0] or folder  # of the one before, where it is left out
        assert list(ROOT.glob(f"{folder}/{name.rpartition('/')[2]}")), name
    outages = (ROOT / "tests" / "cluster" / "test_outages.py").read_text(encoding="utf-8")
    rows = [row for header in OUTAGES for row in table("reliability.md", header)]
    told = {re.sub(r"\W.*", "", row[-1].strip("`")) for row in rows}
    assert told == set(re.findall(r"def (test_\w+)", outages))


def test_columns() -> None:
    shape = (ROOT / "migrations" / "schema.txt").read_text(encoding="utf-8")
    jobs = shape.partition("table scheduled_jobs\n")[2].partition("\ntable ")[0]
    columns = set(re.findall(r"^    column (\w+)", jobs, re.MULTILINE))
    page = (ROOT / "docs" / "concepts" / "life-cycle.md").read_text(encoding="utf-8")
    for_the_library = set(code(page.partition("The other columns (")[2].partition(")")[0]))
    told = {name for row in table("concepts/life-cycle.md", "| Column | Meaning |") for name in code(row[0])}
    mentioned = told | for_the_library | {"expires_at"}
    assert mentioned == columns


def test_statuses() -> None:
    told = [code(row[0])[0] for row in table("concepts/life-cycle.md", "| Status | Meaning |")]
    assert told == [status.value for status in pg_scheduler.JobStatus]
