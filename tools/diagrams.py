"""Draw the diagrams of the documentation: ``python -m tools.diagrams`` writes ``docs/figures/<name>.svg``.

The text of a diagram is ``docs/figures/<name>.txt``: lines ``key: value``, an empty line, then the drawing.
An indented line continues the one before it. There are four kinds.

A ``sequence`` has ``lanes: service | table | worker``, and time runs down. Its lines are
``service > table: text`` for an arrow, ``service >| table: text`` for an arrow that is refused,
``table: text`` for an event of one lane, ``start``, ``end`` and ``kill`` with the name of a lane for a span
in which it works, and ``# text`` for a heading. Each but a heading may begin with a time of day.

A ``timeline`` has ``range: 0 6``, ``ticks: 1=01:00 | 2=02:00`` and perhaps ``unit: minute``,
``shade: 1.5 4.5: text`` and ``legend: run=runs | wait=waits``, and time runs to the right. Its lines are
``row name: text``, ``bar 1 2 run: label`` for a span and ``drop 3: label`` for what did not take place. Bars
of a row that overlap are drawn below one another.

``boxes`` has ``height: 300``, and everything stands at its coordinates: ``box 10 20 100 40 run: text``,
``arrow 10 20 10 80`` with two or more points, and ``label 10 20 start: text / its second line``.

``bars`` has charts, each with a scale of its own. ``# text`` is the heading of a chart, and
``bar 74,400 jobs/s run: name`` a bar of that length with this figure. ``ratio 1.11 x as fast group: name`` is
the bar of another one, of which the first bar of the chart is the multiple. ``from text`` is how the row of
``docs/performance-tables.md`` begins that has the figures below it, and the tests compare them.

All diagrams are narrow, so that a phone shows them without shrinking their text, and they have the colours of
the reader's scheme.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from tools.environment import ROOT

FIGURES: Final = ROOT / "docs" / "figures"

WIDTH: Final = 360
SCALE: Final = 1.25
"""How much larger than in its own units a wide page shows a diagram."""

MARGIN: Final = 10
FONT_SIZE: Final = 13
SMALL_SIZE: Final = 12
LINE_HEIGHT: Final = 17
BASELINE: Final = 5
"""How far the baseline of a text lies below the middle of its line."""

ROW_GAP: Final = 10
BAR_HEIGHT: Final = 24
BAR_STEP: Final = 28
THIN_BAR: Final = 12
"""The height of a bar of a chart, whose texts are above it."""

LANE_STEPS: Final = {2: 60, 3: 54, 4: 44, 5: 40}
"""The distance of two lanes, by the number of lanes."""

HALF_BAR: Final = 5
TIP: Final = 7
CROSS: Final = 5

LIGHT: Final = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "muted": "#59636e",
    "line": "#8c959f",
    "shade": "#eaeef2",
    "group": "#f3f5f7",
    "run": "#ddf4ff",
    "run-edge": "#0969da",
    "new": "#fff1c9",
    "new-edge": "#9a6700",
    "done": "#dafbe1",
    "done-edge": "#1a7f37",
    "fail": "#ffe3e0",
    "fail-edge": "#cf222e",
}
DARK: Final = {
    "paper": "#161b22",
    "ink": "#e6edf3",
    "muted": "#a6b0bb",
    "line": "#7d8590",
    "shade": "#2b323b",
    "group": "#1f2630",
    "run": "#123a63",
    "run-edge": "#6cb6ff",
    "new": "#4a3a0c",
    "new-edge": "#e3b341",
    "done": "#154226",
    "done-edge": "#57ab5a",
    "fail": "#5c1f1c",
    "fail-edge": "#ff7b72",
}
FILLS: Final = ("run", "new", "done", "fail", "group", "shade")
"""The styles of a box or a bar that are filled; ``wait`` has a dashed edge only."""

CHARACTER_WIDTHS: Final = {
    0.3: "'IJijl",
    0.35: " ,./:;\\|",
    0.4: "()-[]ft",
    0.45: "!r",
    0.5: '"*_`',
    0.55: "?csz",
    0.6: "FLkvxy",
    0.65: "$0123456789EPSTYabdeghnopqu{}",
    0.7: "ABCKRVXZ",
    0.75: "NU",
    0.8: "&DGHOQ",
    0.85: "#+<=>^w~",
    1.0: "%@MWm",
}
"""The widths of characters in DejaVu Sans, which is wider than most fonts, in parts of the font size."""

BOLD: Final = 1.13
"""How much wider a bold text is."""

WIDTHS: Final = {
    character: width for width, characters in CHARACTER_WIDTHS.items() for character in characters
}

STYLE: Final = """\
svg{{{light}}}
@media (prefers-color-scheme:dark){{svg{{{dark}}}}}
text{{font:13px system-ui,sans-serif;fill:var(--ink)}}
.small{{font-size:12px;fill:var(--muted)}}.bold{{font-weight:bold}}.name{{font-size:12px;font-weight:bold}}
rect{{stroke-width:1.2}}.paper{{fill:var(--paper)}}{fills}
.shade{{stroke:none}}.wait{{fill:var(--paper);stroke:var(--line);stroke-dasharray:4 3}}
path{{fill:none;stroke:var(--ink);stroke-width:1.4}}.tip,.dot{{fill:var(--ink);stroke:none}}
.lane{{stroke:var(--line);stroke-width:1}}.cross{{stroke:var(--fail-edge);stroke-width:2.4}}
.refused{{stroke:var(--fail-edge);stroke-dasharray:5 3}}"""


def width_of(text: str, size: float = FONT_SIZE, *, bold: bool = False) -> float:
    """Return about how wide a text is, rather too much than too little."""
    return sum(WIDTHS.get(character, 1.0) for character in text) * size * (BOLD if bold else 1)


def wrap(text: str, width: float, size: float = FONT_SIZE, *, bold: bool = False) -> list[str]:
    """Return the lines of a text that are at most so wide."""
    lines: list[str] = []
    for word in text.split():
        if lines and width_of(f"{lines[-1]} {word}", size, bold=bold) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


class DiagramError(ValueError):
    """The text of a diagram has a mistake."""


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a diagram: its settings, and the lines of its drawing."""

    settings: Mapping[str, str]
    lines: tuple[str, ...]

    def fields(self, name: str) -> list[str]:
        """Return the parts of a setting that ``|`` separates; none without the setting."""
        text = self.settings.get(name, "")
        return [part.strip() for part in text.split("|")] if text else []


