"""What jobs have published while they run, as people see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from pg_scheduler.errors import SchedulerError
from pg_scheduler.inspect.base import InspectorBase
from pg_scheduler.inspect.store.inspections import PublishedRow
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.streams import published_value
from pg_scheduler.jobs.validation import check_job_id


@dataclass(frozen=True, slots=True)
class PublishedItem:
    """A published value, or an item of a stream."""

    number: int
    """The number of the item; 0 for a published value."""
    value: Any
    """The value; None also if it is not shown."""
    no_value_reason: str | None
    """The reason why the value is not shown; None otherwise."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a job has published under one name."""

    name: str
    """The name."""
    value: PublishedItem | None
    """The value that was published last; None if there is none."""
    count: int
    """The number of items of the stream of this name; 0 if there is none."""
    items: Sequence[PublishedItem]
    """The last 20 items, in their order."""


class PublishedReads(InspectorBase):
    """The method of `Inspector` that reads values and streams."""

    async def published(self, job_id: str) -> Sequence[Published]:
        """Return what a job has published, by name: its values, and the last 20 items of each stream.

        Values that need more than 2,000 bytes are None, with a reason.

        Args:
            job_id: The job.

        Raises:
            JobNotFoundError: No job has this id.

        Example::

            await scheduler.schedule_job("mail.send", datetime.now(UTC), {}, job_id="mail:10")
            for published in await inspector.published("mail:10"):
                print(published.name, published.count)
        """
        rows = await self._reads.inspections.published(check_job_id(job_id))
        codec = self._reads.statements.codec
        all_published = []
        # The rows are in the order of their names and numbers.
        for name, rows_of_name in groupby(rows, key=attrgetter("name")):
            items = [_item(job_id, row, codec) for row in rows_of_name]
            value = items.pop(0) if items[0].number == 0 else None
            count = items[-1].number if items else 0
            all_published.append(Published(name, value, count, items))
        return all_published


def _item(job_id: str, row: PublishedRow, codec: PayloadCodec | None) -> PublishedItem:
    """Return the value of a row, or the reason why it is not shown."""
    if row.value is None:
        return PublishedItem(row.number, None, f"it is large: {row.size:,} bytes as stored")
    try:
        return PublishedItem(row.number, published_value(job_id, row.name, row.value, codec), None)
    except SchedulerError as error:  # a codec is missing, or cannot read it
        return PublishedItem(row.number, None, str(error))
