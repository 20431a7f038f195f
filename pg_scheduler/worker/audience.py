"""The event classes that other workers subscribe to."""

from __future__ import annotations

from collections.abc import Iterable


class Audience:
    """Names of event classes: the heartbeat reads them, and the relay sends such events."""

    __slots__ = ("kinds",)

    def __init__(self) -> None:
        self.kinds: frozenset[str] = frozenset()

    def update(self, kinds: Iterable[str]) -> bool:
        """Set the names; return whether they have changed."""
        former, self.kinds = self.kinds, frozenset(kinds)
        return self.kinds != former