def read_source(text: str) -> Source:
    """Read the text of a diagram.

    Raises:
        DiagramError: A setting is missing.
    """
    head, _, body = re.sub(r"\n[ \t]+(?=\S)", " ", text).partition("\n\n")
    pairs = (line.partition(":") for line in head.splitlines())
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    if missing := {"kind", "title", "description"} - settings.keys():
        raise DiagramError(f"a diagram needs {', '.join(sorted(missing))}")
    return Source(settings, tuple(line for line in body.splitlines() if line.strip()))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Layer(IntEnum):
    """What is drawn first, and what over it."""

    LINES = 0
    BARS = 1
    FRONT = 2


class Canvas:
    """The elements of a drawing, in layers."""

    def __init__(self) -> None:
        self.height = 0.0
        self._layers: dict[Layer, list[str]] = {layer: [] for layer in Layer}

    def text(self, x: float, middle: float, text: str, *, style: str = "", anchor: str = "start") -> None:
        """Write one line of text, whose middle is at this height."""
        attributes = f' class="{style}"' if style else ""
        if anchor != "start":
            attributes += f' text-anchor="{anchor}"'
        place = f'x="{_number(x)}" y="{_number(middle + BASELINE)}"'
        self._layers[Layer.FRONT].append(f"<text {place}{attributes}>{escape(text, quote=False)}</text>")

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        style: str,
        *,
        radius: int = 4,
        layer: Layer = Layer.FRONT,
    ) -> None:
        """Draw a rectangle."""
        place = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        self._layers[layer].append(f'<rect {place} rx="{radius}" class="{style}"/>')

    def path(self, description: str, style: str = "", *, layer: Layer = Layer.FRONT) -> None:
        """Draw lines."""
        attributes = f' class="{style}"' if style else ""
        self._layers[layer].append(f'<path d="{description}"{attributes}/>')

    def line(
        self, points: Iterable[tuple[float, float]], style: str = "", *, layer: Layer = Layer.FRONT
    ) -> None:
        """Draw a line through points."""
        places = "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        self.path(f"M{places}", style, layer=layer)

    def arrow(self, points: list[tuple[float, float]], *, refused: bool = False) -> None:
        """Draw an arrow through points; one that is refused ends in a cross."""
        (before_x, before_y), (x, y) = points[-2:]
        length = abs(x - before_x) + abs(y - before_y)
        across, down = (x - before_x) / length, (y - before_y) / length
        if refused:
            self.line([*points[:-1], (x - 8 * across, y - 8 * down)], "refused")
            self.cross(x - 8 * across, y - 8 * down)
            return
        end_x, end_y = x - TIP * across, y - TIP * down
        self.line([*points[:-1], (end_x, end_y)])
        half = TIP / 2
        corners = [
            (x, y),
            (end_x - half * down, end_y + half * across),
            (end_x + half * down, end_y - half * across),
        ]
        self.line([*corners, corners[0]], "tip")

    def cross(self, x: float, y: float) -> None:
        """Draw a cross."""
        for sign in (1, -1):
            self.line([(x - CROSS, y - sign * CROSS), (x + CROSS, y + sign * CROSS)], "cross")

    def dot(self, x: float, y: float) -> None:
        """Draw a dot."""
        self.path(f"M{_number(x - 4)} {_number(y)}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", "dot")

    def svg(self, title: str, description: str) -> str:
        """Return the picture."""
        fills = "".join(
            f".{name}{{fill:var(--{name});stroke:var(--{name}-edge,var(--line))}}" for name in FILLS
        )
        style = STYLE.format(light=_variables(LIGHT), dark=_variables(DARK), fills=fills)
        height = _number(self.height)
        size = f'width="{_number(WIDTH * SCALE)}" height="{_number(self.height * SCALE)}"'
        role = 'role="img" aria-labelledby="title desc"'
        elements = "\n".join(element for layer in Layer for element in self._layers[layer])
        return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size} {role}>
