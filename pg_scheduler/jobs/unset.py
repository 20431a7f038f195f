"""The value of options that were not given, for parameters where None has a meaning of its own."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Unset(Enum):
    """The type of UNSET. It is an enum, so that copies and pickles are the same object."""

    UNSET = "UNSET"

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""An option that was not given: it takes the value of the schedule, the task or the Scheduler."""
