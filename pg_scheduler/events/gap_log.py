"""Log what is lost of the events of other nodes."""

from __future__ import annotations

from pg_scheduler.events.gaps import EventsDropped, EventsMissed
from pg_scheduler.events.log import EventLog
from pg_scheduler.events.types import Event


class GapLog(EventLog):
    """Writes the records about lost events only: each node logs its own events."""

    def wants(self, kind: type[Event]) -> bool:
        """Return whether the event is about lost events."""
        return issubclass(kind, (EventsDropped, EventsMissed))

    def __call__(self, event: Event) -> None:
        """Write the record of the event if it is about lost events."""
        if self.wants(type(event)):
            super().__call__(event)
