"""Print the figures of this checkout, or how they differ from those of another commit."""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools.environment import ROOT, DevError
from tools.figures import engine, outer
from tools.figures.programs import archive

PYPROJECT: Final = "pyproject.toml"


def measure(root: Path) -> dict[str, int]:
    """Return all figures of a checkout."""
    return {**engine.figures(root), **outer.figures(root)}


def export(ref: str, folder: Path) -> None:
    """Write the files of a commit into a folder.

    A commit before the table of rings is read with that of today: what it lacks is unassigned.
    """
    with tarfile.open(fileobj=io.BytesIO(archive(ref))) as files:
        files.extractall(folder, filter="data")
    if "[tool.house]" not in (folder / PYPROJECT).read_text(encoding="utf-8"):
        (folder / PYPROJECT).write_bytes((ROOT / PYPROJECT).read_bytes())


def table(figures: Mapping[str, int], before: Mapping[str, int]) -> str:
    """Return the figures as lines; with those of before, only what changed."""
    if not before:
        return "".join(f"{number:8,}  {name}\n" for name, number in figures.items())
    lines = [
        f"{before.get(name, 0):8,} -> {number:8,}  {number - before.get(name, 0):+8,}  {name}\n"
        for name, number in figures.items()
        if number != before.get(name, 0)
    ]
    return "".join(lines) or "no figure changed\n"


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="dev.py figures", description=__doc__)
    parser.add_argument("--against", metavar="REF", help="print what changed since this commit")
    parser.add_argument("--list", metavar="FIGURE", help="print what a figure of the engine counts")
    words = parser.parse_args()
    if words.list is not None:
        names = [name for name in engine.LISTS if words.list in name]
        for name in names:
            print(name, *engine.LISTS[name](engine.Engine(ROOT)), sep="\n  ")
        return 0 if names else 2
    before: dict[str, int] = {}
    if words.against is not None:
        with TemporaryDirectory(prefix="figures-") as folder:
            export(words.against, Path(folder))
            before = measure(Path(folder))
    print(table(measure(ROOT), before), end="")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DevError as error:
        sys.exit(f"dev.py: {error}")
