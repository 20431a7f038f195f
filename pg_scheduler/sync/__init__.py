"""Use a Scheduler from code without asyncio: Flask, Django, Celery tasks, scripts, jobs in threads.

`SyncScheduler` has the methods of `Scheduler`, and each blocks until its result is there. One daemon thread
runs the event loop; the first call starts it.
"""

from pg_scheduler.sync.current import current_scheduler
from pg_scheduler.sync.scheduler import SyncScheduler
from pg_scheduler.sync.steps import (
    AttemptEnded,
    BlockingCursor,
    BlockingSteps,
    StepConnection,
    current_steps,
)
from pg_scheduler.sync.streams import BlockingStream, BlockingStreams, current_streams

__all__ = [
    "AttemptEnded",
    "BlockingCursor",
    "BlockingSteps",
    "BlockingStream",
    "BlockingStreams",
    "StepConnection",
    "SyncScheduler",
    "current_scheduler",
    "current_steps",
    "current_streams",
]

for _name in __all__:
    globals()[_name].__module__ = __name__
