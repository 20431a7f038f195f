"""Check that tests notice when a guard is removed: ``python -m tools.mutations [NAME...]``.

Each mutation of ``mutations.toml`` removes one guard from the SQL or the Python of the library, in a
temporary copy of the tree, and runs the tests that must fail then. Without names, all mutations are checked,
which takes some minutes. ``--list`` prints them. The exit status is 1 if a test passes although its guard is
removed.

The table has at most `MAX_MUTATIONS` guards, those of the core: without one of them, one of the `HARMS`
happens and nothing raises an error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.environment import exit_on_signals

ROOT: Final = Path(__file__).resolve().parents[1]
TABLE: Final = Path(__file__).with_suffix(".toml")
COPIED: Final = (
    *("pg_scheduler", "pg_scheduler_plugins", "migrations", "tests", "tools", "docs"),
    *("CHANGELOG.md", "pyproject.toml"),
)
MAX_MUTATIONS: Final = 150
HARMS: Final = {
    "twice": "an attempt or what it writes counts twice, or for an attempt that does not hold the job",
    "lost": "a job, an outcome, a message or a value is lost, or a job waits without end",
    "early": "a job begins over a limit, out of order, or before what it waits for",
    "others": "a lock or a refused row of the application stops the work of others",
    "access": "a person sees or changes what they have no right to, or a foreign text breaks its parser",
}
"""What the guards of the table prevent."""

FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
TIMEOUT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement in a file.

    Attributes:
        file: The path in the tree.
        find: The text that occurs once in the file.
        replace: The text in its place.
    """

    file: str
    find: str
    replace: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """The removal of one guard.

    Attributes:
        harm: What happens without the guard, one of `HARMS`.
        tests: The tests that must fail, as pytest names them without parameters.
    """

    name: str
    harm: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]


def load() -> list[Mutation]:
    """Return the mutations of the table."""
    return [
        Mutation(
            row["name"],
            row["harm"],
            tuple(Change(**change) for change in row["changes"]),
            tuple(row["tests"]),
        )
        for row in tomllib.loads(TABLE.read_text("utf-8"))["mutation"]
    ]


def apply(mutation: Mutation, tree: Path) -> None:
    """Change the files of a tree.

    Raises:
        ValueError: A text does not occur exactly once.
    """
    for change in mutation.changes:
        path = tree / change.file
        text = path.read_text("utf-8")
        count = text.count(change.find)
        if count != 1:
            raise ValueError(
                f"mutation {mutation.name}: its text occurs {count} times in {change.file}, not once; "
                f"correct tools/{TABLE.name}: {change.find!r}"
            )
        path.write_text(text.replace(change.find, change.replace), "utf-8")


def run(mutation: Mutation, tree: Path) -> list[str]:
    """Apply a mutation to a copied tree, run its tests, and return those that pass."""
    apply(mutation, tree)
    command = [sys.executable, "-m", "pytest", "-q", "--no-cov", "--tb=no", "--show-capture=no", "-rfE"]
    done = subprocess.run(
        [*command, *mutation.tests],
        cwd=tree,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode not in {0, 1}:
        sys.exit(f"mutation {mutation.name}: pytest did not run\n{done.stdout}{done.stderr}")
    failed = {name.partition("[")[0] for name in FAILED.findall(done.stdout)}
    return [test for test in mutation.tests if test not in failed]


def copy_tree(target: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy2(source, target / name)


def main() -> int:
    """Check the mutations that the arguments name, or all."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the mutations and their tests")
    arguments = parser.parse_args()
    mutations = {mutation.name: mutation for mutation in load()}
    if unknown := set(arguments.names) - set(mutations):
        parser.error(f"unknown mutations {sorted(unknown)}; --list prints them")
    survived = False
    for name in arguments.names or mutations:
        if arguments.list:
            print(f"{name} ({mutations[name].harm})", *mutations[name].tests, sep="\n    ")
            continue
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            copy_tree(Path(folder))
            passed = run(mutations[name], Path(folder))
        survived = survived or bool(passed)
        count = len(mutations[name].tests)
        print(f"{name}: {count - len(passed)} of {count} tests fail", flush=True)
        for test in passed:
            print(f"    passes although the guard is removed: {test}", flush=True)
    return int(survived)


if __name__ == "__main__":
    exit_on_signals()
    sys.exit(main())
