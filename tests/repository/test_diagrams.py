"""The diagrams of the documentation: they are what their texts build, and a phone shows them legibly."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

from pg_scheduler import CatchUp, Overlap, PollingConfig
from pg_scheduler.schedules.timing import pass_time
from pg_scheduler.worker.lease import RENEWALS_PER_LEASE
from pg_scheduler.worker.lease_connection import LONGEST_SILENCE_S
from pg_scheduler.worker.rescuer import Rescuer
from tests.docs.snippets import PAGES, ROOT
from tests.support.cases import each_case
from tests.support.golden import IS_RENEWING
from tests.support.store import new_schedule
from tools.diagrams import (
    DARK,
    FIGURES,
    FILLS,
    LIGHT,
    MARGIN,
    WIDTH,
    DiagramError,
    Figure,
    Source,
    draw,
    read_charts,
    read_rows,
    read_source,
    sources,
    width_of,
)

SVG = "{http://www.w3.org/2000/svg}"
NAMES = [path.stem for path in sources()]
MAX_WIDTH = 420
MIN_FONT_SIZE = 12
MIN_CONTRAST = 4.5
"""Of WCAG, for text."""

SEGMENT = re.compile(r"([\d.]+) ([\d.]+)(?=L([\d.]+) ([\d.]+))")


class Area(NamedTuple):
    """A rectangle, and what it shows."""

    left: float
    top: float
    right: float
    bottom: float
    name: str

    def meets(self, other: Area) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def contains(self, other: Area) -> bool:
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )


class Picture:
    """A diagram, with the areas of its parts."""

    def __init__(self, text: str) -> None:
        self.root = ET.fromstring(text)
        self.style = self.root.findtext(f"{SVG}style", "")
        _, _, width, height = map(float, self.root.attrib["viewBox"].split())
        self.page = Area(0, 0, width, height, "the page")
        self.texts = [self._text_area(text) for text in self.root.iter(f"{SVG}text")]

    def font_size(self, style: str) -> float:
        size = re.search(rf"\.{style}\{{[^}}]*?font-size:([\d.]+)px", self.style) if style else None
        size = size or re.search(r"text\{font:([\d.]+)px", self.style)
        assert size
        return float(size[1])

    def _text_area(self, element: ET.Element) -> Area:
        style, words = element.get("class", ""), element.text or ""
        size = self.font_size(style)
        width = width_of(words, size, bold=style in {"bold", "name"})
        x, baseline = float(element.attrib["x"]), float(element.attrib["y"])
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
        return Area(left, baseline - 0.75 * size, left + width, baseline + 0.2 * size, words)

    @property
    def boxes(self) -> list[Area]:
        """The rectangles with an edge; those without round corners are backgrounds."""
        return [
            Area(x, y, x + float(element.attrib["width"]), y + float(element.attrib["height"]), "a box")
            for element in self.root.iter(f"{SVG}rect")
            if element.get("rx") not in {None, "0"} and "x" in element.attrib
            for x, y in [(float(element.attrib["x"]), float(element.attrib["y"]))]
        ]

    @property
    def lines(self) -> list[Area]:
        """The straight parts of arrows; ticks and lanes are behind everything."""
        return [
            Area(min(x, to_x), min(y, to_y), max(x, to_x), max(y, to_y), "a line")
            for element in self.root.iter(f"{SVG}path")
            if element.get("class") != "lane"
            for x, y, to_x, to_y in (map(float, part) for part in SEGMENT.findall(element.attrib["d"]))
        ]

    def problems(self) -> list[str]:
        """Return what a reader could not read."""
        outside = [f"{text.name!r} leaves the page" for text in self.texts if not self.page.contains(text)]
        overlaps = [
            f"{text.name!r} lies over {other_text.name!r}"
            for text, other_text in combinations(self.texts, 2)
            if text.meets(other_text)
        ]
        crossed = [
            f"{text.name!r} crosses the edge of a box"
            for text in self.texts
            for box in self.boxes
            if text.meets(box) and not box.contains(text)
        ]
        struck = [
            f"{text.name!r} is struck by a line"
            for text in self.texts
            for line in self.lines
            if text.meets(line)
        ]
        return outside + overlaps + crossed + struck


def committed(name: str) -> str:
    return (FIGURES / f"{name}.svg").read_text(encoding="utf-8")


def contrast(colour: str, other_colour: str) -> float:
    """Return the contrast of two colours as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((luminance(colour), luminance(other_colour)))
    return (lighter + 0.05) / (darker + 0.05)


