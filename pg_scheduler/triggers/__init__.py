"""Triggers compute the fire times of a schedule: pure arithmetic on instants, the same on every node.

`IntervalTrigger` and `CronTrigger` are what ``@periodic(every=...)`` and ``@periodic(cron=...)`` use. Call
``next_after()`` to see when a schedule fires.
"""

from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.cron import CronTrigger
from pg_scheduler.triggers.interval import IntervalTrigger

__all__ = ["CronTrigger", "IntervalTrigger", "Trigger"]

for _name in __all__:  # tracebacks and docs name the module that users import from
    globals()[_name].__module__ = __name__
