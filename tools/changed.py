"""The tests of what has changed since a commit, for ``dev.py test --changed``.

``tests/reach.json`` has for each function of the package the tests that call it, those of its subject first,
as ``tools/reach.py`` has recorded them. Each changed function contributes its tests, until their recorded
costs exceed `BUDGET_S`. A changed file of tests runs as a whole. A statement in a changed ``.sql`` file, a
template or another file of the package belongs to the functions that name it.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from tools import suite
from tools.environment import DevError

ROOT: Final = suite.ROOT
BUDGET_S: Final = 45.0
"""The processor time of the tests, so that they end within a minute on two cores together with the checks."""

UNRECORDED_S: Final = 0.2
"""What a test is assumed to cost that has not been recorded."""

REACH: Final = ROOT / "tests" / "reach.json"
MODULE: Final = ""
"""Stands for the lines of a module that are in no function."""

HUNK: Final = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")
STATEMENT: Final = re.compile(r"^-- (?:name|fragment): (\w+)")


class Choice(NamedTuple):
    """The tests of a change.

    Attributes:
        files: Changed files of tests, of which every test runs.
        tests: Test functions, in the order of their relevance.
        omitted: The number of recorded tests of the change that exceed the budget.
        untested: Changed files of which no test is known.
    """

    files: list[str]
    tests: list[str]
    omitted: int
    untested: list[str]

    def durations_s(self) -> dict[str, float]:
        """Return how long the chosen tests take, by file."""
        tests = suite.load()
        durations_s = {file: tests.duration_s(file) for file in self.files}
        for test in self.tests:
            file, _, name = test.partition("::")
            cost = tests.costs.get(file, {}).get(name)
            elapsed_s = cost.elapsed_s if cost else UNRECORDED_S
            durations_s[file] = durations_s.get(file, suite.IMPORT_S) + elapsed_s
        return durations_s


def git(*words: str) -> str:
    """Return what git prints."""
    command = ["git", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DevError(f"--changed needs git and a commit: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def base() -> str:
    """Return the commit that a change is compared with: where it left its upstream, or the last commit.

    Without changes and without an upstream, that is the commit before the last one.
    """
    if git(
        "for-each-ref", "--format=%(upstream)", git("rev-parse", "--symbolic-full-name", "HEAD").strip()
    ).strip():
        fork = git("merge-base", "HEAD", "@{upstream}").strip()
        if fork != git("rev-parse", "HEAD").strip():
            return fork
    return "HEAD" if git("status", "--porcelain").strip() else "HEAD~1"


def changed_lines(commit: str) -> dict[str, set[int]]:
    """Return the lines that differ from a commit, by file; new files that git does not know have all lines.

    A removed line counts as the one before it. ``A..B`` compares two commits, of which the second is read.
    """
    lines: defaultdict[str, set[int]] = defaultdict(set)
    path = ""
    for line in git("diff", "--unified=0", "--no-renames", "--no-color", commit).splitlines():
        if line.startswith("+++ "):
            path = line[6:]
        elif path and (hunk := HUNK.match(line)):
            start, count = int(hunk[1]), int(hunk[2] or 1)
            lines[path].update(range(start, start + max(count, 1)))
    if ".." not in commit:
        for path in git("ls-files", "--others", "--exclude-standard").splitlines():
            count = len((ROOT / path).read_bytes().splitlines())
            lines[path].update(range(1, count + 1))
    return {path: numbers for path, numbers in lines.items() if (ROOT / path).is_file()}


def functions_of(source: str, *, whole: bool = False) -> dict[int, str]:
    """Return the qualified name of the innermost function of each line.

    Args:
        source: The text of a module.
        whole: Include signatures and decorators, which run when the module is imported.
    """
    functions: dict[int, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}{child.name}"
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                end = child.end_lineno or child.lineno
                for line in range(first if whole else child.body[0].lineno, end + 1):
                    functions[line] = name
                visit(child, f"{name}.")
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            else:
                visit(child, prefix)

    visit(ast.parse(source), "")
    return functions


def load_reach() -> dict[str, dict[str, list[str]]]:
    """Return the tests of each function by file; without the file, none."""
    if not REACH.exists():
        return {}
    recorded = json.loads(REACH.read_text("utf-8"))
    tests = recorded["tests"]
    return {
        path: {name: [tests[place] for place in places] for name, places in functions.items()}
        for path, functions in recorded["functions"].items()
    }


class Changes:
    """Finds the tests of changed files.

    Args:
        reach: The tests by file and function.
    """

    def __init__(self, reach: dict[str, dict[str, list[str]]]) -> None:
        self._reach = reach
        self._sources = {
            path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
            for path in (ROOT / "pg_scheduler").rglob("*.py")
        }

    def tests_of(self, path: str, lines: set[int]) -> list[list[str]]:
        """Return the tests of each changed function of a file, or of each function that uses what changed."""
        if path.startswith("pg_scheduler") and path.endswith(".py"):
            names = functions_of(self._sources[path], whole=True) if path in self._sources else {}
            changed = {names.get(line, MODULE) for line in lines}
            return [self._reach.get(path, {}).get(name, []) for name in sorted(changed)]
        if path.endswith(".sql"):
            return [tests for name in statements(path, lines) for tests in self._users(f'"{name}"')]
        if path.startswith("pg_scheduler"):
            return self._users(f'{Path(path).name}"')
        return []

    def _users(self, text: str) -> list[list[str]]:
        """Return the tests of each function whose source has a text."""
        tests = []
        for path, source in self._sources.items():
            if text in source:
                names = functions_of(source, whole=True)
                numbers = [number for number, line in enumerate(source.splitlines(), 1) if text in line]
                functions = {names.get(number, MODULE) for number in numbers}
                tests += [self._reach.get(path, {}).get(name, []) for name in sorted(functions)]
        return tests


def statements(path: str, lines: set[int]) -> Iterator[str]:
    """Yield the names of the statements of a file that have changed lines."""
    name, names = "", set()
    for number, line in enumerate((ROOT / path).read_text("utf-8").splitlines(), 1):
        if header := STATEMENT.match(line):
            name = header[1]
        if number in lines and name:
            names.add(name)
    yield from sorted(names)


def guards(paths: Iterable[str]) -> list[str]:
    """Return the tests that notice the removal of a guard in these files."""
    table = tomllib.loads((ROOT / "tools" / "mutations.toml").read_text("utf-8"))["mutation"]
    changed = set(paths)
    return [
        test
        for mutation in table
        if any(change["file"] in changed for change in mutation["changes"])
        for test in mutation["tests"]
    ]


def users_of(module: str) -> list[str]:
    """Return the files of tests that import a module of ``tests`` or ``tools``."""
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, last = name.rpartition(".")
    pattern = re.compile(rf"\b{re.escape(name)}\b|from {re.escape(package)} import .*\b{last}\b")
    return [file for file in suite.files() if pattern.search((ROOT / file).read_text("utf-8"))]


def choose(lines: dict[str, set[int]]) -> Choice:
    """Return the tests of changed lines."""
    recorded = suite.load().costs
    changes = Changes(load_reach())
    files, functions, untested = [], [guards(lines)], []
    for path in sorted(lines):
        if path.startswith("tests/") and Path(path).name.startswith("test_"):
            files.append(path)
        elif path.startswith(("tests/", "tools/")) and path.endswith(".py"):
            users = users_of(path)
            functions += [[f"{file}::{name}" for name in recorded.get(file, {})] for file in users]
        elif tests := changes.tests_of(path, lines[path]):
            functions += tests
        else:
            untested.append(path)
    chosen: dict[str, None] = {}
    omitted = set()
    total_s = 0.0
    for turn in zip_longest(*functions):
        for test in turn:
            if test is None or test in chosen:
                continue
            file, _, name = test.partition("::")
            cost = recorded.get(file, {}).get(name)
            cost_s = cost.processor_s if cost else UNRECORDED_S
            if file in files or (cost and cost.is_slow and cost_s > UNRECORDED_S):
                continue
            if total_s + cost_s > BUDGET_S:
                omitted.add(test)
                continue
            chosen[test] = None
            total_s += cost_s
    return Choice(files, list(chosen), len(omitted), untested)
