"""The objects that make changes: the Scheduler, and an Inspector that writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from pg_scheduler.dashboard.access import Access
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.inspect import Bounds, Inspector
from pg_scheduler.inspect.bulk_runs import BulkRuns
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.tools import default_author, find_task, local_now


class Operations:
    """Makes the changes of requests.

    Attributes:
        scheduler: The Scheduler.
        inspector: Reads and writes on its pool, and not on that of the pages, which may lead to a standby.
        runs: The bulk runs.
    """

    def __init__(self, scheduler: Scheduler, bounds: Bounds) -> None:
        self.scheduler = scheduler
        # An action may read what a page then takes from the cache, so the bounds are those of the pages.
        self.inspector = Inspector(scheduler, bounds=bounds)
        self.runs = BulkRuns(self.inspector)

    @contextmanager
    def acting(self, access: Access) -> Iterator[None]:
        """Record the actor of a request in the audit as the author of all changes in this block."""
        release = default_author(self.scheduler).release
        with acting_as(Author(access.actor, "dashboard", release)):
            yield

    @property
    def now(self) -> datetime:
        """The time, by the clock that a test gave the Scheduler, else by the clock of this process."""
        return local_now(self.scheduler)

    def is_registered(self, task: str) -> bool:
        """Return whether this process has registered a name."""
        return find_task(self.scheduler, task) is not None

    def names_of(self, task: str) -> set[str]:
        """Return a name of a task, and its main one if this process has registered it."""
        registered = find_task(self.scheduler, task)
        return {task} if registered is None else {task, registered.name}