<title id="title">{escape(title)}</title>
<desc id="desc">{escape(description)}</desc>
<style>{style}</style>
<rect width="{WIDTH}" height="{height}" rx="8" class="paper"/>
{elements}
</svg>
"""


def _variables(colours: Mapping[str, str]) -> str:
    return ";".join(f"--{name}:{colour}" for name, colour in colours.items())


EVENT: Final = re.compile(
    r"(?:(?P<time>\d\d:\d\d(?::\d\d)?) )?(?:(?P<act>start|end|kill) )?"
    r"(?P<lane>[^:>|]+?)(?: (?P<arrow>>\|?) (?P<other>[^:>|]+?))?(?:: (?P<text>.+))?"
)


class Sequence:
    """Lanes side by side, with arrows between them; time runs down."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._canvas = Canvas()
        names = source.fields("lanes")
        if len(names) not in LANE_STEPS:
            raise DiagramError(f"a sequence has 2 to 5 lanes, not {len(names)}")
        self._step = LANE_STEPS[len(names)]
        self._lanes = {name: MARGIN + self._step * (index + 0.5) for index, name in enumerate(names)}
        self._text_x = MARGIN + self._step * len(names) + 6
        self._bars: dict[str, float] = {}
        # Where the line of each lane begins; that of a killed one has ended.
        self._begun: dict[str, float] = {}
        self._y = float(MARGIN)

    def draw(self) -> Canvas:
        """Draw the lines of the source."""
        self._draw_names()
        for line in self._source.lines:
            if line.startswith("# "):
                self._draw_heading(line[2:])
            elif match := EVENT.fullmatch(line.strip()):
                self._draw_event(match)
            else:
                raise DiagramError(f"not a line of a sequence: {line!r}")
        self._end_lanes()
        self._canvas.height = self._y + 4
        return self._canvas

    def _draw_names(self) -> None:
        # A name has one line for each of its words, because lanes are narrow.
        line_count = max(len(name.split()) for name in self._lanes)
        for name, x in self._lanes.items():
            words = name.split()
            for index, word in enumerate(words, line_count - len(words)):
                self._canvas.text(x, self._y + 8 + 15 * index, word, style="name", anchor="middle")
        self._y += 15 * line_count + 4
        self._begin_lanes()
        self._y += 8

    def _begin_lanes(self) -> None:
        self._begun = dict.fromkeys(self._lanes, self._y)

    def _end_lanes(self) -> None:
        for name in [*self._bars]:
            self._end_bar(name, self._y)
        for name in [*self._begun]:
            self._end_lane(name, self._y)

    def _end_lane(self, name: str, y: float) -> None:
        x = self._lanes[name]
        self._canvas.line([(x, self._begun.pop(name)), (x, y)], "lane", layer=Layer.LINES)

    def _end_bar(self, name: str, y: float) -> None:
        top = self._bars.pop(name)
        x = self._lanes[name] - HALF_BAR
        self._canvas.box(x, top, 2 * HALF_BAR, max(y - top, 6), "run", radius=2, layer=Layer.BARS)

    def _draw_heading(self, text: str) -> None:
        if self._y > 60:
            self._end_lanes()
            self._y += 10
        for line in wrap(text, WIDTH - 2 * MARGIN, bold=True):
            self._canvas.text(MARGIN, self._y + 8, line, style="bold")
            self._y += LINE_HEIGHT
        self._y += 4
        self._begin_lanes()
        self._y += 6

    def _draw_event(self, match: re.Match[str]) -> None:
        name, other = match["lane"], match["other"]
        for lane in (name, other or name):
            if lane not in self._lanes:
                raise DiagramError(f"no lane {lane!r} in {match[0]!r}")
        middle = self._y + 8
        if match["act"] == "start":
            self._bars[name] = middle
        elif match["act"]:
            if name in self._bars:
                self._end_bar(name, middle)
            if match["act"] == "kill":
                self._end_lane(name, middle)
                self._canvas.cross(self._lanes[name], middle)
        elif other:
            self._draw_arrow(name, other, middle, refused=match["arrow"] == ">|")
        else:
            self._canvas.dot(self._lanes[name], middle)
        self._draw_text(match["time"], match["text"] or "")

    def _draw_arrow(self, name: str, other: str, y: float, *, refused: bool) -> None:
        start, end = self._lanes[name], self._lanes[other]
        sign = 1 if end > start else -1
        # An arrow touches the bar of a lane that works, and else its line.
        start += sign * (HALF_BAR if name in self._bars else 0)
        end -= sign * (HALF_BAR if other in self._bars else 0)
        self._canvas.arrow([(start, y), (end, y)], refused=refused)

    def _draw_text(self, time: str | None, text: str) -> None:
        lines = [(time, "small")] if time else []
        lines += [(line, "") for line in wrap(text, WIDTH - MARGIN - self._text_x)]
        for line, style in lines:
            self._canvas.text(self._text_x, self._y + 8, line, style=style)
            self._y += LINE_HEIGHT
        self._y += ROW_GAP