@each_case("name", NAMES)
def test_committed_diagram_is_what_its_text_builds(name: str) -> None:
    picture = draw((FIGURES / f"{name}.txt").read_text(encoding="utf-8"))
    if IS_RENEWING:
        (FIGURES / f"{name}.svg").write_text(picture, encoding="utf-8")
    assert committed(name) == picture, "run: python3 dev.py renew"


@each_case("name", NAMES)
def test_diagram_can_be_read_on_a_phone(name: str) -> None:
    picture = Picture(committed(name))
    assert picture.page.right <= MAX_WIDTH
    sizes = [float(size) for size in re.findall(r"font(?:-size)?:([\d.]+)px", picture.style)]
    assert min(sizes) >= MIN_FONT_SIZE
    assert picture.texts
    assert picture.problems() == []


@each_case("name", NAMES)
def test_diagram_has_a_title_and_a_description_for_screen_readers(name: str) -> None:
    root = Picture(committed(name)).root
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "title desc")
    title, description = (root.findtext(f"{SVG}{tag}", "") for tag in ("title", "desc"))
    assert len(title) > 10
    assert len(description.split()) > 20


@each_case("name", NAMES)
def test_diagram_has_the_colours_of_both_schemes(name: str) -> None:
    """All colours are variables, and the dark scheme sets each of them."""
    text = committed(name)
    style = Picture(text).style
    light, dark = re.findall(r"svg\{([^}]+)\}", style)
    assert "@media (prefers-color-scheme:dark){svg{" in style
    assert [re.findall(r"--([\w-]+):", colours) for colours in (light, dark)] == [[*LIGHT], [*DARK]]
    without_schemes = text.replace(light, "").replace(dark, "")
    assert not re.search(r"#[0-9a-f]{3,6}\b|\b(white|black)\b", without_schemes)
    used = {name for element in Picture(text).root.iter() for name in element.get("class", "").split()}
    assert used <= set(re.findall(r"\.([a-z]+)", style))


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_of_diagrams_has_contrast_in_both_schemes(colours: dict[str, str]) -> None:
    grounds = ["paper", *FILLS]
    weak = {ground: contrast(colours["ink"], colours[ground]) for ground in grounds}
    assert {ground: ratio for ground, ratio in weak.items() if ratio < MIN_CONTRAST} == {}
    for ground in ("paper", "shade"):
        assert contrast(colours["muted"], colours[ground]) >= MIN_CONTRAST


def test_every_diagram_stands_on_a_page_with_an_alternative_text() -> None:
    names_on_pages = set()
    for page in PAGES:
        for alternative, target in re.findall(
            r"!\[([^\]]*)\]\(([^)]+\.svg)\)", page.read_text(encoding="utf-8")
        ):
            path = (page.parent / target).resolve()
            if path.with_suffix(".txt").exists():
                names_on_pages.add(path.stem)
                assert len(alternative.split()) > 3, f"{page.relative_to(ROOT)}: {target}"
    assert names_on_pages == set(NAMES)


BOXES = "kind: boxes\ntitle: A title\ndescription: text\nheight: 100\n\n"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("label 300 50 start: a text that is too long", "'a text that is too long' leaves the page"),
        ("label 20 50 start: one\nlabel 30 55 start: other", "'one' lies over 'other'"),
        ("box 20 20 60 40 run: unfortunately", "'unfortunately' crosses the edge of a box"),
        ("arrow 20 50 200 50\nlabel 50 50 start: struck", "'struck' is struck by a line"),
    ],
    ids=["page", "text", "box", "line"],
)
def test_text_that_cannot_be_read_is_found(lines: str, problem: str) -> None:
    assert problem in Picture(draw(BOXES + lines)).problems()


