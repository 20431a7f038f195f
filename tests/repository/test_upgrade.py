"""The checks of the rehearsal of an upgrade find jobs that went wrong, in records of such jobs."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tools.environment import ROOT
from tools.upgrade import ledger, releases
from tools.upgrade.fleet import SERIOUS
from tools.upgrade.kinds import KINDS
from tools.upgrade.ledger import Entry
from tools.upgrade.verdict import PHASES, Verdict, problems_by_job, problems_of_schedule

MIDNIGHT = datetime(2030, 1, 1, tzinfo=UTC)


def entries(*events: str, fire_time: str | None = None) -> list[Entry]:
    """Return an entry for each text of the form ``TAG EVENT``."""
    pairs = [event.split() for event in events]
    return [Entry(tag, event, "new", 0.0, fire_time) for tag, event in pairs]


@pytest.mark.parametrize(
    ("kind", "events", "problems"),
    [
        ("later", ["t ran"], []),
        ("later", [], ["t: 'ran' 0 times, not 1"]),
        ("later", ["t ran", "t ran"], ["t: 'ran' 2 times, not 1"]),
        ("async", ["t began", "t left", "t began", "t ran", "t left"], []),
        ("retry", ["t failed", "t failed", "t ran"], ["t: 'failed' 2 times, not 1"]),
        ("sleep", ["t stored", "t stored", "t ran"], ["t: 'stored' 2 times, not 1"]),
        ("after", ["t ran"], ["t/before: 'ran' 0 times, not 1"]),
        ("deadline", ["t ran"], ["t: 'ran' 1 times, not 0"]),
    ],
)
def test_rehearsal_finds_jobs_that_were_lost_or_ran_twice(
    kind: str, events: list[str], problems: list[str]
) -> None:
    assert problems_by_job(KINDS[kind], ["t"], entries(*events)).get("t", []) == problems


def test_rehearsal_finds_jobs_that_ran_at_once_or_out_of_order() -> None:
    check = KINDS["sequence"].check
    assert check
    assert not check(entries("1 began", "1 left", "1 began", "1 ran", "1 left", "2 began", "2 ran", "2 left"))
    assert check(entries("1 began", "2 began", "1 ran", "1 left", "2 ran", "2 left")) == [
        "2 began while 1 ran"
    ]
    assert check(entries("2 began", "2 ran", "2 left", "1 began", "1 ran", "1 left")) == [
        "the order was 2, 1"
    ]


def test_rehearsal_finds_fire_times_that_were_missed_or_fired_twice() -> None:
    check = KINDS["schedule"].check
    assert check
    assert not check(entries("1 ran", fire_time="00:01") + entries("1 ran", fire_time="00:02"))
    assert check(entries("1 ran", "1 ran", fire_time="00:01"))
    seconds = [MIDNIGHT + timedelta(seconds=number) for number in range(4)]
    assert problems_of_schedule(seconds) == []
    problems = problems_of_schedule([seconds[0], seconds[1], seconds[1], seconds[3]])
    assert [problem.partition(" at ")[0] for problem in problems] == [
        "the schedule in the code fired 2 times",
        "the schedule in the code fired 0 times",
    ]


def test_rehearsal_finds_errors_in_logs_except_those_that_it_causes() -> None:
    line = "2030-01-01 00:00:00,000 ERROR   pg_scheduler: "
    assert SERIOUS.match(line + "service claimer failed")
    assert not SERIOUS.match(line + "job rehearsal.note (id t, attempt 0) passed its deadline, no retry")
    assert not SERIOUS.match(line.replace("ERROR  ", "WARNING") + "service claimer retries")


def test_ledger_has_the_events_of_a_job_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ledger.read(tmp_path) == []
    monkeypatch.setenv(ledger.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(ledger.RELEASE_VARIABLE, "old")
    ledger.record("both:later:001", "began")
    ledger.record("both:later:001", "ran", fire_time="00:01")
    assert [(entry.event, entry.release, entry.fire_time) for entry in ledger.read(tmp_path)] == [
        ("began", "old", None),
        ("ran", "old", "00:01"),
    ]
    assert not ledger.gate_is_open("both:later:001")
    ledger.open_gate(tmp_path, "both")
    assert ledger.gate_is_open("both:later:002")
    assert not ledger.gate_is_open("back:later:001")


def test_table_has_a_column_for_each_phase_that_took_place() -> None:
    verdict = Verdict("from v1.0.0")
    verdict.add_cell("due later", "both", "1 of 1")
    verdict.add_cell("due later", "forward", "2 of 2")
    verdict.add_cell("in a chunk", "forward", "0 of 1")
    assert list(verdict.lines()) == [
        "| from v1.0.0 | old next to new | rolled forward |",
        "|---|---|---|",
        "| due later | 1 of 1 | 2 of 2 |",
        "| in a chunk | - | 0 of 1 |",
    ]


def test_published_table_has_every_kind_and_each_of_them_is_complete() -> None:
    page = (ROOT / "docs" / "project" / "upgrade-rehearsal.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if " of " in line
    ]
    cells = {name: counts for name, *counts in rows if name in {kind.name for kind in KINDS.values()}}
    assert list(cells) == [kind.name for kind in KINDS.values()]
    for counts in cells.values():
        assert len(counts) == len(PHASES)
        for count in counts:
            assert re.fullmatch(r"([\d,]+) of \1(, after the next upgrade)?", count)


def test_release_before_is_the_newest_tag_below_or_the_commit_before_the_newest_migration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "ROOT", tmp_path)
    migrations = tmp_path / "migrations"
    migrations.mkdir()

    def git(*words: str) -> str:
        command = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words)
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(name: str) -> str:
        (migrations / name).touch()
        git("add", ".")
        git("commit", "--message", name)
        return git("rev-parse", "HEAD")

    git("init")
    first = commit("0001_first.up.sql")
    commit("0002_second.up.sql")
    (migrations / "0002_second.up.sql").write_text("-- expand", encoding="utf-8")
    git("commit", "--all", "--message", "changed")
    assert git("rev-parse", releases.previous_release()) == first
    for tag in ("v1.9.0", "v1.10.0"):
        git("tag", tag)
    # The tags of this commit are those of the release that is rehearsed.
    assert git("rev-parse", releases.previous_release()) == first
    commit("0003_third.up.sql")
    git("tag", "v1.11.0")
    assert releases.previous_release() == "v1.10.0"
    with pytest.raises(releases.HistoryError, match=r"git archive v9 .* failed: .*; fetch the whole history"):
        releases.extract("v9", tmp_path / "folder")
