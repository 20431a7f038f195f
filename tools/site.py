"""Check that the built documentation loads nothing from other sites: ``python -m tools.site FOLDER``.

Pages without a CDN and without tracking work offline. Links to other sites are allowed. The index of the
search and the copy buttons must be part of the site.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

PARTS: Final = ("search.html", "searchindex.js", "_static/searchtools.js", "_static/copybutton.js")
LINKS: Final = {"a", "area"}
"""The elements that load nothing until a reader follows them."""
ATTRIBUTES: Final = {"action", "data", "href", "poster", "src", "srcset"}

_ELSEWHERE: Final = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
_IN_STYLES: Final = re.compile(r"(?:url\(|@import)\s*[\"']?\s*((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)


class _Page(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at the attributes of an element."""
        for name, value in attrs:
            if tag not in LINKS and name in ATTRIBUTES and value and _ELSEWHERE.match(value):
                self.found.append(f"<{tag}> loads {value}")


def problems(site: Path) -> Iterator[str]:
    """Yield a sentence for everything that a page loads from another site, and for each missing part."""
    for name in PARTS:
        if not (site / name).is_file():
            yield f"{name} is missing"
    for file in sorted(site.rglob("*")):
        if file.suffix not in {".html", ".css", ".svg"}:
            continue
        text, name = file.read_text(encoding="utf-8"), file.relative_to(site).as_posix()
        page = _Page()
        page.feed(text if file.suffix == ".html" else "")
        yield from (f"{name}: {each}" for each in page.found)
        yield from (f"{name}: a style loads {url}" for url in _IN_STYLES.findall(text))


def main(arguments: Sequence[str]) -> int:
    """Print the problems of a site, and return 1 if there is one."""
    if len(arguments) != 1:
        sys.exit("usage: python -m tools.site FOLDER")
    found = list(problems(Path(arguments[0])))
    for problem in found:
        print(problem)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
