"""The recording of the demo in the README."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from pg_scheduler.cli.demo.scenario import TITLES
from tests.docs.snippets import ROOT
from tools.record_demo import Output, Terminal, frames_of, render, start_of_loop

PICTURE = ROOT / "docs" / "figures" / "demo.svg"
SVG = "{http://www.w3.org/2000/svg}"


def lines(terminal: Terminal) -> list[list[str]]:
    return [[span.text for span in line] for line in terminal.screen()]


def test_terminal_redraws_lines_when_a_live_display_moves_up() -> None:
    terminal = Terminal(lines=5)
    terminal.feed("start\r\n\x1b[?25l\x1b[1mone\x1b[0m\r\ntwo\r\x1b[2K\x1b[1A\x1b[2K")
    assert lines(terminal) == [["start"], [], []]
    terminal.feed("\x1b[31mthree\x1b[0m  four\r\n\x1b[?25h")
    assert lines(terminal) == [["start"], ["three", "four"], []]
    (three, four) = terminal.screen()[1]
    assert (three.column, three.style) == (0, "fill:#ff6e67")
    assert (four.column, four.style) == (7, "")


def test_terminal_scrolls_when_the_screen_is_full() -> None:
    terminal = Terminal(lines=2)
    terminal.feed("one\r\ntwo\r\nthree")
    assert lines(terminal) == [["two"], ["three"]]


@pytest.mark.parametrize("text", ["\x1b[5;5Hmoved", "\x1b]0;title\x07", "old\rnew"])
def test_terminal_raises_when_an_escape_sequence_is_not_supported(text: str) -> None:
    with pytest.raises(ValueError, match="supported"):
        Terminal(lines=2).feed(text)


def test_frames_show_the_screen_at_regular_times() -> None:
    outputs = [
        Output(0.0, "a"),
        Output(2.0, "\r\n\r\n\r\n"),
        Output(2.7, "b"),
        Output(2.9, "c"),
        Output(3.1, "d"),
    ]
    last = [[screen[-1][0].text if screen[-1] else ""] for screen in frames_of(outputs, 10, 0.5)]
    assert last == [[""], [""], ["bc"], ["bcd"]]


def test_picture_shows_the_frames_in_turn_and_the_last_one_longer() -> None:
    frames = frames_of([Output(0, "a\r\n\r\n\r\n<&>"), Output(0.7, "\x1b[31m!\x1b[0m")], 10, 0.5)
    assert len(frames) == 3
    picture = render(frames, columns=10, lines=10, every=0.5, last=1.5)
    root = ET.fromstring(picture)
    assert [group.get("class") for group in root.iter(f"{SVG}g") if group.get("class")] == ["f", "f", "z"]
    assert "<&>" in "".join(root.itertext())
    assert "animation:z 2.5s" in picture
    assert "40.0000%{visibility:visible}" in picture


def test_picture_begins_its_loop_two_seconds_before_the_kill() -> None:
    outputs = [Output(0, "a\r\n\r\n\r\nb"), Output(3.2, "\r\nwith SIGKILL"), Output(4.2, "\r\nend")]
    frames = frames_of(outputs, 10, 0.5)
    assert start_of_loop(frames, 0.5) == 1.5
    picture = render(frames, columns=10, lines=10, every=0.5, last=1.5, start=1.5)
    delays = re.findall(r"animation-delay:(-?[\d.]+)s", picture)
    assert [float(delay) for delay in delays] == [number * 0.5 - 1.5 for number in range(len(frames) - 1)]
    assert "step-end -1.5s infinite" in picture
    with pytest.raises(ValueError, match="SIGKILL"):
        start_of_loop(frames[:2], 0.5)


def test_committed_picture_is_small_and_shows_the_current_demo() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    words = " ".join(ET.fromstring(text).itertext())
    assert len(text) < 150_000
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script", text)
    for title in TITLES.values():
        assert title in words, f"{title!r} is missing; python3 dev.py picture records the demo again"
    results = ("nothing lost: 2,100 of 2,100", "nothing doubled: 0 of 2,1", "reclaimed: ")
    for result in (*results, "SIGKILL", "liveness lock"):
        assert result in words, f"{result!r} is missing; python3 dev.py picture records the demo again"
