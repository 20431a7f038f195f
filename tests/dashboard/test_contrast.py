"""The contrast of charts and texts, computed from the stylesheet as WCAG 2.2 defines it.

The grid lines of charts have less: the labels of the axes and the table beside a chart say the same.
"""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from pg_scheduler.dashboard.heatmap import LEVELS
from pg_scheduler.dashboard.rendering import static_files
from pg_scheduler.measure.figures import OUTCOMES

GRAPHICS, TEXT = 3.0, 4.5
"""The least contrast of success criteria 1.4.11 and 1.4.3."""

MEDIA = re.compile(r"@media[^{]*\{(?:[^{}]|\{[^{}]*\})*\}")
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
CSS = static_files()["dashboard.css"].content.decode()

Color = tuple[float, float, float]


def rules_of(css: str) -> dict[str, dict[str, str]]:
    """Return the declarations of each selector."""
    found: dict[str, dict[str, str]] = {}
    for selectors, body in RULE.findall(css):
        pairs = [each.partition(":") for each in body.split(";") if each.strip()]
        for selector in selectors.split(","):
            values = {name.strip(): value.strip() for name, _, value in pairs}
            found.setdefault(selector.strip(), {}).update(values)
    return found


RULES = rules_of(MEDIA.sub("", CSS))
THEMES = {
    "light": RULES[":root"],
    "dark of the system": rules_of(MEDIA.search(CSS)[0])[':root:not([data-theme="light"])'],  # type: ignore[index]
    "dark as chosen": RULES[':root[data-theme="dark"]'],
}


def color_of(text: str, theme: str) -> Color:
    """Return red, green and blue, from 0 to 1, of ``#rgb``, ``#rrggbb`` or a variable of the theme."""
    if name := re.fullmatch(r"var\((--[a-z-]+)\)", text):
        return color_of(THEMES[theme][name[1]], theme)
    digits = text.removeprefix("#")
    digits = "".join(each * 2 for each in digits) if len(digits) == 3 else digits
    red, green, blue = (int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4))
    return red, green, blue


def blended(color: Color, opacity: float, behind: Color) -> Color:
    """Return what is seen of a translucent color."""
    red, green, blue = (
        opacity * front + (1 - opacity) * back for front, back in zip(color, behind, strict=True)
    )
    return red, green, blue


def luminance(color: Color) -> float:
    """Return the relative luminance."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Color, other: Color) -> float:
    """Return the contrast ratio, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def shades(theme: str) -> list[Color]:
    """Return the colors of the heatmap, the lightest load first."""
    fill, paper = color_of(RULES["rect"]["fill"], theme), color_of("var(--paper)", theme)
    opacities = [
        float(RULES.get(f".heat{level}", {}).get("fill-opacity", 1)) for level in range(1, LEVELS + 1)
    ]
    return [blended(fill, opacity, paper) for opacity in opacities]


def test_arithmetic_is_that_of_the_guideline() -> None:
    black, white, gray = color_of("#000", "light"), color_of("#ffffff", "light"), color_of("#777", "light")
    assert contrast(black, white) == pytest.approx(21)
    assert contrast(white, gray) == pytest.approx(4.478, abs=0.001)
    assert contrast(blended(black, 0.5, white), white) == pytest.approx(3.98, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
def test_charts_stand_out_from_the_page(theme: str) -> None:
    paper = color_of("var(--paper)", theme)
    drawn = {f"line {place}": RULES[f".series{place}"]["color"] for place in range(len(OUTCOMES))}
    drawn["mark of a release"] = RULES["svg .mark"]["stroke"]
    drawn["focus"] = "var(--busy)"
    drawn["border of a field"] = "var(--quiet)"
    found = {what: contrast(color_of(text, theme), paper) for what, text in drawn.items()}
    found |= {f"shade {level}": contrast(each, paper) for level, each in enumerate(shades(theme), 1)}
    assert {what: ratio for what, ratio in found.items() if ratio < GRAPHICS} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_shades_of_the_heatmap_differ_from_each_other(theme: str) -> None:
    ratios = [contrast(each, color_of("var(--paper)", theme)) for each in shades(theme)]
    assert all(after > 1.2 * before for before, after in pairwise(ratios)), ratios


@pytest.mark.parametrize("theme", THEMES)
def test_texts_of_charts_calendar_and_messages_are_readable(theme: str) -> None:
    paper, ink, busy = (color_of(f"var(--{name})", theme) for name in ("paper", "ink", "busy"))
    written = {f"legend {place}": RULES[f".series{place}"]["color"] for place in range(len(OUTCOMES))}
    written |= {"axis": RULES["svg text"]["fill"], "link": "var(--link)", "quiet": "var(--quiet)"}
    written |= {state: RULES[f".{state}"]["color"] for state in ("ok", "failed", "running", "paused")}
    found = {what: contrast(color_of(text, theme), paper) for what, text in written.items()}
    for behind in ("bad-paper", "field"):
        for front in ("ink", "quiet", "bad", "link"):
            pair = (color_of(f"var(--{each})", theme) for each in (front, behind))
            found[f"{front} on {behind}"] = contrast(*pair)
    for level in range(1, 5):
        share = re.search(r"var\(--busy\) (\d+)%, transparent", RULES[f".load{level}"]["background"])
        assert share is not None
        found[f"hour of load {level}"] = contrast(ink, blended(busy, int(share[1]) / 100, paper))
    assert {what: ratio for what, ratio in found.items() if ratio < TEXT} == {}
