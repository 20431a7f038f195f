"""The table of kinds of values in the reference is that of the tests."""

from __future__ import annotations

from tests.docs.snippets import PAGES
from tests.support.values import table


def test_reference_has_the_table_of_the_tests() -> None:
    (page,) = [page for page in PAGES if page.parts[-2:] == ("reference", "arguments.md")]
    assert table() in page.read_text(encoding="utf-8"), "run: python3 dev.py renew"
