"""Store and read the values and the streams of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from pg_scheduler.database.faults import UnstorableTextError
from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Repository, Statements
from pg_scheduler.errors import JobLostError, PayloadError
from pg_scheduler.jobs.rows import Claim

VALUE: Final = 0
"""The number of a published value. The numbers of items begin with 1."""

PAGE_SIZE: Final = 100
"""Items of one stream that one statement reads."""

VACUUMED_JOBS: Final = 1000
VACUUMED_ROWS: Final = 10_000
"""Jobs that one statement of the vacuum looks at, and rows that it deletes."""


class NewItem(NamedTuple):
    """An item or a value that is to be stored, as JSON."""

    name: str
    number: int
    text: str


class StreamSize(NamedTuple):
    """How much of a stream is stored: the number of its last item, and the bytes of the JSON of all."""

    name: str
    last: int
    size: int


class Wanted(NamedTuple):
    """The items of a stream that a reader wants: those after one number, up to another one."""

    job_id: str
    name: str
    after: int
    last: int


class Page(NamedTuple):
    """Items of a stream, and what has become of its job.

    Attributes:
        has_row: Whether there is such a job.
        has_ended: Whether it has ended. Then the page has all of its items, or is full.
        definition: Distinguishes what this definition of the job has published; None before it has.
        items: The numbers of the items, and their JSON.
    """

    has_row: bool
    has_ended: bool
    definition: str | None
    items: Sequence[tuple[int, str]]


class StreamRepository(Repository):
    """The statements about what jobs publish."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        self._refused = RefusedRows("old streams of job {} not deleted", by_pass=True)

    async def append(
        self,
        worker_id: str,
        claim: Claim,
        definition: str,
        items: Sequence[NewItem],
        *,
        connection: Connection | None = None,
    ) -> None:
        """Store items and values. A repetition has no further effect.

        Args:
            worker_id: The worker that runs the attempt.
            claim: The attempt.
            definition: What distinguishes the rows of the job, if it has none yet.
            items: The items, and values with the number ``VALUE``, each name once.
            connection: The connection of a transaction with which they commit; None for none.

        Raises:
            JobLostError: The attempt does not hold its job any more; nothing was stored.
            PayloadError: The encoding of the database lacks a character.
        """
        args = claim.job_id, worker_id, claim.attempt, definition
        names, numbers, texts = map(list, zip(*items, strict=True))
        try:
            rows = await self._statements.fetch("append_items", *args, names, numbers, texts, on=connection)
        except UnstorableTextError as error:
            raise PayloadError(
                f"a value that job {claim.job_id!r} has published: {error}"
            ) from error.__cause__
        if not rows:
            raise JobLostError(claim.job_id)

    async def sizes(self, job_id: str) -> list[StreamSize]:
        """Return the sizes of all streams of a job. A name with a value only has the size 0."""
        return await self._rows(StreamSize, "count_items", job_id)

    async def read(self, wanted: Sequence[Wanted]) -> list[Page]:
        """Return a page for each reader, in their order."""
        columns = map(list, zip(*wanted, strict=True))
        rows = await self._statements.fetch("read_items", *columns, PAGE_SIZE)
        pages: list[Page] = []
        # The rows are in the order of the readers, and each reader has at least one.
        for _, rows_of_reader in groupby(rows, key=itemgetter("place")):
            first, *others = rows_of_reader
            items = [(row["number"], row["value"]) for row in (first, *others) if row["number"] is not None]
            pages.append(Page(first["has_row"], first["has_ended"], first["definition"], items))
        return pages

    async def vacuum(self, after: str) -> tuple[str | None, bool]:
        """Delete a batch of rows whose job has another definition or is deleted.

        Args:
            after: The id of a job; rows of jobs with higher ids are looked at.

        Returns:
            The id to pass as ``after`` to the next call, None at the end; and whether to repeat this call
            first, because it has deleted as many rows as it may.
        """
        args = after, VACUUMED_JOBS, VACUUMED_ROWS
        rows = await self._refused.fetch("vacuum_streams", *args, statements=self._statements)
        return rows[-1]["last_id"], any(row["is_full"] for row in rows)
