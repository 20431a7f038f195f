"""Record the demo as an animated SVG: ``python3 dev.py picture`` writes ``docs/figures/demo.svg``.

The demo runs in a pseudo-terminal. A small terminal emulator replays its output, and each frame of the
picture is the screen as it was at that time.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final, TypeVar

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme

TARGET: Final = Path(__file__).parents[1] / "docs" / "figures" / "demo.svg"
COMMAND: Final = [sys.executable, "-m", "pg_scheduler", "demo"]
TITLE: Final = "python3 dev.py demo"
DESCRIPTION: Final = (
    "Recording of the demo: two worker processes share the jobs of one database, one of them is killed with "
    "SIGKILL, the other reclaims its jobs, and the report counts that nothing was lost or completed twice."
)

COLUMNS: Final = 84
LINES: Final = 26
FRAME_S: Final = 0.5
LAST_FRAME_S: Final = 7.0
FIRST_EVENT: Final = "SIGKILL"
"""The loop begins ``LEAD_S`` before the first frame that shows this text."""

LEAD_S: Final = 2.0
WRITE_GAP_S: Final = 0.03
"""Chunks that follow each other faster than this belong to one update of the screen."""

CELL_WIDTH: Final = 8.4
LINE_HEIGHT: Final = 18
FONT_SIZE: Final = 14
BASELINE: Final = 13
MARGIN: Final = 16
TITLE_BAR: Final = 34

THEME: Final = TerminalTheme(
    (22, 27, 34),
    (214, 221, 229),
    [  # black, red, green, yellow, blue, magenta, cyan, white
        *((22, 27, 34), (255, 110, 103), (95, 211, 118), (230, 190, 90)),
        *((110, 168, 254), (200, 150, 250), (86, 205, 217), (214, 221, 229)),
    ],
)
DIM_OPACITY: Final = 0.6
BORDER: Final = "#30363d"
BUTTONS: Final = ("#ff6e67", "#e6be5a", "#5fd376")

START_LINES: Final = 3
"""The first frame is the first screen with more lines than this: starting the server is not shown."""

_CONTROL: Final = re.compile(
    r"\x1b\[(?P<parameters>[?0-9;]*)(?P<final>[@-~])|(?P<newline>\r*\n)|(?P<return>\r)"
)
_WORDS: Final = re.compile(r"\S+(?: \S+)*")


@dataclass(frozen=True, slots=True)
class Output:
    """Text that the program wrote ``at`` seconds after its start."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Span:
    """Words in one style, from a column on."""

    column: int
    text: str
    style: str


T = TypeVar("T")
Line = tuple[Span, ...]
Screen = tuple[Line, ...]


def record(command: Sequence[str], columns: int, lines: int) -> list[Output]:
    """Run a command in a pseudo-terminal and return what it writes, one entry per update of the screen."""
    pid, terminal = pty.fork()
    if pid == 0:
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            os.environ.pop(name, None)
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": ""}
        os.execv(command[0], list(command))  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    started = time.monotonic()
    chunks: list[tuple[float, bytes]] = []
    while chunk := _read(terminal):
        now = time.monotonic() - started
        if chunks and now - chunks[-1][0] < WRITE_GAP_S:
            chunk = chunks.pop()[1] + chunk
        chunks.append((now, chunk))
    _, status = os.waitpid(pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)} exited with code {code}; the picture was not changed")
    return [Output(at, chunk.decode()) for at, chunk in chunks]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux reports the end of a pseudo-terminal as EIO
        return b""


class Terminal:
    """Emulator of the control sequences that rich uses for a live display.

    Args:
        lines: The height of the screen.
    """

    def __init__(self, lines: int) -> None:
        self._height = lines
        self._lines = [""]
        self._row = 0
        self._at_start = True

    def feed(self, text: str) -> None:
        """Process output of the program.

        Raises:
            ValueError: The output needs a feature that is not supported.
        """
        position = 0
        for control in _CONTROL.finditer(text):
            self._write(text[position : control.start()])
            self._execute(control)
            position = control.end()
        self._write(text[position:])

    def screen(self) -> Screen:
        """Return the visible lines."""
        return tuple(_parse(line) for line in self._lines[-self._height :])

    def _write(self, text: str) -> None:
        if not text:
            return
        if "\x1b" in text:
            raise ValueError(f"unsupported escape sequence in {text!r}")
        if self._at_start and self._lines[self._row]:
            raise ValueError(f"{text!r} would overwrite {self._lines[self._row]!r}, which is not supported")
        self._lines[self._row] += text
        self._at_start = False

    def _execute(self, control: re.Match[str]) -> None:
        match control["final"], control["parameters"]:
            case "m", _:
                self._write_style(control[0])
            case "K", "2":
                self._lines[self._row] = ""
            case "A", count:
                self._row -= int(count or 1)
            case "h" | "l", "?25":  # show or hide the cursor
                pass
            case None, _:
                self._at_start = True
                if control["newline"]:
                    self._row += 1
                    self._lines += [""] * (self._row == len(self._lines))
            case _:
                raise ValueError(f"unsupported control sequence {control[0]!r}")

    def _write_style(self, sequence: str) -> None:
        self._lines[self._row] += sequence
        self._at_start = False


def _parse(line: str) -> Line:
    spans = []
    column = 0
    for text, style, _ in AnsiDecoder().decode_line(line).render(Console()):
        spans += [Span(column + words.start(), words[0], _css(style)) for words in _WORDS.finditer(text)]
        column += len(text)
    return tuple(spans)