SEQUENCE = "kind: sequence\ntitle: A title\ndescription: text\nlanes: a | b\n\n"
TIMELINE = "kind: timeline\ntitle: A title\ndescription: text\nrange: 0 5\n\n"
BARS = "kind: bars\ntitle: A title\ndescription: text\n\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: boxes\ntitle: A title\n\n", "needs description"),
        ("kind: pie\ntitle: A title\ndescription: text\n\n", "no kind of diagram: 'pie'"),
        (SEQUENCE.replace("a | b", "a"), "2 to 5 lanes, not 1"),
        (f"{SEQUENCE}a > c: text", "no lane 'c'"),
        (f"{SEQUENCE}a >> b: text", "not a line of a sequence"),
        (f"{TIMELINE}row one:\nbar 1 2: text", "not a line of a timeline"),
        (f"{BOXES}circle 1 2: text", "not a line of boxes"),
        (f"{BARS}bar 5 ms run: no heading", "not a line of bars"),
        (f"{BARS}# heading\nratio 1.5 x run: no first bar", "not a line of bars"),
        (f"{BARS}# heading\nbar 5 ms: no style", "not a line of bars"),
        (f"{BARS}# heading\nbar many run: no number", "not a line of bars"),
    ],
)
def test_mistake_in_the_text_of_a_diagram_is_reported(text: str, problem: str) -> None:
    with pytest.raises(DiagramError, match=re.escape(problem)):
        draw(text)


# -- what the diagrams state -----------------------------------------------------------------------------


def source_of(name: str) -> Source:
    return read_source((FIGURES / f"{name}.txt").read_text(encoding="utf-8"))


def second_of(name: str, words: str) -> int:
    """Return the time of the line with these words, in seconds from noon."""
    (line,) = [line for line in source_of(name).lines if words in line]
    moment = time.fromisoformat(line.split()[0])
    return (moment.hour - 12) * 3600 + moment.minute * 60 + moment.second


def test_diagram_of_missed_fire_times_draws_what_the_policies_plan() -> None:
    """All workers are down from 01:30 to 04:30, and the misfire grace time is that of a default Scheduler."""
    day, hour = datetime(2030, 1, 1, tzinfo=UTC), timedelta(hours=1)
    rows = {row.name: row for row in read_rows(source_of("catch-up"))}
    policies = [CatchUp.latest(), CatchUp.earliest(), CatchUp.all(), CatchUp.none()]
    assert [*rows] == [f"CatchUp.{policy.selection}()" for policy in policies]
    for policy, row in zip(policies, rows.values(), strict=True):
        schedule = new_schedule(
            anchor=day, next_fire_at=day + 2 * hour, catch_up=policy.selection, catch_up_limit=policy.limit
        )
        plan = pass_time(schedule, day + 4.5 * hour, grace_s=300)
        labels = [bar.label for bar in row.bars if bar.start == 4.5]
        assert labels == [f"{fire:%-H:%M}" for fire in plan.fire_times]
        assert plan.next_fire_at == day + 5 * hour
        assert [bar.start for bar in row.bars if bar.label in ("1:00", "5:00")] == [1, 5]


def test_diagram_of_overlapping_jobs_has_every_policy() -> None:
    assert {row.name for row in read_rows(source_of("overlap"))} == {policy.name for policy in Overlap}


def test_diagram_of_a_crash_has_the_times_of_the_rescuer() -> None:
    kill, discovery, death = (second_of("crash", words) for words in ("kill -9", "free lock", "none came in"))
    assert discovery - kill == PollingConfig().max_interval
    assert discovery + Rescuer.answer_timeout_s <= death <= discovery + Rescuer.answer_timeout_s + 1
    assert any(
        f"none came in {Rescuer.answer_timeout_s} seconds" in line for line in source_of("crash").lines
    )


def test_diagram_of_an_attempt_has_the_times_of_the_lease() -> None:
    lease = 60
    renewed, cut, free, claimed = (
        second_of("attempt", words) for words in ("heartbeat", "cut off", "lock is free", "reclaims the job")
    )
    assert renewed == lease / RENEWALS_PER_LEASE
    assert free - cut == LONGEST_SILENCE_S
    # The claim follows a poll or a scan that finds the free lock, and the time for a response.
    assert PollingConfig().max_interval < claimed - free - Rescuer.answer_timeout_s < 4
    assert claimed < renewed + lease, "the lock is found before the lease expires"


# -- the figures of the charts ---------------------------------------------------------------------------

