"""The index of the documentation for assistants has each page, with what it is about."""

from __future__ import annotations

import re

import pytest

from tools.reference.extension import DOCS, complete_pages, texts_of
from tools.reference.llms import (
    MAX_HEADINGS,
    SITE,
    entries_of,
    first_sentence,
    headings_of,
    index_of,
    title_of,
)

NAMES = sorted(
    page.relative_to(DOCS).with_suffix("").as_posix()
    for page in DOCS.rglob("*.md")
    if "_build" not in page.relative_to(DOCS).parts
)
TEXTS = texts_of(NAMES, complete_pages())


def test_index_has_each_page_once_with_its_title() -> None:
    entries = re.findall(rf"^- \[(.+)\]\({re.escape(SITE)}(.+)\.md\)", index_of(TEXTS), re.MULTILINE)
    assert sorted(page for _, page in entries) == [name for name in NAMES if name != "index"]
    assert all(title == title_of(TEXTS[page]) for title, page in entries)


def test_index_begins_with_the_subject_and_has_the_sections_of_the_contents() -> None:
    title, _, summary, *_ = index_of(TEXTS).splitlines()
    assert title == "# pg_scheduler"
    assert summary.startswith("> pg_scheduler runs background jobs and recurring tasks for Python services.")
    sections = re.findall(r"^## (.+)$", index_of(TEXTS), re.MULTILINE)
    assert sections == list(dict.fromkeys(entry.section for entry in entries_of(TEXTS["index"])))


def test_descriptions_are_whole_markdown() -> None:
    for name, text in TEXTS.items():
        description = first_sentence(text)
        assert description.count("`") % 2 == 0 or description.endswith("..."), name
        assert "**" not in description, name
        assert len(description) >= 20, name


def test_pages_include_the_files_that_they_show() -> None:
    assert not [name for name, text in TEXTS.items() if "include}" in text]
    assert "```yaml\n# Ten minutes" in TEXTS["operations/health"]
    assert "\nreadinessProbe:" in TEXTS["operations/health"]


def test_reference_pages_are_complete_as_markdown() -> None:
    assert "<!-- reference:" not in TEXTS["reference/scheduler"]
    assert "## [Unreleased]" in TEXTS["changelog"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# A\n\nIt [runs](b.md#c) `jobs`. Then more.\n", "It runs `jobs`. Then more."),
        (f"# A\n\n**It runs. All** {'of it ' * 15}here. Then more.\n", f"It runs. All {'of it ' * 15}here."),
        ("# A\n\nSources: a and b.\n", "Sources: a and b."),
        ("# A\n\n% a comment\n\n<!-- x -->\n\n## B\n\n| a |\n|---|\n\nThe\nprose: a\n", "The prose: a."),
        ("# A\n\n```python\n\nnot prose. no\n\n```\n\nProse.\n", "Prose."),
        ("# A\n\n- a list\n", ""),
        (f"# A\n\n{'word ' * 60}\n", f"{'word ' * 39}word ..."),
    ],
)
def test_first_sentence_is_prose_without_links(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


def test_headings_are_those_of_sections_outside_of_code() -> None:
    assert headings_of("# A\n\n## B\n\n```text\n## C\n```\n\n### D\n\n## E\n") == ["B", "E"]
    many = headings_of("".join(f"## {number}\n" for number in range(MAX_HEADINGS + 1)))
    assert many[-2:] == [str(MAX_HEADINGS - 1), "..."]


def test_page_without_a_title_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no title"):
        title_of("prose")
