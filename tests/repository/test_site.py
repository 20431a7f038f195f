"""The built documentation loads nothing from other sites, and has its search and copy buttons."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.site import PARTS, main, problems


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site without problems."""
    for name in PARTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="_static/a.css"><script src="_static/a.js"></script>'
        '<a href="https://example.org">a link</a> <code>url(x)</code> <img src="data:image/png;base64,AA">',
        encoding="utf-8",
    )
    (tmp_path / "_static/a.css").write_text(
        'a { background: url("data:image/svg+xml,a//b") }', encoding="utf-8"
    )
    return tmp_path


def test_site_that_loads_its_own_files_has_no_problems(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(site)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        (
            '<script src="https://cdn.example.org/a.js"></script>',
            "<script> loads https://cdn.example.org/a.js",
        ),
        ('<link rel="preconnect" href="//fonts.example.org">', "<link> loads //fonts.example.org"),
        ('<img alt="" src="HTTP://example.org/1.gif">', "<img> loads HTTP://example.org/1.gif"),
        ('<iframe src="https://example.org"></iframe>', "<iframe> loads https://example.org"),
        ("<style>@import 'https://example.org/a.css'</style>", "a style loads https://example.org/a.css"),
    ],
)
def test_problems_name_what_a_page_loads_from_elsewhere(site: Path, element: str, problem: str) -> None:
    (site / "index.html").write_text(element, encoding="utf-8")
    assert list(problems(site)) == [f"index.html: {problem}"]


def test_problems_name_what_styles_load_from_elsewhere(site: Path) -> None:
    (site / "_static/a.css").write_text("@font-face { src: url(//example.org/a.woff2) }", encoding="utf-8")
    assert list(problems(site)) == ["_static/a.css: a style loads //example.org/a.woff2"]


@pytest.mark.parametrize("part", PARTS)
def test_problems_name_a_missing_part(site: Path, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    (site / part).unlink()
    assert main([str(site)]) == 1
    assert capsys.readouterr().out == f"{part} is missing\n"
