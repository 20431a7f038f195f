"""Compute how many jobs the next claim may return, unless the user has set it.

The cost of a claim is mostly that of its round trip and its commit, so few large claims are cheaper than many
small ones. But while the queue is short, a large claim would leave nothing to the other workers. So the size
doubles after each claim that returned as many jobs as it could, and is small again after any other.
"""

from __future__ import annotations

from typing import Final

SMALL: Final = 10
"""Jobs of a claim while the queue is short."""

WHOLE: Final = 128
"""Slots that one claim may fill. A worker with more fills half of them while jobs run in the others."""

LARGE: Final = 500
"""Jobs of the largest claim: larger ones were slower."""


class ClaimSize:
    """The size of the next claim.

    Args:
        given: The size that the user has set, which then never changes; None to adapt it.
        slots: The slots of the worker.
    """

    def __init__(self, given: int | None, slots: int) -> None:
        self._small = given or SMALL
        self._large = given or max(min(slots // 2, LARGE), min(slots, WHOLE), SMALL)
        self.limit = self._small
        """The jobs that the next claim may return, if as many slots are free."""

    def reset(self) -> None:
        """Return to a small claim."""
        self.limit = self._small

    def adapt(self, asked: int, found: int) -> None:
        """Note how many jobs a claim asked for and found."""
        if found < asked:
            self.reset()
        elif asked == self.limit:  # else the free slots were the limit
            self.limit = min(2 * asked, self._large)
