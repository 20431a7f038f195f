"""Write all files that are derived from others, and say what changed: ``dev.py renew [--all]``.

`DERIVED` lists them. Those that need a database are the work of tests, which write what they would compare.
What needs a browser, uv or minutes is not renewed, but named with its command; ``--all`` also makes what the
browser makes.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools import diagrams, package, tier
from tools.dashboards import __main__ as dashboards_program
from tools.environment import ROOT, DevError, call
from tools.reference import listings, names, stub

TESTS: Final = ROOT / "tests"
BROWSER: Final = "Chromium"
NIGHTLY: Final = ROOT / ".github" / "workflows" / "nightly.yml"
_STORIES: Final = re.compile(r"^from tests\.support\.stories import .*\b(LONG|NIGHTLY)\b", re.MULTILINE)
_STORY_STEP: Final = re.compile(
    r"( {10}python dev\.py test )([^:]*)(\n {8}env:\n {10}PG_SCHEDULER_PROTOCOL: long\n)"
)
_VALUE_TABLE: Final = re.compile(r"^\| Value \| .*\n(?:\|.*\n)+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Derived:
    """Files that a program writes.

    Attributes:
        what: What they are.
        files: Their paths, as patterns below the checkout.
        texts: Returns each file with its text; None if `command` writes them.
        compared_by: The test that compares them, unless a test of this table does.
        command: What writes them, if it takes more than is at hand.
        takes: What that needs.
    """

    what: str
    files: tuple[str, ...]
    texts: Callable[[], Mapping[Path, str]] | None = None
    compared_by: str = ""
    command: str = ""
    takes: str = ""

    def paths(self) -> list[Path]:
        """Return the files that there are."""
        return sorted({path for pattern in self.files for path in ROOT.glob(pattern)})


def drawn() -> dict[Path, str]:
    """Return the diagrams."""
    return {
        path.with_suffix(".svg"): diagrams.draw(path.read_text(encoding="utf-8"))
        for path in diagrams.sources()
    }


def shapes() -> dict[Path, str]:
    """Return the schemas of what commands write as JSON."""
    from tests.cli.shapes import keys_of_shapes  # noqa: PLC0415 - the package of the command line is large

    return {TESTS / "cli" / "golden" / "shapes.txt": keys_of_shapes()}


def remedies() -> dict[Path, str]:
    """Return the sentence of the remedy of each finding."""
    from pg_scheduler.inspect.doctor.codes import ADVICE, FindingCode  # noqa: PLC0415

    text = "".join(f"{code}: {ADVICE[code].remedy}\n" for code in FindingCode)
    return {TESTS / "inspect" / "doctor" / "remedies.txt": text}


def values() -> dict[Path, str]:
    """Return the page of the arguments with the table of the kinds of values."""
    from tests.support.values import table  # noqa: PLC0415

    page = ROOT / "docs" / "reference" / "arguments.md"
    return {page: _VALUE_TABLE.sub(lambda _: table(), page.read_text(encoding="utf-8"), count=1)}


def stories() -> list[str]:
    """Return the files of tests that have longer stories at night."""
    paths = [path for path in TESTS.rglob("test_*.py") if _STORIES.search(path.read_text(encoding="utf-8"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def nightly() -> dict[Path, str]:
    """Return the workflow of the night with the list of these files."""
    wrapper = textwrap.TextWrapper(
        110, initial_indent=" " * 10, subsequent_indent=" " * 10, break_on_hyphens=False
    )
    command = wrapper.fill(f"python dev.py test {' '.join(stories())}")
    text = NIGHTLY.read_text(encoding="utf-8")
    return {NIGHTLY: _STORY_STEP.sub(lambda match: command + match[3], text)}


def contents() -> dict[Path, str]:
    """Return the lists of the files of the distributions, which are built for it."""
    with tempfile.TemporaryDirectory(prefix="renew-") as folder:
        lists = package.read_contents(package.build(Path(folder) / "dist"))
    return {package.CONTENTS / name: text for name, text in lists.items()}


GOLDEN: Final = ("migrations/schema.txt", "tests/cli/golden/*-[0-9]*.txt")
"""The files that tests with a database write: those that call ``golden()``."""

DERIVED: Final = (
    Derived("public names", ("tests/public_names.txt",), lambda: {names.FILE: names.text_of_names()}),
    Derived(
        "stub of the blocking methods", ("pg_scheduler/sync/methods.pyi",), lambda: {stub.STUB: stub.stub()}
    ),
    Derived("dashboards of Grafana", ("pg_scheduler/ops/grafana/*.json",), dashboards_program.texts),
    Derived("shapes of commands", ("tests/cli/golden/shapes.txt",), shapes),
    Derived("remedies of findings", ("tests/inspect/doctor/remedies.txt",), remedies),
    Derived("table of values", ("docs/reference/arguments.md",), values),
    Derived("listings of the reference", ("docs/**/*.md",), listings.pages_with_listings),
    Derived("diagrams", ("docs/figures/*.txt",), drawn),
    Derived("files of the nightly workflow", (".github/workflows/nightly.yml",), nightly),
    Derived(
        "costs of tests, and the tier",
        ("tests/durations.json", "tests/tier.txt"),
        tier.texts,
        compared_by="tests/repository/test_suite.py",
    ),
    Derived("contents of the distributions", ("tools/contents/*.txt",), contents, "python3 dev.py package"),
    Derived("tables, and what commands print", GOLDEN, compared_by="the tests that call golden()"),
    Derived(
        "pictures and accessibility trees of pages",
        ("docs/figures/*.png", "tests/browser/trees/*.yml"),
        compared_by="tests/browser/test_trees.py",
        command="python3 dev.py screenshots",
        takes=BROWSER,
    ),
    Derived(
        "picture of the demo",
        ("docs/figures/demo.svg",),
        compared_by="tests/repository/test_picture.py",
        command="python3 dev.py picture",
        takes="half a minute of a demo",
    ),
    Derived(
        "tests of each function",
        ("tests/reach.json",),
        compared_by="tests/repository/test_suite.py",
        command="python3 -m tools.reach",
        takes="ten minutes",
    ),
    Derived(
        "lock files",
        ("requirements/*.txt",),
        compared_by="tests/repository/test_dev.py",
        command="python3 -m tools.lock",
        takes="uv and a network",
    ),
)
"""All files that are derived from others. The order is that of writing."""


def golden_tests() -> list[str]:
    """Return the tests that write what they would compare."""
    return [
        f"{path.relative_to(ROOT).as_posix()}::{name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        if "from tests.support.golden import golden" in (text := path.read_text(encoding="utf-8"))
        for name in _callers(ast.parse(text), "golden")
    ]


def _callers(node: ast.AST, function: str, prefix: str = "") -> Iterable[str]:
    """Yield the tests within a node that call a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _callers(child, function, f"{prefix}{child.name}::")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = (inner.func for inner in ast.walk(child) if isinstance(inner, ast.Call))
            if any(isinstance(called, ast.Name) and called.id == function for called in calls):
                yield prefix + child.name


