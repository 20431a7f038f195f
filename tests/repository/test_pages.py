"""Checks that Sphinx does not make: links of the README, and the rules for snippets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.snippets import PAGES, ROOT, Snippet, page_id, snippets_of
from tools.readme import make_links_absolute

SITE = "https://pg-scheduler.github.io/pg-scheduler"


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=page_id)
def test_links_of_top_level_pages_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        file = re.sub(rf"{SITE}/(.+)\.html", r"docs/\1.md", target)
        assert file.startswith("https://") or (page.parent / file).exists(), target


@pytest.mark.parametrize(("version", "tag"), [("1.0.0", "v1.0.0"), ("1.1.0.dev0", "main")])
def test_readme_of_the_package_links_to_files_of_its_tag(version: str, tag: str) -> None:
    text = "![a](docs/a.svg) [b](docs/b.md#c) [d](#d) [e](https://e.org/f)"
    blob = f"https://github.com/pg-scheduler/pg-scheduler/blob/{tag}"
    raw = f"https://raw.githubusercontent.com/pg-scheduler/pg-scheduler/{tag}"
    expected = f"![a]({raw}/docs/a.svg) [b]({blob}/docs/b.md#c) [d](#d) [e](https://e.org/f)"
    assert make_links_absolute(text, version) == expected
    readme = make_links_absolute((ROOT / "README.md").read_text(encoding="utf-8"), version)
    assert not re.findall(r"\]\((?!https://|#)", readme)


def test_code_blocks_have_a_known_language_and_fit_the_page() -> None:
    blocks = [snippet for page in PAGES for snippet in snippets_of(page)]
    assert [str(block) for block in blocks if not block.code.strip()] == [], "empty"
    widths = {str(block): max(map(len, block.code.splitlines()), default=0) for block in blocks}
    limits = {str(block): 120 if block.kind in ("sql", "text") else 110 for block in blocks}
    assert [block for block, width in widths.items() if width > limits[block]] == [], "too wide for the page"


def test_python_code_is_only_in_python_blocks() -> None:
    """Code that imports something must not avoid the tests by another language."""
    others = [snippet for page in PAGES for snippet in snippets_of(page) if snippet.kind != "python"]
    imports = re.compile(r"^(import \w|from \w+ import)", re.MULTILINE)
    assert [str(snippet) for snippet in others if imports.search(snippet.code)] == []


def test_tables_and_lists_have_no_gaps() -> None:
    """A blank line ends a table, so that the rest of its rows would be a paragraph with bars."""
    row_after_row = re.compile(r"^\|.*\n\n(\|.*)\n(?!\|-)", re.MULTILINE)
    item_after_item = re.compile(r"^- .*\n(?:  .*\n)*\n(- .*)", re.MULTILINE)
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    gaps = [
        f"{page_id(page)}: {line}"
        for page, text in texts.items()
        for pattern in (row_after_row, item_after_item)
        for line in pattern.findall(text)
    ]
    assert gaps == []


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/how-do-i.md",
        "docs/start/five-minutes.md",
        "docs/start/tutorial/7-test-deploy-watch.md",
    ],
)
def test_pages_of_the_start_link_troubleshooting(page: str) -> None:
    assert "operations/troubleshooting.md" in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("call", "needs"),
    [
        ("create_async_engine", ("postgresql+asyncpg://", "sqlalchemy[asyncio]")),
        ("SQLALCHEMY_DATABASE_URI", ("postgresql+psycopg://", "psycopg[binary]")),
    ],
)
def test_page_names_the_url_and_the_packages_of_an_engine(call: str, needs: tuple[str, ...]) -> None:
    """An engine with the URL of another driver fails at its first use, by the import of that driver."""
    pages = {
        snippet.page
        for page in PAGES
        for snippet in snippets_of(page)
        if call in snippet.code and "os.environ" in snippet.code
    }
    assert pages
    missing = {page_id(page): need for page in pages for need in needs if need not in page.read_text("utf-8")}
    assert missing == {}


OTHER_NODES: Final = {
    "docs/operations/dashboard-comparison.md": "those of other libraries",
    "docs/operations/health.md": "those of Kubernetes",
    "docs/operations/high-availability.md": "those of a cluster of PostgreSQL",
}


def test_page_explains_what_a_node_is_where_it_says_so() -> None:
    """Most readers know a node of Kubernetes. A worker or a process has these names."""
    pages = [
        page
        for page in PAGES
        if page.parent.name in {"start", "tutorial", "guides", "concepts", "operations"}
    ]
    unexplained = [
        page_id(page)
        for page in pages
        for text in [re.sub(r"<!-- listing -->.*?<!-- end", "", page.read_text("utf-8"), flags=re.DOTALL)]
        if re.search(r"\bnodes?\b", text) and not re.search(r"\*nodes?\*", text)
    ]
    assert unexplained == sorted(OTHER_NODES)


READ_FOLDERS: Final = ("start", "guides", "concepts")
"""The folders whose pages are read from the top to the end. Their tables have facts to look up."""

READ_IN_ORDER: Final = [
    page for page in PAGES if page.relative_to(ROOT).parts[:2] in {("docs", name) for name in READ_FOLDERS}
]


@pytest.mark.parametrize("page", READ_IN_ORDER, ids=page_id)
def test_no_cell_of_a_table_has_two_sentences(page: Path) -> None:
    """A sentence ends with a dot and a capital letter, or code, behind it."""
    cells = [
        cell.strip()
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
        for cell in re.split(r"(?<!\\)\|", line)
    ]
    assert [cell for cell in cells if re.search(r"[.!?][)`]? +[A-Z`*\[]", cell)] == []


def snippets_from(text: str, folder: Path) -> list[Snippet]:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return snippets_of(page)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tests.docs.snippets.ROOT", tmp_path)
    return tmp_path


def test_snippet_markers_set_the_exception_or_the_file_of_a_block(folder: Path) -> None:
    text = """\
```python
one
```
<!-- snippet: raises ValueError -->
```python
two
```
<!-- snippet: file three.py -->
```python
three
```
"""
    one, two, three = snippets_from(text, folder)
    assert (one.code, one.raises, one.file, one.line) == ("one\n", None, None, 2)
    assert (two.code, two.raises, two.file, two.line) == ("two\n", "ValueError", None, 6)
    assert (three.code, three.raises, three.file) == ("three\n", None, "three.py")


@pytest.mark.parametrize(
    "text",
    [
        "```py\n1\n```\n",
        "```\n1\n```\n",
        "```pycon\n>>> 1\n```\n",
        "```python\n1\n",
        "- a list\n\n  ```python\n  1\n  ```\n",
        "<!-- snippet: skip -->\n```python\n1\n```\n",
        "<!-- snippet: raises ValueError -->\n\n```python\n1\n```\n",
        "<!-- snippet: raises ValueError -->\n```console\n1\n```\n",
    ],
)
def test_code_block_is_rejected_when_no_test_would_run_it(text: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.md"):
        snippets_from(text, folder)
