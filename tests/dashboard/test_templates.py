"""The source of the templates: lines that a person can review."""

from __future__ import annotations

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
