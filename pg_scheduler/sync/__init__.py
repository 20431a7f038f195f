"""Use a Scheduler from code without asyncio: Flask, Django, Celery tasks, scripts.

`SyncScheduler` has the methods of `Scheduler`, and each blocks until its result is there. One daemon thread
runs the event loop; the first call starts it.
"""

from pg_scheduler.sync.current import current_scheduler
from pg_scheduler.sync.scheduler import SyncScheduler

__all__ = ["SyncScheduler", "current_scheduler"]

SyncScheduler.__module__ = current_scheduler.__module__ = __name__