CHARTS = [name for name in NAMES if source_of(name).settings["kind"] == "bars"]
TABLES = (ROOT / "docs" / "performance-tables.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d[\d,.]*\d|\d")
WITHOUT = r"(jobs without|without|the batch alone)\b"
"""How a table continues behind our throughput as a multiple of our own."""


def figures_of(name: str) -> list[Figure]:
    return [figure for chart in read_charts(source_of(name)) for figure in chart.figures]


def library_of(figure: Figure) -> str:
    """Return the other library of a grey bar."""
    return figure.name.partition(",")[0]


LIBRARIES = {library_of(figure) for name in CHARTS for figure in figures_of(name) if figure.style == "group"}


def cells_of(row: str) -> list[str]:
    """Return the cells of the only row of the tables that begins so."""
    (line,) = [line for line in TABLES.splitlines() if line.startswith(f"| {row}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def statement_of(figure: Figure) -> str:
    """Return the second cell of the row for ours, and else the text before the name in the third."""
    _, our_cell, other_cell = cells_of(figure.row)
    if figure.style != "group":
        return our_cell
    before, name, _ = other_cell.partition(library_of(figure))
    assert name, figure
    for library in LIBRARIES:
        before = before.rpartition(library)[2]
    version = re.compile(r" [\d.]+,")
    return version.sub("", before, count=1) if version.match(before) else before


def is_multiple_of_ours(figure: Figure) -> bool:
    """Return whether a table compares ours with our own throughput, which it does in the third cell."""
    return re.search(rf"(?<!\S){re.escape(figure.label)} {WITHOUT}", cells_of(figure.row)[2]) is not None


@each_case("name", CHARTS)
def test_figures_of_a_chart_stand_in_the_tables(name: str) -> None:
    """Each stands where its library does; several of a row, such as percentiles, in the order of the row."""
    figures_by_statement: dict[tuple[str, str], list[str]] = {}
    for figure in figures_of(name):
        if figure.style == "group" or not is_multiple_of_ours(figure):
            numbers = figures_by_statement.setdefault((figure.row, statement_of(figure)), [])
            numbers.append(figure.number)
    for (_, statement), numbers in figures_by_statement.items():
        assert numbers == NUMBER.findall(statement)[: len(numbers)], statement


@each_case("name", CHARTS)
def test_units_of_a_chart_are_those_of_the_tables(name: str) -> None:
    for figure in figures_of(name):
        if figure.unit == "x as fast":
            assert statement_of(figure).split()[-1] == "x", figure
        unit = figure.unit.removesuffix(" as fast").rpartition(" ")[2]
        assert re.search(rf"\b{unit}\b", " ".join(cells_of(figure.row))), figure


@each_case("name", CHARTS)
def test_bars_of_a_chart_are_drawn_to_scale(name: str) -> None:
    root = Picture(committed(name)).root
    widths = [float(rect.attrib["width"]) for rect in root.iter(f"{SVG}rect") if "x" in rect.attrib]
    for chart in read_charts(source_of(name)):
        lengths = [figure.length for figure in chart.figures]
        bar_widths, widths = widths[: len(lengths)], widths[len(lengths) :]
        full = WIDTH - 2 * MARGIN
        assert bar_widths == pytest.approx([full * length / max(lengths) for length in lengths], abs=0.06)
    assert widths == []


@each_case("name", CHARTS)
def test_description_of_a_chart_has_its_figures(name: str) -> None:
    """A screen reader reads the description instead of the bars."""
    description = NUMBER.findall(source_of(name).settings["description"])
    numbers = {figure.number for figure in figures_of(name)} - {"1.00"}
    assert numbers <= {*description}
    assert {*description} <= {*NUMBER.findall(TABLES)}


def test_ratio_of_a_chart_is_the_first_bar_divided_by_that_of_another() -> None:
    (chart,) = read_charts(read_source(f"{BARS}# heading\nbar 1,000 ms run: ours\nratio 4 x group: other"))
    assert [(figure.length, figure.label) for figure in chart.figures] == [
        (1000, "1,000 ms"),
        (250, "ours 4 x"),
    ]


def test_sentences_about_the_charts_have_figures_of_the_tables() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    sentences = re.sub(r"\]\([^)]+\)", "]", page)
    numbers = {*NUMBER.findall(sentences)}
    assert len(numbers) > 30
    assert numbers - {*NUMBER.findall(TABLES)} == set()
