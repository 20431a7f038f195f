"""The contrast of charts and texts, computed from the stylesheet as WCAG 2.2 defines it.

The grid lines and the bars of completed jobs have less: axes, readout and table of a chart say the
same.
"""

from __future__ import annotations

import re

import pytest

from tests.support.inside import dashboard_files

GRAPHICS, TEXT = 3.0, 4.5
"""The least contrast of success criteria 1.4.11 and 1.4.3."""

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
MEDIA = re.compile(r"@media[^{]*\{(?:[^{}]|\{[^{}]*\})*\}")
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
CSS = COMMENT.sub("", dashboard_files()["dashboard.css"].content.decode())

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
THEMES = ("light", "dark")
PAIR = re.compile(r"light-dark\((.+), (.+)\)")
STATES = ("ok", "bad", "warn", "run", "held", "wait")


def color_of(text: str, theme: str) -> Color:
    """Return red, green and blue, from 0 to 1, of ``#rgb``, ``#rrggbb``, a pair or a variable."""
    if name := re.fullmatch(r"var\((--[a-z0-9-]+)\)", text):
        return color_of(RULES[":root"][name[1]], theme)
    if pair := PAIR.fullmatch(text):
        return color_of(pair[1 + THEMES.index(theme)], theme)
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


CHARTS = (
    *(f".f-{tone}" for tone in ("bad", "warn", "expired", "wait")),
    *(f".l-{tone}" for tone in ("p50", "p95", "p99", "old")),
)
"""What charts draw; completed jobs are paler."""


def drawn(selector: str) -> str:
    """Return the colour of a bar or a line, or that of its edge."""
    return RULES[selector].get("stroke") or RULES[selector]["fill"]


def test_arithmetic_is_that_of_the_guideline() -> None:
    black, white, gray = color_of("#000", "light"), color_of("#ffffff", "light"), color_of("#777", "light")
    assert contrast(black, white) == pytest.approx(21)
    assert contrast(white, gray) == pytest.approx(4.478, abs=0.001)
    assert contrast(blended(black, 0.5, white), white) == pytest.approx(3.98, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
def test_charts_and_controls_stand_out_from_the_page(theme: str) -> None:
    surface, canvas = (color_of(f"var(--{each})", theme) for each in ("surface", "canvas"))
    colors = {selector: drawn(selector) for selector in CHARTS}
    colors["flag of a release"] = "var(--held)"
    colors["focus"] = RULES[":focus-visible"]["outline"].removeprefix("2px solid ")
    colors["border of a field"] = RULES["input"]["border"].removeprefix("1px solid ")
    found = {what: contrast(color_of(text, theme), surface) for what, text in colors.items()}
    found |= {
        f"{what} on the canvas": contrast(color_of(text, theme), canvas) for what, text in colors.items()
    }
    assert {what: ratio for what, ratio in found.items() if ratio < GRAPHICS} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_failures_differ_from_completed_jobs(theme: str) -> None:
    calm = color_of(RULES[".f-calm"]["fill"], theme)
    for selector in (".f-bad", ".f-expired"):
        assert contrast(color_of(RULES[selector]["fill"], theme), calm) > 1.5


@pytest.mark.parametrize("theme", THEMES)
def test_texts_are_readable_on_each_background(theme: str) -> None:
    tokens = ("ink", "ink-2", "ink-3", "accent", *STATES)
    written = {each: f"var(--{each})" for each in tokens}
    written |= {"axis": RULES[".plot text"]["fill"], "readout": RULES[".tip"]["color"]}
    written |= {"legend": "var(--ink-2)", "placeholder": RULES["::placeholder"]["color"]}
    found = {}
    for behind in ("surface", "canvas", "hover", "sunken"):
        for what, text in written.items():
            pair = contrast(color_of(text, theme), color_of(f"var(--{behind})", theme))
            found[f"{what} on {behind}"] = pair
    for behind in (*(f"{state}-soft" for state in STATES), "accent-soft"):
        for front in ("ink", "ink-2", "ink-3", "accent", behind.removesuffix("-soft")):
            colors = (color_of(f"var(--{each})", theme) for each in (front, behind))
            found[f"{front} on {behind}"] = contrast(*colors)
    for selector in (".count.bad", "button.primary"):
        colors = (color_of(RULES[selector][each], theme) for each in ("color", "background"))
        found[selector] = contrast(*colors)
    ink, busy = color_of("var(--ink)", theme), color_of("var(--run)", theme)
    for level in range(1, 5):
        share = re.search(r"var\(--run\) (\d+)%, transparent", RULES[f".load{level}"]["background"])
        assert share is not None
        behind_hour = blended(busy, int(share[1]) / 100, color_of("var(--surface)", theme))
        found[f"hour of load {level}"] = contrast(ink, behind_hour)
    assert {what: ratio for what, ratio in found.items() if ratio < TEXT} == {}
