"""A plugin of pytest that selects tests by the tier, or by a list.

``dev.py`` loads it by ``-p tools.selection``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import suite


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("selection")
    group.addoption("--tier", action="store_true", help="run the tests of tests/tier.txt only")
    group.addoption("--rest", action="store_true", help="run the tests that are not of tests/tier.txt")
    group.addoption("--only", metavar="FILE", help="run the test functions that the lines of a file name")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the other tests."""
    functions = [item.nodeid.partition("[")[0] for item in items]
    if config.getoption("--tier") or config.getoption("--rest"):
        tests = suite.load()
        has_tier = config.getoption("--tier")
        is_selected = [
            tests.is_in_tier(function, is_slow=item.get_closest_marker("slow") is not None) == has_tier
            for item, function in zip(items, functions, strict=True)
        ]
    elif config.getoption("--only"):
        names = set(Path(config.getoption("--only")).read_text("utf-8").splitlines())
        is_selected = [function in names or function.partition("::")[0] in names for function in functions]
    else:
        return
    others = [item for item, selected in zip(items, is_selected, strict=True) if not selected]
    items[:] = [item for item, selected in zip(items, is_selected, strict=True) if selected]
    if others:
        config.hook.pytest_deselected(items=others)