class Bar(NamedTuple):
    """A span of a row; one whose end is None did not take place."""

    start: float
    end: float | None
    style: str
    label: str


class Row(NamedTuple):
    """A row of a timeline."""

    name: str
    note: str
    bars: list[Bar]


def read_rows(source: Source) -> list[Row]:
    """Return the rows of a timeline.

    Raises:
        DiagramError: A line is neither a row nor a bar.
    """
    rows: list[Row] = []
    for line in source.lines:
        head, _, text = (part.strip() for part in line.partition(": "))
        keyword, _, arguments = head.partition(" ")
        match keyword, arguments.split():
            case "row", _:
                rows.append(Row(arguments.removesuffix(":"), text, []))
            case "bar", [start, end, style]:
                rows[-1].bars.append(Bar(float(start), float(end), style, text))
            case "drop", [start]:
                rows[-1].bars.append(Bar(float(start), None, "", text))
            case _:
                raise DiagramError(f"not a line of a timeline: {line!r}")
    return rows


class Timeline:
    """Rows of bars over one another; time runs to the right."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._canvas = Canvas()
        self._first, self._last = map(float, source.settings["range"].split())
        ticks = [tick.split("=") for tick in source.fields("ticks")]
        self._ticks = [(self._x(float(time)), label) for time, label in ticks]
        times, _, self._shade_label = source.settings.get("shade", "").partition(": ")
        self._shade = [self._x(float(time)) for time in times.split()]
        self._y = float(MARGIN)

    def _x(self, time: float) -> float:
        return MARGIN + (time - self._first) / (self._last - self._first) * (WIDTH - 2 * MARGIN)

    def draw(self) -> Canvas:
        """Draw the rows of the source."""
        if unit := self._source.settings.get("unit"):
            self._canvas.text(MARGIN, self._y + 8, unit, style="small")
            self._y += LINE_HEIGHT
        for x, label in self._ticks:
            self._canvas.text(x, self._y + 8, label, style="small", anchor="middle")
        self._y += LINE_HEIGHT + 2
        if self._shade:
            self._draw_ground(self._y, self._y + LINE_HEIGHT + 2, has_ticks=False)
            middle = sum(self._shade) / 2
            self._canvas.text(middle, self._y + 9, self._shade_label, style="small", anchor="middle")
            self._y += LINE_HEIGHT + 2
        for row in read_rows(self._source):
            self._draw_row(row)
        self._draw_legend()
        self._canvas.height = self._y + 6
        return self._canvas

    def _draw_ground(self, top: float, bottom: float, *, has_ticks: bool = True) -> None:
        """Draw the ground of a row, under its bars: the shade and the ticks."""
        if self._shade:
            left, right = self._shade
            self._canvas.box(left, top, right - left, bottom - top, "shade", radius=0, layer=Layer.LINES)
        for x, _ in self._ticks if has_ticks else []:
            self._canvas.line([(x, top), (x, bottom)], "lane", layer=Layer.LINES)

    def _draw_row(self, row: Row) -> None:
        self._y += 6
        for line in wrap(row.name, WIDTH - 2 * MARGIN, bold=True):
            self._canvas.text(MARGIN, self._y + 12, line, style="bold")
            self._y += LINE_HEIGHT
        for line in wrap(row.note, WIDTH - 2 * MARGIN, SMALL_SIZE):
            self._canvas.text(MARGIN, self._y + 12, line, style="small")
            self._y += LINE_HEIGHT
        self._y += 6
        ends: list[float] = []
        for bar in row.bars:
            end = bar.start if bar.end is None else bar.end
            # The first line in which the bar has room.
            (level, *_) = [*(index for index, last in enumerate(ends) if last <= bar.start), len(ends)]
            ends[level : level + 1] = [end]
            self._draw_bar(bar, self._y + BAR_STEP * level)
        height = BAR_STEP * len(ends)
        self._draw_ground(self._y - 2, self._y + height - 2)
        self._y += height + 2

    def _draw_bar(self, bar: Bar, y: float) -> None:
        x, middle = self._x(bar.start), y + BAR_HEIGHT / 2
        if bar.end is None:
            self._canvas.cross(x, middle)
            if bar.label:
                self._canvas.text(x + 9, middle, bar.label)
            return
        width = self._x(bar.end) - x - 2
        self._canvas.box(x, y, width, BAR_HEIGHT, bar.style)
        if bar.label:
            self._canvas.text(x + width / 2, middle, bar.label, anchor="middle")

    def _draw_legend(self) -> None:
        x = float(MARGIN)
        entries = [entry.split("=") for entry in self._source.fields("legend")]
        if not entries:
            return
        self._y += 8
        for style, label in entries:
            width = 22 + width_of(label, SMALL_SIZE)
            if x + width > WIDTH - MARGIN:
                x = MARGIN
                self._y += LINE_HEIGHT + 4
            if style == "drop":
                self._canvas.cross(x + 8, self._y + 8)
            else:
                self._canvas.box(x, self._y + 1, 16, 14, style, radius=3)
            self._canvas.text(x + 22, self._y + 8, label, style="small")
            x += width + 14
        self._y += LINE_HEIGHT + 4


class Boxes:
    """Boxes, arrows and texts at their coordinates."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._canvas = Canvas()

    def draw(self) -> Canvas:
        """Draw the lines of the source."""
        for line in self._source.lines:
            head, _, text = (part.strip() for part in line.partition(": "))
            match head.split():
                case "box", *values, style:
                    self._draw_box([float(value) for value in values], style, text)
                case "arrow", *values:
                    numbers = [float(value) for value in values]
                    self._canvas.arrow([*zip(numbers[::2], numbers[1::2], strict=True)])
                case "label", x, y, ("start" | "middle" | "end") as anchor:
                    for index, part in enumerate(text.split(" / ")):
                        self._canvas.text(float(x), float(y) + 15 * index, part, style="small", anchor=anchor)
                case _:
                    raise DiagramError(f"not a line of boxes: {line!r}")
        self._canvas.height = float(self._source.settings["height"])
        return self._canvas

    def _draw_box(self, place: list[float], style: str, text: str) -> None:
        x, y, width, height = place
        is_group = style == "group"
        self._canvas.box(x, y, width, height, style, radius=8, layer=Layer.LINES if is_group else Layer.FRONT)
        if is_group:
            self._canvas.text(x + 10, y + 14, text, style="bold")
            return
        lines = wrap(text, width - 12)
        for index, line in enumerate(lines):
            middle = y + height / 2 + LINE_HEIGHT * (index - (len(lines) - 1) / 2)
            self._canvas.text(x + width / 2, middle, line, anchor="middle")


