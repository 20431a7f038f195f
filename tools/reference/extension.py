"""The Sphinx extension that completes pages when the documentation is built.

The files in ``docs/reference`` hold the prose. Their comments name the parts that come from signatures,
docstrings and commands; `tools.reference.pages` describes the form. `tools.reference.findings` completes the
pages about the doctor, `tools.reference.metrics` and `tools.reference.alerts` that about metrics,
`tools.reference.grants` that about the database, `tools.reference.modules` that about upgrading.
`tools.reference.listings` writes what a code host shows instead, which the build leaves out.
`tools.reference.programs` marks the new lines of a program in the tutorial. `tools.reference.llms` makes the
index for assistants of all pages. Screenshots become links to their files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.environment import ROOT
from tools.reference.alerts import with_alerts
from tools.reference.findings import with_findings
from tools.reference.grants import with_grants
from tools.reference.listings import without_listings
from tools.reference.llms import index_of
from tools.reference.metrics import with_metrics
from tools.reference.modules import with_modules
from tools.reference.pages import complete
from tools.reference.programs import with_new_lines

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_LITERAL_INCLUDE = re.compile(r"^```\{literalinclude\} (.+)\n((?::.+\n)*)```\n", re.MULTILINE)
_OPTION = re.compile(r"^:([a-z-]+): (.+)$", re.MULTILINE)
_INCLUDE = re.compile(r"^```\{include\} (.+)\n```\n", re.MULTILINE)

DOCS = ROOT / "docs"
PAGES = DOCS / "reference"
DOCTOR_PAGES = ("operations/doctor", "operations/runbook")
GRANTS_PAGE = "operations/database"
METRICS_PAGE = "operations/metrics"
MODULES_PAGE = "operations/upgrading"


def _source_of(page: str) -> str:
    """Return the text of a page, by the name that Sphinx gives it, without what only a code host shows."""
    return without_listings((DOCS / f"{page}.md").read_text(encoding="utf-8"))


def complete_reference() -> dict[str, str]:
    """Return the text of each reference page, by the name that Sphinx gives it."""
    pages = {page: without_listings(page.read_text(encoding="utf-8")) for page in sorted(PAGES.glob("*.md"))}
    return {f"{PAGES.name}/{page.stem}": text for page, text in complete(pages).items()}


def complete_findings() -> dict[str, str]:
    """Return the text of each page about the doctor, by the name that Sphinx gives it."""
    return {page: with_findings(_source_of(page)) for page in DOCTOR_PAGES}


def complete_modules() -> dict[str, str]:
    """Return the text of the page with the public modules, by the name that Sphinx gives it."""
    return {MODULES_PAGE: with_modules(_source_of(MODULES_PAGE))}


def complete_grants() -> dict[str, str]:
    """Return the text of the page about the database, by the name that Sphinx gives it."""
    return {GRANTS_PAGE: with_grants(_source_of(GRANTS_PAGE))}


def complete_metrics() -> dict[str, str]:
    """Return the text of the page about metrics, by the name that Sphinx gives it."""
    return {METRICS_PAGE: with_alerts(with_metrics(_source_of(METRICS_PAGE)))}


def complete_pages() -> dict[str, str]:
    """Return the text of each page that the build completes, by the name that Sphinx gives it."""
    return (
        complete_reference()
        | complete_findings()
        | complete_grants()
        | complete_metrics()
        | complete_modules()
    )


def texts_of(names: Iterable[str], completed_pages: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of pages by their names, which have no directives that include files any more."""
    texts = {}
    for name in names:
        path = DOCS / f"{name}.md"
        text = completed_pages.get(name) or path.read_text(encoding="utf-8")
        text = _INCLUDE.sub(
            lambda match: (path.parent / match[1]).read_text(encoding="utf-8"),  # noqa: B023 - called at once
            text,
        )
        texts[name] = _LITERAL_INCLUDE.sub(
            lambda match: _code_block(path.parent / match[1], match[2]),  # noqa: B023 - called at once
            text,
        )
    return texts


def _code_block(path: Path, options_text: str) -> str:
    """Return the part of a file that a directive shows, as a block of code."""
    options = {name: value.strip('"') for name, value in _OPTION.findall(options_text)}
    lines = path.read_text(encoding="utf-8").splitlines()
    unknown_options = options.keys() - {"language", "start-at", "end-at", "dedent"}
    if unknown_options:
        raise ValueError(f"literalinclude of {path.name}: extend _code_block() by {sorted(unknown_options)}")
    if "start-at" in options:
        lines = lines[next(n for n, line in enumerate(lines) if options["start-at"] in line) :]
    if "end-at" in options:
        lines = lines[: next(n for n, line in enumerate(lines) if options["end-at"] in line) + 1]
    lines = [line[int(options.get("dedent", 0)) :] for line in lines]
    return "\n".join([f"```{options.get('language', 'text')}", *lines, "```", ""])


def _link_screenshots(app: Sphinx, doctree: Any, page: str) -> None:
    """Let readers open a screenshot in its own size, because a phone shows it with text of three pixels."""
    # The tools of the repository read this module without the packages of the documentation.
    from docutils import nodes  # type: ignore[import-untyped]  # noqa: PLC0415
    from sphinx.util.osutil import relative_uri  # noqa: PLC0415

    if app.builder.format != "html":
        return
    folder = relative_uri(app.builder.get_target_uri(page), "_images")
    for image in [*doctree.findall(nodes.image)]:
        if image["uri"].endswith(".png"):
            _, file = app.env.images[image["uri"]]
            # The theme hides one of two schemes by these classes; a link around nothing would get the focus.
            schemes = [name for name in image["classes"] if name.startswith("only-")]
            link = nodes.reference("", "", refuri=f"{folder}/{file}", internal=True, classes=schemes)
            image.replace_self(link)
            link += image


def setup(app: Sphinx) -> dict[str, Any]:
    """Let Sphinx read the complete pages, at each build, since any docstring may have changed."""
    pages = complete_pages()

    def complete_source(_: Sphinx, page: str, source: list[str]) -> None:
        source[0] = with_new_lines(pages.get(page, source[0]))

    def write_for_assistants(app: Sphinx, error: Exception | None) -> None:
        """Write the index and the pages as Markdown next to the HTML."""
        if error is not None or app.builder.format != "html":
            return
        texts = texts_of(sorted(app.env.found_docs), pages)
        for name, text in texts.items():
            (app.outdir / f"{name}.md").write_text(text, encoding="utf-8")
        (app.outdir / "llms.txt").write_text(index_of(texts), encoding="utf-8")

    app.connect("env-get-outdated", lambda *_: list(pages))
    app.connect("source-read", complete_source)
    app.connect("doctree-resolved", _link_screenshots)
    app.connect("build-finished", write_for_assistants)
    return {"parallel_read_safe": True}
