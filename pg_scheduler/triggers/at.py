"""The trigger that fires at given instants."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.search import is_in_range, to_utc
from pg_scheduler.triggers.serialization import trigger_kind

MAX_INSTANTS: Final = 1000


@trigger_kind("at")
@dataclass(frozen=True, slots=True, init=False)
class At(Trigger):
    """A trigger that fires once at each of the given instants.

    Args:
        instants: 1 to 1,000 timezone-aware datetimes, in any order.

    Raises:
        ValueError: No instant is given, more than 1,000 are, or one is naive.

    Attributes:
        instants: The instants in UTC, in order.
    """

    instants: tuple[datetime, ...]

    def __init__(self, *instants: datetime) -> None:
        if not 0 < len(instants) <= MAX_INSTANTS:
            raise ValueError(f"At has {len(instants)} instants; pass 1 to {MAX_INSTANTS}")
        for instant in instants:
            value: object = instant
            if not isinstance(value, datetime):
                raise ValueError(f"At takes datetimes, not {value!r}")  # noqa: TRY004 - as the other errors
            if not is_in_range(value):
                raise ValueError(
                    f"{value!r} is out of range: its date in UTC must be from 0001-01-03 to 9999-12-31"
                )
        distinct_instants = {to_utc(instant) for instant in instants}
        # The dataclass is frozen, so its attribute cannot be assigned.
        object.__setattr__(self, "instants", tuple(sorted(distinct_instants)))

    @classmethod
    def _from_fields(cls, **fields: Any) -> At:
        """Return the value with the fields of its JSON: the constructor takes instants one by one."""
        return cls(*fields["instants"])

    def next_after(self, instant: datetime, *, anchor: datetime | None = None) -> datetime | None:  # noqa: ARG002
        """Return the first of the instants strictly after ``instant``; None after the last one."""
        index = bisect_right(self.instants, to_utc(instant))
        return self.instants[index] if index < len(self.instants) else None

    def __str__(self) -> str:
        first, last = self.instants[0], self.instants[-1]
        if len(self.instants) > 3:
            return f"at {len(self.instants)} instants from {_text(first)} to {_text(last)} UTC"
        return f"at {', '.join(map(_text, self.instants))} UTC"


def _text(instant: datetime) -> str:
    """Return an instant without its time zone, such as "2027-01-31 09:00", with seconds only if needed."""
    timespec = "minutes" if not (instant.second or instant.microsecond) else "auto"
    return instant.replace(tzinfo=None).isoformat(" ", timespec)
