"""The Sphinx extension that completes pages when the documentation is built.

The files in ``docs/reference`` hold the prose. Their comments name the parts that come from signatures,
docstrings and commands; `tools.reference.pages` describes the form. `tools.reference.findings` completes the
pages about the doctor, `tools.reference.metrics` and `tools.reference.alerts` that about metrics,
`tools.reference.grants` that about the database. In the page about upgrading, a table of the public modules
takes the place of a comment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.environment import ROOT
from tools.reference.alerts import with_alerts
from tools.reference.findings import with_findings
from tools.reference.grants import with_grants
from tools.reference.metrics import with_metrics
from tools.reference.pages import complete
from tools.reference.source import PUBLIC_MODULES, module_docstring

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = ROOT / "docs"
PAGES = DOCS / "reference"
DOCTOR_PAGES = ("operations/doctor", "operations/runbook")
GRANTS_PAGE = "operations/database"
METRICS_PAGE = "operations/metrics"
MODULES_PAGE = "operations/upgrading"


def complete_reference() -> dict[str, str]:
    """Return the text of each reference page, by the name that Sphinx gives it."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md"))}
    return {f"{PAGES.name}/{page.stem}": text for page, text in complete(pages).items()}


def complete_findings() -> dict[str, str]:
    """Return the text of each page about the doctor, by the name that Sphinx gives it."""
    return {page: with_findings((DOCS / f"{page}.md").read_text(encoding="utf-8")) for page in DOCTOR_PAGES}


def complete_modules() -> dict[str, str]:
    """Return the text of the page with the public modules, by the name that Sphinx gives it."""
    purposes = {each: module_docstring(each).summary.removesuffix(".") for each in PUBLIC_MODULES}
    rows = [f"| `{each}` | {purpose.replace('``', '`')} |" for each, purpose in purposes.items()]
    table = "\n".join(["| Module | Purpose |", "|---|---|", *rows])
    page = (DOCS / f"{MODULES_PAGE}.md").read_text(encoding="utf-8")
    return {MODULES_PAGE: page.replace("<!-- modules -->", table)}


def complete_grants() -> dict[str, str]:
    """Return the text of the page about the database, by the name that Sphinx gives it."""
    return {GRANTS_PAGE: with_grants((DOCS / f"{GRANTS_PAGE}.md").read_text(encoding="utf-8"))}


def complete_metrics() -> dict[str, str]:
    """Return the text of the page about metrics, by the name that Sphinx gives it."""
    page = (DOCS / f"{METRICS_PAGE}.md").read_text(encoding="utf-8")
    return {METRICS_PAGE: with_alerts(with_metrics(page))}


def setup(app: Sphinx) -> dict[str, Any]:
    """Let Sphinx read the complete pages, at each build, since any docstring may have changed."""
    pages = (
        complete_reference()
        | complete_findings()
        | complete_grants()
        | complete_metrics()
        | complete_modules()
    )

    def complete_source(_: Sphinx, page: str, source: list[str]) -> None:
        source[0] = pages.get(page, source[0])

    app.connect("env-get-outdated", lambda *_: list(pages))
    app.connect("source-read", complete_source)
    return {"parallel_read_safe": True}
