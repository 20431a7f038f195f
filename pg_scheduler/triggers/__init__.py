"""Triggers compute the fire times of a schedule: pure arithmetic on instants, the same on every node.

A trigger is an immutable value. Combine triggers with ``|``, ``&`` and ``-``, restrict them with `During`,
and call ``upcoming()`` to see when they fire.
"""

from pg_scheduler.triggers.at import At
from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.calendar_interval import CalendarInterval
from pg_scheduler.triggers.cron import Cron
from pg_scheduler.triggers.during import During
from pg_scheduler.triggers.interval import Every, FixedDelay
from pg_scheduler.triggers.phrases import parse_trigger
from pg_scheduler.triggers.search import SearchLimitError
from pg_scheduler.triggers.serialization import UnknownKindError, trigger_kind
from pg_scheduler.triggers.sets import DuringSet

__all__ = [
    "At",
    "CalendarInterval",
    "Cron",
    "During",
    "DuringSet",
    "Every",
    "FixedDelay",
    "SearchLimitError",
    "Trigger",
    "UnknownKindError",
    "parse_trigger",
    "trigger_kind",
]

for _name in __all__:  # tracebacks and docs name the module that users import from
    globals()[_name].__module__ = __name__
