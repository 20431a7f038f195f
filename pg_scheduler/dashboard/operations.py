"""The objects that make changes: the Scheduler, and an Inspector that writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pg_scheduler.dashboard.access import Access
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.bulk_runs import BulkRuns
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.store.author import Author, acting_as


class Operations:
    """Makes the changes of requests.

    Attributes:
        scheduler: The Scheduler.
        inspector: Reads and writes on its pool, and not on that of the pages, which may lead to a standby.
        runs: The bulk runs.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.inspector = Inspector(scheduler)
        self.runs = BulkRuns(self.inspector)

    @contextmanager
    def acting(self, access: Access) -> Iterator[None]:
        """Name the actor of a request in the audit of what it changes."""
        release = self.scheduler._parts.store.statements.author.release  # noqa: SLF001 - as an Inspector does
        with acting_as(Author(access.actor, "dashboard", release)):
            yield
