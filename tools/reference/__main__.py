"""Write the reference pages: ``python -m tools.reference``; with ``--check``, report stale pages only."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tools.environment import ROOT
from tools.reference.pages import rendered

PAGES = ROOT / "docs" / "reference"
COMMAND = "python -m tools.reference"


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or return 1 if one is stale."""
    if arguments not in ([], ["--check"]):
        sys.exit(f"usage: {COMMAND} [--check]")
    before = {page: page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md"))}
    stale = {page: text for page, text in rendered(before).items() if text != before[page]}
    for page, text in stale.items():
        name = page.relative_to(ROOT).as_posix()
        if arguments:
            print(f"{name} is stale: run {COMMAND}")
        else:
            page.write_text(text, encoding="utf-8")
            print(f"{name} written")
    return 1 if arguments and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
