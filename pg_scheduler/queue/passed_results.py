"""Results of jobs, copied to the jobs that wait for them and read them.

A copy is a row of ``scheduler_steps``, so it lives as long as the job that reads it. The transaction that
ends the other job writes the copy. If the other job has ended before, the transaction that inserts the reader
does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pg_scheduler.base.status import JobStatus
from pg_scheduler.base.text.times import read_timestamp
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Repository
from pg_scheduler.errors import JobResult
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.payload import object_from
from pg_scheduler.jobs.result import read_value
from pg_scheduler.queue.kept_results import NOT_KEPT, error_from, terminal

RESULTS_AT_ONCE: Final = 100
"""The number of results that one statement should read at most: a value may have a megabyte."""

PASSED: Final = "result:"
"""The prefix of the names of results."""

OF_CHILD: Final = "child:"
"""The prefix of the names of results of children. They stay if the step of a child is repeated."""

KEPT: Final = "kept:"
"""The prefix of the results that a step keeps after its end, while another step waits for the child again."""

NEXT: Final = "next:"
"""The prefix of results for a new definition of a job, while an attempt of the former definition runs."""


class Edge(NamedTuple):
    """Two jobs, of which the second one waits for the first.

    Attributes:
        parent_id: The job that ends.
        child_id: The job that waits.
        definition: What distinguishes the waiting job from earlier and later ones with its id, if one of its
            steps waits. It is empty for ``after=``, and None for an edge of an older release, which does not
            tell.
    """

    parent_id: str
    child_id: str
    definition: str | None


class ChildResult(NamedTuple):
    """The result of a job that a step waited for.

    Attributes:
        result: The result.
        is_child: False if the job that ended had the id of a child, but was no child of the step.
    """

    result: JobResult
    is_child: bool


class PassedResultRepository(Repository):
    """The statements about results that are passed to other jobs."""

    async def clear(self, job_ids: Sequence[str], connection: Connection) -> dict[str, str]:
        """Delete what former jobs with these ids have stored as steps.

        Return, by the ids of the jobs, the prefixes for the names of the results that are passed to them. If
        an attempt of a former job runs, the results wait for its end under another prefix.
        """
        prefixes = dict.fromkeys(job_ids, PASSED)
        for row in await self._statements.fetch("clear_steps", job_ids, on=connection):
            prefixes[row["job_id"]] = NEXT
        return prefixes

    async def copy(self, edges: Iterable[Edge], prefixes: Mapping[str, str], connection: Connection) -> None:
        """Pass the results of jobs that have ended to jobs that are locked.

        Args:
            edges: What the jobs waited for, each edge once. Results for jobs without a prefix are not passed.
            prefixes: The prefixes of the names, by the ids of the jobs that read the results.
            connection: The connection of the transaction.
        """
        if passed_edges := [edge for edge in edges if edge.child_id in prefixes]:
            # An array for each field of the edges.
            parents, readers, definitions = zip(*passed_edges, strict=True)
            names = [prefixes[reader] for reader in readers]
            now = self._statements.now
            await self._statements.fetch(
                "pass_results", parents, readers, names, now, definitions, on=connection
            )

    async def take_over(self, job_ids: Sequence[str], connection: Connection) -> None:
        """Delete what the former definitions of jobs stored, and give the new ones the results that waited.

        These are results that were passed while an attempt of a former definition ran.
        """
        await self._statements.fetch("take_over_results", job_ids, on=connection)

    async def names(self, job_id: str) -> list[str]:
        """Return the names of the results that were passed to a job, ordered by the ids of their jobs."""
        return [row["name"] for row in await self._statements.fetch("passed_names", job_id)]

    async def get(self, job_id: str, names: Sequence[str]) -> list[JobResult]:
        """Return the results with these names that were passed to a job, in the order of the names."""
        results = await self._read(job_id, names)
        return [passed_result.result for name in names if (passed_result := results.get(name)) is not None]

    async def of_children(self, job_id: str, step: str, children: Collection[str]) -> dict[str, ChildResult]:
        """Return the results of a step's children that were passed to a job, by the ids of the children."""
        digests = [_digest(child) for child in dict.fromkeys(children)]
        results: dict[str, ChildResult] = {}
        for start in range(0, len(digests), RESULTS_AT_ONCE):
            page = digests[start : start + RESULTS_AT_ONCE]
            kept_names = [f"{KEPT}{_digest(step)}:{digest}" for digest in page]
            passed_names = [OF_CHILD + digest for digest in page]
            passed_results = await self._read(job_id, passed_names + kept_names)
            # A child may have two results: its newest one, and an older one that this step has returned and
            # kept. The kept one comes last and replaces the other, so each attempt gets the same value.
            for name in (*passed_names, *kept_names):
                if name in passed_results:
                    child_result = passed_results[name]
                    results[child_result.result.job_id] = child_result
        return results

    async def _read(self, job_id: str, names: Sequence[str]) -> dict[str, ChildResult]:
        """Return the results with these names that were passed to a job, by name."""
        rows = await self._statements.fetch("passed_results", job_id, names)
        codec = self._statements.codec
        results: dict[str, ChildResult] = {}
        for row in rows:
            result = _passed_from(row, codec)
            # It is None for a result that was written by hand.
            if result is not None:
                results[row["name"]] = result
        return results


def _digest(text: str) -> str:
    """Return a hash of an id or a name, which has a fixed length in the name of a result."""
    return sha256(text.encode()).hexdigest()


def _passed_from(row: Any, codec: PayloadCodec | None) -> ChildResult | None:
    """Return the result of a row; None if it was written by hand and has no terminal status.

    The row has the value of the other job and, as JSON, a description of its end.
    """
    end = object_from(row["described"])
    status, attempts, error = terminal(end.get("status")), end.get("attempts"), end.get("error")
    # ``terminal()`` returns None for a text that is not the status of an ended job.
    if status is None:
        return None
    value, reason = read_value(row["value"], end.get("no_value_reason"), codec)
    if row["value"] is None and status is JobStatus.COMPLETED:
        reason = NOT_KEPT
    result = JobResult(
        str(end.get("job_id")),
        status,
        value=value,
        no_value_reason=reason,
        error=None if error is None else error_from(error),
        attempts=attempts if isinstance(attempts, int) else 0,
        started_at=_instant(end.get("started_at")),
        finished_at=_instant(end.get("finished_at")),
    )
    # Where this is unknown, the description lacks it, and the job counts as a child.
    return ChildResult(result, end.get("is_child") is not False)


def _instant(text: object) -> datetime | None:
    """Return the time that a text states; None if Python cannot represent it, as after the year 9999."""
    if isinstance(text, str):
        with suppress(ValueError):
            return read_timestamp(text)
    return None
