"""Lists and ranges of numbers with names, such as ``mon-fri`` and ``jan-mar,12``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MAX_LENGTH: Final = 400
_ITEM: Final = re.compile(r"(\w+)(?:-(\w+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Numbering:
    """Numbers from 1 to ``last``, some of which have names.

    Attributes:
        last: The largest number.
        names: The names from 1 on; none if the numbers have no names.
        has_digits: Whether numbers are accepted. Programs count weekdays from 0 or 1, Sunday or Monday, so
            only their names are.
        example: A valid text.
    """

    last: int
    names: Sequence[str]
    has_digits: bool
    example: str

    def parse(self, parameter: str, given: object) -> tuple[str | None, frozenset[int] | None]:
        """Return the text in its shortest form, and the numbers; None for the numbers if all are.

        Both are None if no text is given.

        Raises:
            ValueError: The text is not a list of numbers, names and ranges.
        """
        if given is None:
            return None, None
        text = str(given) if isinstance(given, int) and not isinstance(given, bool) else given
        if not isinstance(text, str) or not 0 < len(text) <= _MAX_LENGTH:
            raise self._invalid(parameter, given)
        found: set[int] = set()
        for item in text.lower().split(","):
            span = _ITEM.fullmatch(item.strip())
            if span is None:
                raise self._invalid(parameter, given)
            first = self._number(parameter, given, span[1])
            last = self._number(parameter, given, span[2]) if span[2] else first
            found |= (
                {*range(first, last + 1)}
                if first <= last
                else {*range(first, self.last + 1), *range(1, last + 1)}
            )
        return self._text(found), None if len(found) == self.last else frozenset(found)

    def _number(self, parameter: str, given: object, word: str) -> int:
        if word in self.names:
            return self.names.index(word) + 1
        if self.has_digits and len(word) <= 2 and word.isdigit() and 1 <= int(word) <= self.last:
            return int(word)
        raise self._invalid(parameter, given)

    def _text(self, numbers: set[int]) -> str:
        words = []
        for first in sorted(each for each in numbers if each - 1 not in numbers):
            last = next(each for each in range(first, self.last + 1) if each + 1 not in numbers)
            ends = [self._name(each) for each in ([first, last] if last > first else [first])]
            words.append(("," if last == first + 1 else "-").join(ends))
        return ",".join(words)

    def _name(self, number: int) -> str:
        return self.names[number - 1] if self.names else str(number)

    def _invalid(self, parameter: str, given: object) -> ValueError:
        allowed = "names" if not self.has_digits else f"numbers from 1 to {self.last}"
        shown = f"{given[:40]}..." if isinstance(given, str) and len(given) > 40 else given
        return ValueError(
            f"{parameter} must be a list or range of {allowed}, such as {self.example!r}, not {shown!r}"
        )


WEEKDAYS: Final = Numbering(7, ("mon", "tue", "wed", "thu", "fri", "sat", "sun"), False, "mon-fri")
MONTHS: Final = Numbering(
    12,
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    True,
    "jan-mar,12",
)
WEEKS: Final = Numbering(53, (), True, "1-26")
