"""The words that start this program, for its restart and for the processes of a supervisor."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

_words: Final = [sys.executable, "-m", "pg_scheduler"]


def program() -> list[str]:
    """Return the words before the arguments of the program."""
    return [*_words]


def set_program(words: Sequence[str]) -> None:
    """Set the words, in a program that runs this one."""
    _words[:] = words
