"""The source of the templates: lines that a person can review."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import Environment

from pg_scheduler import dashboard

TEMPLATES = Path(dashboard.__file__).parent / "templates"
MAX_COLUMNS = 120


@pytest.mark.parametrize("path", sorted(TEMPLATES.iterdir()), ids=lambda path: path.name)
def test_lines_of_templates_are_short(path: Path) -> None:
    lengths = [len(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert max(lengths) <= MAX_COLUMNS


@pytest.mark.parametrize("path", sorted(TEMPLATES.iterdir()), ids=lambda path: path.name)
def test_no_text_of_an_expression_has_a_line_break(path: Path) -> None:
    """Such a text may be a command that people copy."""
    tokens = Environment(autoescape=True).lex(path.read_text(encoding="utf-8"))
    assert [text for _, kind, text in tokens if kind == "string" and "\n" in text] == []


@pytest.mark.parametrize("path", sorted(TEMPLATES.iterdir()), ids=lambda path: path.name)
def test_no_attribute_that_people_read_has_a_line_break(path: Path) -> None:
    """A browser shows the break of a title, and leaves that of a placeholder out."""
    text = re.sub(r"({%.*?%}|{#.*?#})\n?", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    tags = re.findall(r"<[a-zA-Z][^<>]*>", re.sub(r"{{.*?}}", "", text, flags=re.DOTALL))
    attributes = [each for tag in tags for each in re.findall(r'([\w-]+)="([^"]*)"', tag)]
    assert [(name, value) for name, value in attributes if "\n" in value and name != "class"] == []
