"""What a code host shows in the place of the parts that the build generates.

A page has comments such as ``<!-- reference: pg_scheduler Scheduler -->``, in whose place the build puts
signatures, docstrings and tables. A code host shows the file itself, in which a comment is invisible. So
below each comment stands a listing, which is only for the code host, between two further comments::

    <!-- listing -->
    <!-- end of listing -->

The listing of public names has the first sentence of each, and a link to the site. That of a table or a
statement is the same as on the site. The build leaves listings out. Run
``python3 -m tools.reference.listings`` after a change of a public name, of the first sentence of a docstring,
or of what a table is made from. A test compares the files with what this module would write.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tools.environment import ROOT
from tools.reference.alerts import COMMENT as ALERTS
from tools.reference.alerts import with_alerts
from tools.reference.commands import COMMENT as COMMANDS
from tools.reference.commands import summaries_of_commands
from tools.reference.findings import COMMENT as FINDINGS
from tools.reference.findings import with_findings
from tools.reference.grants import COMMENT as GRANTS
from tools.reference.grants import with_grants
from tools.reference.llms import SITE
from tools.reference.metrics import COMMENT as METRICS
from tools.reference.metrics import with_metrics
from tools.reference.modules import COMMENT as MODULES
from tools.reference.modules import with_modules
from tools.reference.pages import (
    COMMENT,
    Renderer,
    Target,
    doc_of,
    is_property,
    public_functions,
    targets_of,
)
from tools.reference.source import find

DOCS: Final = ROOT / "docs"
WIDTH: Final = 120
OLD_NAMES: Final = "## Names of pg-scheduler 0.2"
"""The heading above a table whose first column has methods that a list leaves out."""

_BEGIN: Final = "<!-- listing -->"
_END: Final = "<!-- end of listing -->"
_LISTING: Final = re.compile(rf"\n{_BEGIN}\n.*?^{_END}$", re.MULTILINE | re.DOTALL)
_OLD_NAME: Final = re.compile(r"^\| `(\w+)\(\)`", re.MULTILINE)


def without_listings(page: str) -> str:
    """Return a page without its listings."""
    return _LISTING.sub("", page)


def pages_with_listings() -> dict[Path, str]:
    """Return the text of each page that has listings, by its path."""
    pages = {
        path: without_listings(path.read_text(encoding="utf-8"))
        for path in sorted(DOCS.rglob("*.md"))
        if "_build" not in path.relative_to(DOCS).parts
    }
    reference = {path: text for path, text in pages.items() if path.parent.name == "reference"}
    targets = targets_of(reference)
    texts = {path: _with_listings(path, text, targets) for path, text in pages.items()}
    return {path: text for path, text in texts.items() if text != pages[path]}


def _with_listings(path: Path, page: str, targets: Mapping[str, Target]) -> str:
    if path.parent.name == "reference":
        old_names = set(_OLD_NAME.findall(page.partition(OLD_NAMES)[2]))
        page = COMMENT.sub(
            lambda comment: _listing(comment[0], _names(path, comment, targets, old_names)), page
        )
        return page.replace(
            COMMANDS, _listing(COMMANDS, summaries_of_commands(f"{SITE}reference/commands.html"))
        )
    page = GRANTS.sub(
        lambda grants: _listing(
            grants[0], f"<!-- snippet: file {grants['role']}.sql -->\n{with_grants(grants[0])}"
        ),
        page,
    )
    page = METRICS.sub(lambda metrics: _listing(metrics[0], with_metrics(metrics[0])), page)
    for comment, complete in ((ALERTS, with_alerts), (FINDINGS, with_findings), (MODULES, with_modules)):
        page = re.sub(
            rf"^{comment}$",
            _listing(comment, complete(comment)).replace("\\", r"\\"),
            page,
            flags=re.MULTILINE,
        )
    return page


def _listing(comment: str, text: str) -> str:
    return f"{comment}\n{_BEGIN}\n\n{text}\n\n{_END}"


def _names(path: Path, comment: re.Match[str], targets: Mapping[str, Target], old_names: set[str]) -> str:
    """Return the list of the names in a comment; for a comment without names the docstring of the module."""
    module, *names = comment["what"].split()
    if not names:
        rendered = Renderer(path, targets).render(comment[0])
        paragraphs = rendered.removeprefix("<!-- generated -->").removesuffix("<!-- end -->").strip()
        # A code host has no use for examples that no test would run.
        return re.sub(r":?\n\n```.*?^```$", ".", paragraphs, flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for name in names for line in _lines(module, name, targets, old_names))


def _lines(module: str, name: str, targets: Mapping[str, Target], old_names: set[str]) -> Iterator[str]:
    definition = find(module, name)
    call = f"{name}()" if f"{name}()" in targets else name
    yield from _entry("- ", call, definition.doc.summary, targets[call])
    if not definition.body:
        return
    for method, (_, nodes) in public_functions(definition).items():
        if method not in old_names and not is_property(nodes[-1]):
            summary = doc_of(nodes[-1]).summary
            yield from _entry("  - ", f"{method}()", summary, targets[f"{name}.{method}()"])


def _entry(bullet: str, name: str, summary: str, target: Target) -> Iterator[str]:
    """Yield the lines of an item: the name with its link, and below it the sentence."""
    yield f"{bullet}[`{name}`]({SITE}reference/{target.page.stem}.html#{target.anchor}):"
    indent = " " * len(bullet)
    plain = re.sub(r"``(.+?)``", r"`\1`", " ".join(summary.split()))
    yield from textwrap.wrap(
        plain, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


if __name__ == "__main__":
    for file, content in pages_with_listings().items():
        file.write_text(content, encoding="utf-8")
