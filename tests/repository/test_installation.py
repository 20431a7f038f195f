"""The commands of the documentation install this code base."""

from __future__ import annotations

import re

import pytest

from tests.docs.snippets import ROOT

PAGES = ("assistants", "cli", "dashboard", "metrics", "tracing")


@pytest.mark.parametrize("page", PAGES)
def test_operations_page_installs_its_extra_from_a_checkout(page: str) -> None:
    text = (ROOT / "docs" / "operations" / f"{page}.md").read_text(encoding="utf-8")
    assert re.search(r"pip install '\.\[", text)
    assert "pip install 'pg-scheduler" not in text, "the registry has another code base"
