"""Write the reference pages, and the stub of the blocking methods: ``python -m tools.reference``.

With ``--check``, report the stale ones only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.environment import ROOT
from tools.reference.pages import rendered
from tools.reference.source import forget_files
from tools.reference.stub import STUB, stub

PAGES = ROOT / "docs" / "reference"
COMMAND = "python -m tools.reference"


def main(arguments: Sequence[str]) -> int:
    """Write the stub and the pages, or return 1 if one is stale."""
    if arguments not in ([], ["--check"]):
        sys.exit(f"usage: {COMMAND} [--check]")
    check = bool(arguments)
    stale = _renew(STUB, stub(), check=check)
    forget_files()  # the pages describe the stub too
    before = {page: page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md"))}
    for page, text in rendered(before).items():
        stale |= _renew(page, text, check=check)
    return int(check and stale)


def _renew(file: Path, text: str, *, check: bool) -> bool:
    """Write the file, or only report it, if it is stale. Return whether it was."""
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return False
    name = file.relative_to(ROOT).as_posix()
    if check:
        print(f"{name} is stale: run {COMMAND}")
    else:
        file.write_text(text, encoding="utf-8")
        print(f"{name} written")
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