FIGURE: Final = re.compile(r"(bar|ratio) \d[\d,.]* (.+ )?(run|new|group): \S")


class Figure(NamedTuple):
    """A bar of a chart."""

    name: str
    number: str
    unit: str
    label: str
    length: float
    style: str
    row: str
    """How the row begins that has the figure."""


class Chart(NamedTuple):
    """Bars of one scale."""

    heading: str
    figures: list[Figure]


def _read_figure(line: str, row: str, figures: list[Figure]) -> Figure:
    head, _, name = (part.strip() for part in line.partition(": "))
    kind, number, *units, style = head.split()
    unit = " ".join(units)
    label, length = " ".join([number, *units]), float(number.replace(",", ""))
    if kind == "ratio":
        label, length = f"{figures[0].name} {label}", figures[0].length / length
    return Figure(name, number, unit, label, length, style, row)


def read_charts(source: Source) -> list[Chart]:
    """Return the charts of a diagram of bars.

    Raises:
        DiagramError: A line is neither a heading, nor a row, nor a bar of a chart.
    """
    charts: list[Chart] = []
    row = ""
    for line in source.lines:
        keyword, _, text = line.partition(" ")
        if keyword == "#":
            charts.append(Chart(text, []))
        elif keyword == "from":
            row = text
        elif charts and FIGURE.match(line) and (keyword == "bar" or charts[-1].figures):
            charts[-1].figures.append(_read_figure(line, row, charts[-1].figures))
        else:
            raise DiagramError(f"not a line of bars: {line!r}")
    return charts


