"""``dev.py renew`` writes all files that are derived, and each of them is what its program writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import golden
from tools import renew
from tools.environment import ROOT
from tools.figures.outer import commands_to_renew
from tools.renew import DERIVED, Derived, compare, golden_tests, snapshot, stories, write

WRITTEN = [derived for derived in DERIVED if derived.texts and not derived.compared_by]


@pytest.mark.parametrize("derived", WRITTEN, ids=[derived.what for derived in WRITTEN])
def test_derived_files_are_what_their_program_writes(derived: Derived) -> None:
    """So ``renew`` changes nothing in a clean checkout."""
    assert derived.texts
    texts = derived.texts()
    assert texts
    assert texts.keys() <= snapshot(derived).keys(), "the entry does not name all files that it writes"
    outdated = [path.name for path, text in texts.items() if path.read_text(encoding="utf-8") != text]
    assert outdated == [], "run: python3 dev.py renew"


def test_every_file_with_which_a_test_compares_is_derived() -> None:
    paths = {path for derived in DERIVED for path in [*derived.paths(), *snapshot(derived)]}
    recorded = {
        path
        for folder in (ROOT / "tests", ROOT / "migrations", ROOT / "tools" / "contents")
        for suffix in ("txt", "yml", "json")
        for path in folder.rglob(f"*.{suffix}")
    }
    assert recorded - paths == set()


def test_no_test_or_page_names_another_command_that_renews_files() -> None:
    """A reader of a failure, and of the guide, learns one command."""
    pattern = re.compile(
        r"(?:run|by|is):?\s+`*python3? -m (?:tests\.|tools\.(?:reference|diagrams|dashboards))"
    )
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert [path.name for path in files if pattern.search(path.read_text(encoding="utf-8"))] == []
    assert commands_to_renew(ROOT) == 1


def test_golden_files_are_written_by_tests_that_exist_in_the_command_line_and_migrations() -> None:
    tests = golden_tests()
    assert {test.split("/")[1] for test in tests} == {"cli", "migrations"}
    assert all((ROOT / test.partition("::")[0]).exists() for test in tests)
    assert "tests/cli/test_conventions.py::TestFormats::test_config_table_fits_the_width" in tests


def test_golden_file_is_written_when_renewing_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file.txt"
    file.write_text("old\n", encoding="utf-8")
    assert golden.golden(file, "new\n") == "old\n"
    monkeypatch.setattr(golden, "IS_RENEWING", True)
    assert golden.golden(file, "new\n") == "new\n"
    assert file.read_text(encoding="utf-8") == "new\n"


def test_changes_are_counted_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renew, "ROOT", tmp_path)
    for name, text in {"same.txt": "a\n", "old.txt": "a\nb\nb\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    texts = {tmp_path / "same.txt": "a\n", tmp_path / "old.txt": "b\nc\nd\n", tmp_path / "new.txt": "a\n"}
    derived = Derived("texts", ("*.txt",), lambda: texts)
    before = snapshot(derived)
    unchanged_at = (tmp_path / "same.txt").stat().st_mtime_ns
    write(derived)
    assert compare(before, snapshot(derived)) == ["new.txt: +1 -0 lines", "old.txt: +2 -2 lines"]
    assert (tmp_path / "same.txt").stat().st_mtime_ns == unchanged_at
    assert compare(snapshot(derived), snapshot(derived)) == []


def test_files_with_longer_stories_are_found() -> None:
    assert "tests/store/test_protocol.py" in stories()
    assert "tests/store/test_claim.py" not in stories()


def test_what_is_not_renewed_has_its_command_and_its_need() -> None:
    for derived in DERIVED:
        # An entry is written here by its texts or by tests, or there by a command with a reason.
        assert bool(derived.command) == bool(derived.takes), derived.what
        assert derived.texts or derived.compared_by, derived.what
        assert derived.paths(), derived.what
