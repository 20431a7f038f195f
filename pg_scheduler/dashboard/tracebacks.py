"""Tracebacks as blocks: frames of the application, frames of libraries to fold, messages, separators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from typing import Final

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from pg_scheduler.dashboard.texts import visible
from pg_scheduler.inspect.texts import counted

HEADER: Final = "Traceback (most recent call last):"
SEPARATORS: Final = {
    "The above exception was the direct cause of the following exception:": "caused",
    "During handling of the above exception, another exception occurred:": "and while it was handled",
}
"""The lines between chained exceptions, and what a page shows in their place."""

_FRAME: Final = re.compile(r'  File "(?P<path>.*)", line (?P<line>[0-9]{1,9})(?:, in (?P<function>.*))?')
_LIBRARY: Final = re.compile(
    r"(?!.*[\\/]pg_scheduler[\\/]cli[\\/]demo[\\/])"  # the demo is an application
    r"(?:.*[\\/](?:site|dist)-packages|.*[\\/]lib(?:64)?[\\/]python3\.\d+|.*(?=[\\/]pg_scheduler[\\/]))[\\/]"
    r"(?P<name>[^\\/.]+)"
)
"""The path of a file of a library, up to the name of its package. This package is a library too."""

_MARKS: Final = re.compile(r"\s+[~^][~^ ]*")
"""A line that marks a part of the line of code above it."""


@dataclass(slots=True)
class Frame:
    """A frame of a traceback, with its lines of code."""

    path: str
    line: int
    function: str
    lines: list[str] = field(default_factory=list)

    @property
    def library(self) -> str | None:
        """The package of a library that it belongs to; None for the application."""
        if self.path.startswith("<frozen "):
            return "Python"
        match = _LIBRARY.match(self.path)
        return None if match is None else match["name"]

    @property
    def folder(self) -> str:
        """The last folder of its path, with its separator."""
        parts = re.split(r"(?<=[\\/])", self.path)
        return parts[-2] if len(parts) > 1 else ""

    @property
    def file(self) -> str:
        """The name of its file."""
        return re.split(r"[\\/]", self.path)[-1]


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a traceback.

    Attributes:
        kind: ``own`` for a frame of the application, ``library`` for frames of libraries in a row,
            ``message``, or ``separator`` between two exceptions.
        text: The message, or what the separator means; for libraries, their number and names.
        frames: The frames.
    """

    kind: str
    text: str = ""
    frames: tuple[Frame, ...] = ()


def blocks_of(traceback: str) -> list[Block]:
    """Return a traceback as blocks. A text that is no traceback becomes one message.

    The start of a long traceback is not kept, so the first lines may belong to no frame.
    """
    blocks: list[Block] = []
    for is_library, parts in groupby(_parts(traceback), _is_library):
        if is_library:
            # Only a Frame is a part of a library. The test is for the type checker.
            frames = tuple(part for part in parts if isinstance(part, Frame))
            blocks.append(Block("library", _described(frames), frames))
            continue
        for part in parts:
            if isinstance(part, Frame):
                blocks.append(Block("own", frames=(part,)))
            elif part in SEPARATORS:
                blocks.append(Block("separator", SEPARATORS[part]))
            else:
                blocks.append(Block("message", part))
    return blocks


def _is_library(part: Frame | str) -> bool:
    """Return whether a part of a traceback is a frame of a library."""
    return isinstance(part, Frame) and part.library is not None


def _parts(traceback: str) -> Iterator[Frame | str]:
    """Yield the parts of a traceback: frames, and texts, which are separators between exceptions or messages.

    All lines between two frames or separators are one message.
    """
    # The frame whose lines of code are being read, and the lines of the message that is being read.
    frame: Frame | None = None
    message: list[str] = []
    for line in traceback.splitlines():
        match = _FRAME.fullmatch(line)
        # The code of a frame is indented. "  [Previous line repeated 3 more times]" belongs to the frame too.
        is_code = frame is not None and line.startswith(("    ", "  ["))
        # Any other line ends the frame.
        if frame is not None and not is_code:
            yield frame
            frame = None
        # Such a line ends the message.
        if match is not None or line in SEPARATORS or line == HEADER:
            if text := "\n".join(message).strip("\n"):
                yield text
            message = []
        if match is not None:
            frame = Frame(match["path"], int(match["line"]), match["function"] or "")
        elif frame is not None:
            frame.lines.append(line)
        elif line in SEPARATORS:
            yield line
        elif line != HEADER:
            message.append(line)
    if frame is not None:
        yield frame
    if text := "\n".join(message).strip("\n"):
        yield text


def _described(frames: Sequence[Frame]) -> str:
    """Return the number of frames and the names of their libraries, each once, as a text."""
    *first_libraries, last_library = dict.fromkeys(frame.library or "" for frame in frames)
    libraries = f"{', '.join(first_libraries)} and {last_library}" if first_libraries else last_library
    return f"{counted(len(frames), 'frame')} of {libraries}"


def highlighted(frame: Frame) -> Markup:
    """Return the code of a frame as HTML, with the classes of Pygments.

    Lines that mark a part of the line above them, such as ``~~^~~``, are no code, so they are not
    highlighted.
    """
    html = []
    for is_mark, lines in groupby(frame.lines, lambda line: _MARKS.fullmatch(line) is not None):
        text = "\n".join(visible(line) for line in lines)
        if is_mark:
            html.append(Markup('<span class="mark">{}</span>').format(text))
        else:
            html.append(Markup(_highlighter()(text).rstrip("\n")))  # noqa: S704 - it escapes
    return Markup("\n").join(html)


@cache
def _highlighter() -> Callable[[str], str]:
    """Return the function that highlights code, which keeps empty lines as they are."""
    lexer = PythonLexer(stripnl=False, ensurenl=False)
    return partial(highlight, lexer=lexer, formatter=HtmlFormatter(nowrap=True))
