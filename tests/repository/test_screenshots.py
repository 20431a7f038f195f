"""The screenshots of the dashboard in README and tour."""

from __future__ import annotations

import re

from tests.browser.pictures import PICTURES, TARGET, THEMES
from tests.docs.snippets import ROOT
from tests.support.cases import each_case

MAX_BYTES = 150_000
FILES = {f"dashboard-{name}-{theme}.png" for name in PICTURES for theme in THEMES}


def test_every_screenshot_is_committed_and_no_other() -> None:
    assert {path.name for path in TARGET.glob("dashboard-*")} == FILES


@each_case("name", sorted(FILES))
def test_screenshot_is_a_small_picture(name: str) -> None:
    content = (TARGET / name).read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    assert len(content) < MAX_BYTES


def test_tour_shows_every_screenshot_in_its_theme() -> None:
    tour = (ROOT / "docs" / "operations" / "tour.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\{image\} \.\./figures/(\S+)\n:class: only-(\w+)\n:alt: \S", tour)
    assert {name for name, _ in shown} == FILES
    assert all(name.endswith(f"-{theme}.png") for name, theme in shown)


def test_first_screen_of_the_readme_shows_the_overview_in_both_themes() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("```")[0]
    for theme in THEMES:
        assert f'"docs/figures/dashboard-overview-{theme}.png"' in first