def _css(style: Style | None) -> str:
    if style is None:
        return ""
    rules = []
    if style.color is not None and not style.color.is_default:
        rules.append(f"fill:{style.color.get_truecolor(THEME).hex}")
    if style.bold:
        rules.append("font-weight:bold")
    if style.dim:
        rules.append(f"opacity:{DIM_OPACITY}")
    if style.strike:
        rules.append("text-decoration:line-through")
    return ";".join(rules)


def frames_of(outputs: Sequence[Output], lines: int, every: float) -> list[Screen]:
    """Return the screen at regular intervals; the last frame is the screen at the end."""
    terminal = Terminal(lines)
    frames: list[Screen] = []
    began: float | None = None
    for output in outputs:
        while began is not None and began + len(frames) * every < output.at:
            frames.append(terminal.screen())
        terminal.feed(output.text)
        if began is None and len(terminal.screen()) > START_LINES:
            began = output.at
    return [*frames, terminal.screen()]


def start_of_loop(frames: Sequence[Screen], every: float) -> float:
    """Return the time of the recording at which the loop begins, in seconds."""
    for number, frame in enumerate(frames):
        if any(FIRST_EVENT in span.text for line in frame for span in line):
            return max(number * every - LEAD_S, 0.0)
    raise ValueError(f"no frame shows {FIRST_EVENT!r}")


def render(
    frames: Sequence[Screen], columns: int, lines: int, every: float, last: float, *, start: float = 0.0
) -> str:
    """Return an SVG that shows the frames in a loop from ``start`` on, the last one longer than the others.

    Without support for animations, and where the reader prefers reduced motion, it shows the last frame.
    """
    width = round(columns * CELL_WIDTH) + 2 * MARGIN
    height = lines * LINE_HEIGHT + TITLE_BAR + MARGIN
    classes = {style: f"s{number}" for number, style in enumerate(_most_common(_styles(frames))) if style}
    ids = {line: f"l{number}" for number, line in enumerate(_most_common(_lines(frames)))}
    duration = (len(frames) - 1) * every + last
    style = "".join(
        [
            f"text{{font:{FONT_SIZE}px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;",
            f"fill:{THEME.foreground_color.hex};white-space:pre}}",
            *(f".{name}{{{css}}}" for css, name in classes.items()),
            f".f{{visibility:hidden;animation:f {duration:g}s step-end infinite}}",
            f"@keyframes f{{0%{{visibility:visible}}{every / duration:.4%}{{visibility:hidden}}}}",
            f".z{{animation:z {duration:g}s step-end {-start:g}s infinite}}",
            f"@keyframes z{{0%{{visibility:hidden}}{1 - last / duration:.4%}{{visibility:visible}}}}",
            "@media(prefers-reduced-motion:reduce){g{animation:none!important}}",
        ]
    )
    colors = f'fill="{THEME.background_color.hex}" stroke="{BORDER}"'
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size} role="img">',
        f"<title>{escape(TITLE)}</title><desc>{escape(DESCRIPTION)}</desc><style>{style}</style>",
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" {colors}/>',
        *(f'<circle cx="{MARGIN + 6 + 18 * n}" cy="17" r="5" fill="{c}"/>' for n, c in enumerate(BUTTONS)),
        f'<text x="{width / 2:g}" y="22" text-anchor="middle" opacity="{DIM_OPACITY}">{escape(TITLE)}</text>',
        "<defs>",
        *(f'<g id="{name}">{_draw(line, classes)}</g>' for line, name in ids.items()),
        "</defs>",
        f'<g transform="translate({MARGIN},{TITLE_BAR})">',
    ]
    for number, frame in enumerate(frames):
        is_last = number == len(frames) - 1
        delay = number * every - start
        opening = '<g class="z">' if is_last else f'<g class="f" style="animation-delay:{delay:g}s">'
        uses = (
            f'<use href="#{ids[line]}" y="{row * LINE_HEIGHT}"/>' for row, line in enumerate(frame) if line
        )
        parts.append(f"{opening}{''.join(uses)}</g>")
    return "\n".join([*parts, "</g></svg>", ""])


def _draw(line: Line, classes: dict[str, str]) -> str:
    def attribute(span: Span) -> str:
        return f' class="{classes[span.style]}"' if span.style else ""

    return "".join(
        f'<text x="{span.column * CELL_WIDTH:.5g}" y="{BASELINE}" '
        f'textLength="{len(span.text) * CELL_WIDTH:.5g}"'
        f"{attribute(span)}>{escape(span.text, quote=False)}</text>"
        for span in line
    )


def _lines(frames: Sequence[Screen]) -> Iterator[Line]:
    return (line for frame in frames for line in frame if line)


def _styles(frames: Sequence[Screen]) -> Iterator[str]:
    return (span.style for line in _lines(frames) for span in line)


def _most_common(values: Iterator[T]) -> list[T]:
    return [value for value, _ in Counter(values).most_common()]  # the shortest names go to these


def main() -> None:
    """Record the demo and write the picture."""
    frames = frames_of(record(COMMAND, COLUMNS, LINES), LINES, FRAME_S)
    start = start_of_loop(frames, FRAME_S)
    picture = render(frames, COLUMNS, LINES, FRAME_S, LAST_FRAME_S, start=start)
    TARGET.write_text(picture, encoding="utf-8")
    print(f"{TARGET}: {len(frames)} frames, {TARGET.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
