"""Tests reach inside the engine by few doors, so that its modules can move."""

from __future__ import annotations

from typing import Final

from tests.support import inside
from tools.environment import ROOT
from tools.figures.outer import private_attributes, private_tests
from tools.figures.source import Sources

MAX_FILES: Final = 300
"""Files of tests that import private modules. Lower it when there are fewer."""

MAX_ATTRIBUTES: Final = 60
"""Uses of private attributes in tests/api, the folder of the public door. Lower it when there are fewer."""

MAX_NAMES: Final = 80
"""Names of tests/support/inside.py: with many more, it would be a list of the engine and no door."""

REMEDY: Final = (
    "take what the test needs from a public module, the fixture world, an event or tests/support/inside.py, "
    "and add a name there only if several files need it"
)


def test_few_test_files_import_private_modules() -> None:
    modules = Sources(ROOT, "tests").modules.values()
    tests = [module for module in modules if module.path.name.startswith("test_")]
    number = len(private_tests(Sources(ROOT), tests))
    assert number <= MAX_FILES, f"{number} test files import private modules: {REMEDY}"


def test_tests_of_the_public_door_use_few_private_attributes() -> None:
    modules = Sources(ROOT, "tests").modules
    uses = {
        name: number
        for name, module in modules.items()
        if name.startswith("tests.api.test_") and (number := private_attributes(module))
    }
    number = sum(uses.values())
    assert number <= MAX_ATTRIBUTES, f"{number} uses of private attributes in tests/api: {REMEDY}; {uses}"


def test_doors_are_few_and_stop_no_other_test() -> None:
    assert len(inside.__all__) <= MAX_NAMES, f"tests/support/inside.py has too many names: {REMEDY}"
    assert "support.inside" not in (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
