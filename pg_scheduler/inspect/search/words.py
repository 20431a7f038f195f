"""Split a search text into words.

Each character of a word has its place in the text, and states whether it was quoted. Within double quotes
every character stands for itself. There, a quote or a backslash is written with a backslash before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from pg_scheduler.base.sqltext import is_storable
from pg_scheduler.errors import SchedulerError


class SearchError(SchedulerError, ValueError):
    """A search text is invalid; the message contains the reason and the remedy.

    Attributes:
        position: The index in the text at which the mistake is, from 0 to its length.
        suggestion: The word that was probably meant; None if none is similar.
    """

    def __init__(self, message: str, position: int, suggestion: str | None = None) -> None:
        self.position = position
        self.suggestion = suggestion
        meant = "" if suggestion is None else f"; did you mean {suggestion!r}?"
        super().__init__(f"{message}{meant} (at character {position + 1})")


MAX_LENGTH: Final = 4000
"""Characters of a search text. Scanning takes time in proportion to it."""

QUOTE: Final = '"'
ESCAPE: Final = "\\"


class Char(NamedTuple):
    """A character of a word."""

    text: str
    place: int
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A part of the text without unquoted blanks.

    Attributes:
        chars: Its characters, without the quotes.
        start: Where it starts in the text.
        end: Where it ends.
    """

    chars: tuple[Char, ...]
    start: int
    end: int

    @property
    def text(self) -> str:
        """The characters."""
        return "".join(char.text for char in self.chars)

    def find(self, mark: str) -> int | None:
        """Return the index of the first unquoted occurrence of a mark; None if there is none."""
        for index in range(len(self.chars) - len(mark) + 1):
            if self._has(mark, index):
                return index
        return None

    def starts_with(self, mark: str) -> bool:
        """Return whether the word starts with an unquoted mark."""
        return self._has(mark, 0)

    def before(self, index: int) -> Word:
        """Return the part before an index."""
        return Word(self.chars[:index], self.start, self._place(index))

    def after(self, index: int) -> Word:
        """Return the part from an index on."""
        return Word(self.chars[index:], self._place(index), self.end)

    def split(self, mark: str) -> list[Word]:
        """Return the parts between unquoted marks; the whole word if it has no mark."""
        parts = []
        start = index = 0
        # The parts are taken from this word. If each mark copied what remains of it, the time would grow with
        # the square of the length.
        while index <= len(self.chars) - len(mark):
            if self._has(mark, index):
                parts.append(self._part(start, index))
                start = index = index + len(mark)
            else:
                index += 1
        return [*parts, self._part(start, len(self.chars))]

    def _part(self, start: int, end: int) -> Word:
        """Return the part between two indexes."""
        start_place = self._place(start) if start else self.start
        return Word(self.chars[start:end], start_place, self._place(end))

    def _has(self, mark: str, index: int) -> bool:
        """Return whether the unquoted mark is at an index of the word."""
        part = self.chars[index : index + len(mark)]
        # At the end of the word, the part may be shorter than the mark.
        return len(part) == len(mark) and all(
            char.text == expected and not char.is_quoted for char, expected in zip(part, mark, strict=True)
        )

    def _place(self, index: int) -> int:
        """Return the place in the search text of the character at an index of the word, or of its end."""
        return self.chars[index].place if index < len(self.chars) else self.end


def split_words(text: str) -> list[Word]:
    """Return the words of a search text.

    Raises:
        SearchError: The text is too long, a quote is not closed, or PostgreSQL cannot store a character.
    """
    if len(text) > MAX_LENGTH:
        raise SearchError(f"the search has more than {MAX_LENGTH} characters; shorten it", MAX_LENGTH)
    for place, char in enumerate(text):
        if not is_storable(char):
            raise SearchError("the search contains a character that no text of the database has", place)
    words: list[Word] = []
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        word = _word_at(text, place)
        words.append(word)
        place = word.end
    return words


def _word_at(text: str, start: int) -> Word:
    """Return the word that starts at a place of the search text and ends before the next unquoted blank."""
    chars: list[Char] = []
    place = start
    # The place of the quote that is open; None outside of quotes.
    quoted_since = None
    while place < len(text):
        char = text[place]
        if char == QUOTE:
            # A quote opens, or closes the one that is open.
            quoted_since = place if quoted_since is None else None
        elif quoted_since is None and char.isspace():
            break
        else:
            next_char = text[place + 1 : place + 2]
            is_escape = char == ESCAPE and next_char in {QUOTE, ESCAPE}
            # Within quotes, the character after the backslash stands for itself.
            if quoted_since is not None and is_escape:
                place += 1
            chars.append(Char(text[place], place, quoted_since is not None))
        place += 1
    if quoted_since is not None:
        raise SearchError("the quote is not closed; write another one where the text ends", quoted_since)
    return Word(tuple(chars), start, place)
