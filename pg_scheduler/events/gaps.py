"""Events about events that a subscriber did not receive."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pg_scheduler.events.types import Event

MAX_QUEUED_EVENTS: Final = 1000
"""Events that wait for one asynchronous subscriber or iterator; older ones are dropped."""


@dataclass(frozen=True, slots=True)
class EventsDropped(Event):
    """An asynchronous subscriber or iterator was 1,000 events behind, so its oldest events were dropped.

    It receives this event, whatever its classes, in the place of the dropped ones. No other subscriber does.
    The log has one WARNING each time that it falls so far behind.
    """

    number: int
    """How many events were dropped in this place."""
    subscriber: str
    """The name of the subscriber, ``events()`` or ``next_event()``."""


@dataclass(frozen=True, slots=True)
class EventsMissed(Event):
    """Events of other nodes may be lost: read the rows of what you follow.

    Every subscriber with ``cluster=True`` receives it, whatever its classes, when notifications arrive again
    after the LISTEN connection was lost, and when the notifications of a node have a gap.
    """

    since: datetime
    """When notifications last arrived, by the clock of this process."""
