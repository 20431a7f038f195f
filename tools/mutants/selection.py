"""Which tests a mutant meets: those that reach its function, by ``tests/reach.json`` or by their names.

That file names some tests of each function, those of its subject first; a function without such tests may
have been written since. The files that are named after a module have tests of it too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from tools.changed import MODULE, functions_of
from tools.mutants.mutant import Mutant
from tools.mutants.sql import HEADER
from tools.suite import SLOW_FOLDERS

MAX_FILES: Final = 3
"""How many files of tests a mutant meets that are named after its module, or import it."""

Reach = Mapping[str, Mapping[str, list[str]]]
"""The tests by file and function."""


class Selection:
    """Finds the tests of a mutant.

    Args:
        root: The checkout.
        package: The name of the package.
        reach: The recorded tests of each function.
    """

    def __init__(self, root: Path, package: str, reach: Reach) -> None:
        self._reach = reach
        self._sources = {
            file.relative_to(root).as_posix(): file.read_text("utf-8")
            for file in sorted((root / package).rglob("*.py"))
        }
        self._including = including(sorted((root / package).rglob("*.sql")))
        self._tests = {
            file.relative_to(root).as_posix(): file.read_text("utf-8")
            for file in sorted((root / "tests").rglob("test_*.py"))
            if file.relative_to(root).parts[1] not in SLOW_FOLDERS
        }

    def tests_of(self, mutant: Mutant) -> list[list[str]]:
        """Return the tests that reach a mutant, as pytest names them, in groups of which each may be enough.

        The recorded tests come first. They are some of many, so files follow that are named after the module.
        """
        places = [(mutant.path, mutant.function)]
        if mutant.path.endswith(".sql"):
            places = self._users(mutant)
        recorded = dict.fromkeys(
            test for path, function in places for test in self._reach.get(path, {}).get(function, [])
        )
        groups = [
            [test for test in recorded if self._has(test)],
            self._named_after([mutant.path, *(path for path, _ in places)]),
        ]
        return [group for group in groups if group]

    def _users(self, mutant: Mutant) -> list[tuple[str, str]]:
        """Return the functions that name the statement of a mutant, or one that includes it as a fragment.

        Those of the same folder come first. A module that names the statement outside of functions, as in a
        list of many, counts only if no function does.
        """
        statements = [mutant.function]
        for statement in statements:
            statements += sorted(self._including.get(statement, set()).difference(statements))
        names = re.compile(rf'"(?:{"|".join(statements)})"')
        users: set[tuple[str, str]] = set()
        for path, source in self._sources.items():
            lines = [source.count("\n", 0, name.start()) + 1 for name in names.finditer(source)]
            functions_by_line = functions_of(source) if lines else {}
            users.update((path, functions_by_line.get(line, MODULE)) for line in lines)
        folder = PurePosixPath(mutant.path).parent
        functions = [user for user in users if user[1] != MODULE] or users
        return sorted(functions, key=lambda user: (PurePosixPath(user[0]).parent != folder, user))

    def _has(self, test: str) -> bool:
        """Return whether a recorded test still exists."""
        file, _, name = test.partition("::")
        return f"def {name.rpartition('::')[2]}(" in self._tests.get(file, "")

    def _named_after(self, paths: list[str]) -> list[str]:
        """Return the files of tests that are named after these modules, those of their room first.

        Files that import one of the modules follow.
        """
        files: dict[str, None] = {}
        for path in dict.fromkeys(paths):
            parts = PurePosixPath(path).with_suffix("").parts
            room = parts[1] if len(parts) > 2 else ""
            stem = parts[-1].strip("_")
            named = [test for test in self._tests if re.fullmatch(rf"test_{stem}(_.*)?\.py", Path(test).name)]
            named.sort(key=lambda test: (room not in PurePosixPath(test).parts, test.count("_"), test))
            files |= dict.fromkeys(named)
        modules = "|".join(re.escape(path.removesuffix(".py").replace("/", ".")) for path in paths)
        imported = re.compile(rf"^\s*(?:from|import) (?:{modules})\b", re.MULTILINE)
        importing = (test for test, text in self._tests.items() if imported.search(text))
        return list(islice(dict.fromkeys([*files, *importing]), MAX_FILES))


def including(files: Iterable[Path]) -> dict[str, set[str]]:
    """Return the statements and fragments that include a fragment, by its name."""
    by_fragment: defaultdict[str, set[str]] = defaultdict(set)
    for file in files:
        # The text before the first header is followed by names and bodies in turns.
        _, *parts = HEADER.split(file.read_text("utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            for fragment in re.findall(r"\{(\w+)\}", body):
                by_fragment[fragment].add(name)
    return by_fragment
