"""Delays between attempts at something that is unavailable."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double up to a limit. Each delay is shortened at random by up to a half.

    Many processes lose the same database at the same moment. Without the random part, their next attempts
    would be at the same moments, too.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s

    def next_delay_s(self, longest_s: float | None = None) -> float:
        """Return the seconds until the next attempt, at most ``longest_s``; None for the usual limit."""
        delay_s = self._next_s if longest_s is None else min(self._next_s, longest_s)
        # The delay that was used is doubled, so a limit for one call also shortens the delays after it.
        self._next_s = min(2 * delay_s, self._longest_s)
        return delay_s * random.uniform(0.5, 1)  # noqa: S311 - no secret

    def reset(self) -> None:
        """Begin again with the shortest delay: an attempt has succeeded."""
        self._next_s = self._first_s
