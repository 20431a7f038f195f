"""The commands of the documentation install this code base."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.snippets import PAGES, ROOT, page_id

WITH_AN_EXTRA = ("assistants", "cli", "dashboard", "metrics", "sentry", "tracing")


@pytest.mark.parametrize("page", WITH_AN_EXTRA)
def test_operations_page_installs_its_extra_from_a_checkout(page: str) -> None:
    text = (ROOT / "docs" / "operations" / f"{page}.md").read_text(encoding="utf-8")
    assert re.search(r"pip install '\./pg-scheduler\[", text)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_page_installs_the_library_from_a_checkout(page: Path) -> None:
    """The package index has another code base by this name."""
    installed = re.findall(r"pip install ([^`\n]*)", page.read_text(encoding="utf-8"))
    assert [words for words in installed if re.search(r"(?<![/\w])pg[-_]scheduler(?!/)", words)] == []