class Bars:
    """Charts below one another; each bar has its name and its figure above it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._canvas = Canvas()
        self._y = float(MARGIN)

    def draw(self) -> Canvas:
        """Draw the charts of the source."""
        for chart in read_charts(self._source):
            self._draw_chart(chart)
        self._canvas.height = self._y
        return self._canvas

    def _draw_chart(self, chart: Chart) -> None:
        for line in wrap(chart.heading, WIDTH - 2 * MARGIN, bold=True):
            self._canvas.text(MARGIN, self._y + 8, line, style="bold")
            self._y += LINE_HEIGHT
        self._y += 4
        longest = max(figure.length for figure in chart.figures)
        for figure in chart.figures:
            self._draw_figure(figure, figure.length / longest)
        self._y += 12

    def _draw_figure(self, figure: Figure, part: float) -> None:
        width = WIDTH - 2 * MARGIN
        self._canvas.text(WIDTH - MARGIN, self._y + 8, figure.label, anchor="end")
        for line in wrap(figure.name, width - width_of(figure.label) - 8):
            self._canvas.text(MARGIN, self._y + 8, line)
            self._y += LINE_HEIGHT
        self._canvas.box(MARGIN, self._y + 1, max(part * width, 1), THIN_BAR, figure.style, radius=2)
        self._y += THIN_BAR + ROW_GAP


KINDS: Final[Mapping[str, type[Sequence | Timeline | Boxes | Bars]]] = {
    "sequence": Sequence,
    "timeline": Timeline,
    "boxes": Boxes,
    "bars": Bars,
}


def draw(text: str) -> str:
    """Return the SVG of the text of a diagram.

    Raises:
        DiagramError: The text has a mistake.
    """
    source = read_source(text)
    kind = source.settings["kind"]
    if kind not in KINDS:
        raise DiagramError(f"no kind of diagram: {kind!r}")
    canvas = KINDS[kind](source).draw()
    return canvas.svg(source.settings["title"], source.settings["description"])


def sources() -> list[Path]:
    """Return the texts of all diagrams."""
    return sorted(FIGURES.glob("*.txt"))


def main() -> int:
    """Draw all diagrams."""
    for path in sources():
        path.with_suffix(".svg").write_text(draw(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
