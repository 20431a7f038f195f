"""The checker of words: what it reads, what it finds, what it lets through."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import language
from tools.environment import ROOT
from tools.language import Use

PATTERN = language.compile_words(["beat", "for ever", "give* back", "bear* to"])


def words(path: Path, text: str) -> list[tuple[int, str]]:
    path.write_text(text, encoding="utf-8")
    return [(hit.line, hit.word) for hit in language.check_file(path, path.name, PATTERN)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It waits for ever.\n", [(1, "for ever")]),
        ("one\n\nIt waits for\never, given back\n", [(3, "for ever"), (4, "given back")]),
        ("The job gives\n  BACK\n", [(1, "gives back")]),
        ("forever, beaten, up-beat, next_beat\n", []),
        ("a call of `beat`\n", []),
        ("```text\na beat\n```\n", [(2, "beat")]),
    ],
)
def test_language_check_ignores_inline_code_in_markdown(
    tmp_path: Path, text: str, found: list[tuple[int, str]]
) -> None:
    assert words(tmp_path / "page.md", text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""Wait.\n\nFor ever.\n"""\n', [(3, "for ever")]),
        ("beat = 1  # given back\n", [(1, "given back")]),
        ("# It waits for\n# ever.\nbeat = 1\n\n# beat\n", [(1, "for ever"), (5, "beat")]),
        ('raise ValueError(f"a beat of {beat} s")\n', [(1, "beat")]),
        ('raise ValueError(f"heartbeat of {beat} s")\n', []),
        ("beat = heart.beat()\n", []),
        ('QUERY = "next_beat"\n', []),
    ],
)
def test_language_check_ignores_identifiers_in_python(
    tmp_path: Path, text: str, found: list[tuple[int, str]]
) -> None:
    assert words(tmp_path / "module.py", text) == found


def test_language_check_reads_only_comments_in_sql(tmp_path: Path) -> None:
    text = "-- name: beat\n-- Wait for\n-- ever.\nSELECT beat FROM heart  -- the beat\n"
    assert words(tmp_path / "query.sql", text) == [(2, "for ever"), (4, "beat")]


def test_language_check_allows_a_listed_word_in_its_file_only(tmp_path: Path) -> None:
    first, second = tmp_path / "first.md", tmp_path / "second.md"
    first.write_text("beat, given back\n", encoding="utf-8")
    second.write_text("beat\n", encoding="utf-8")
    allowed = [Use("beat", "first.md", "music")]
    assert language.check(tmp_path, [first, second], PATTERN, allowed) == [
        "first.md:1: 'given back' in 'beat, given back'",
        "second.md:1: 'beat' in 'beat'",
    ]


def test_language_check_reports_an_allowed_use_that_does_not_occur(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("heartbeat\n", encoding="utf-8")
    complaints = language.check(tmp_path, [page], PATTERN, [Use("beat", "page.md", "music")])
    assert complaints == ["page.md: the allowed word 'beat' does not occur"]


def test_rejected_words_belong_to_terms_of_the_glossary() -> None:
    glossary = (ROOT / "docs/project/glossary.md").read_text(encoding="utf-8")
    rejected = language.read_rejected(language.WORDS.read_text(encoding="utf-8"))
    words = [word for group in rejected.values() for word in group]
    assert {"for ever", "beat", "windows"} <= set(words)
    assert len(set(words)) == len(words)
    assert rejected.keys() <= set(re.findall(r"^\| (.+?) \|", glossary, re.MULTILINE))


def test_every_allowed_use_names_a_file_and_a_reason() -> None:
    uses = language.read_allowed(language.WORDS.read_text(encoding="utf-8"))
    assert uses
    for use in uses:
        assert (ROOT / use.path).is_file(), use
        assert len(use.reason) > 10, use