def write(derived: Derived) -> None:
    """Write the files of an entry, of which those without a text of their own are the work of tests."""
    if derived.texts is not None:
        for path, text in derived.texts().items():
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
    else:
        os.environ["PG_SCHEDULER_RENEW"] = "1"
        # Each test compares the file that it has written, so that one that fails is no difference.
        if call([sys.executable, "-m", "pytest", "-q", "--no-header", "--numprocesses=2", *golden_tests()]):
            raise DevError("a test failed before it wrote its file; see above")


def compare(before: Mapping[Path, bytes], after: Mapping[Path, bytes]) -> list[str]:
    """Return a line for each file that changed."""
    lines = []
    for path in sorted({*before, *after}):
        old, new = before.get(path, b"").splitlines(), after.get(path, b"").splitlines()
        if before.get(path) != after.get(path):
            added, removed = _missing(new, old), _missing(old, new)
            lines.append(f"{path.relative_to(ROOT).as_posix()}: +{added} -{removed} lines")
    return lines


def _missing(lines: Iterable[bytes], others: Iterable[bytes]) -> int:
    """Return how many lines are not among others, each as often as it occurs."""
    counts: dict[bytes, int] = {}
    for line in others:
        counts[line] = counts.get(line, 0) + 1
    missing = 0
    for line in lines:
        if counts.get(line, 0):
            counts[line] -= 1
        else:
            missing += 1
    return missing


def snapshot(derived: Derived) -> dict[Path, bytes]:
    """Return the files of an entry with their contents; of a diagram, its picture."""
    paths = (
        derived.paths()
        if derived.texts is not drawn
        else [path.with_suffix(".svg") for path in derived.paths()]
    )
    return {path: path.read_bytes() for path in paths if path.exists()}


def main() -> int:
    """Renew the files and print what changed."""
    parser = argparse.ArgumentParser(prog="dev.py renew", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also what takes a browser")
    words = parser.parse_args()
    left = []
    for derived in DERIVED:
        if derived.command:
            left.append(derived)
            continue
        before = snapshot(derived)
        write(derived)
        changes = compare(before, snapshot(derived))
        print(
            f"{derived.what}: {'unchanged' if not changes else ''}".rstrip(), *changes, sep="\n  ", flush=True
        )
    code = 0
    for derived in left:
        if words.all and derived.takes == BROWSER:
            code = call([sys.executable, "dev.py", "screenshots"])
            continue
        print(f"{derived.what}: not renewed; {derived.command} takes {derived.takes}", flush=True)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DevError as error:
        sys.exit(f"dev.py: {error}")
