"""Move jobs of tenants to the claim index, in turns."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.database.refused_rows import RefusedRows, Selection
from pg_scheduler.database.session import Record
from pg_scheduler.database.statements import Repository, Statements
from pg_scheduler.jobs.keys import prefix_of
from pg_scheduler.jobs.shares import BLOCKED_BY_SHARE
from pg_scheduler.queue.locks import LOCK_CLASS

END: Final = "z"
"""Follows every tenant in the index of blocked jobs."""


class Fed(NamedTuple):
    """The result of a pass over tenants.

    Attributes:
        jobs: The number of jobs that were moved.
        due: When the first of them is due; None if there is none.
        room: The number of due jobs for which there is room left.
        is_complete: Whether no other feeder held the lock of a share.
        locked: The ids of jobs that were passed over, because other transactions have locked their rows.
    """

    jobs: int
    due: datetime | None
    room: int
    is_complete: bool
    locked: Sequence[str] = ()


class ShareRepository(Repository):
    """The statements of shares."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        self._refused_moves = RefusedRows("job {} does not get the turn of its tenant")

    async def tenants(self, after: str, limit: int) -> list[str]:
        """Return tenants with waiting jobs that follow the tenant ``after``, in the order of the index."""
        rows = await self._statements.fetch("blocked_keys", after, END, limit)
        return [row["blocked_on"] for row in rows]

    async def feed(
        self,
        tenants: Sequence[str],
        shares: Mapping[str, Sequence[str]],
        names: Sequence[str],
        *,
        left_out: Collection[str] = (),
    ) -> Fed:
        """Move the next jobs of tenants to the claim index, as many as there is room for.

        A job whose move the application refuses is left out for some time.

        Args:
            tenants: Tenants with waiting jobs, each as the text by which its jobs are blocked.
            shares: The names of the tasks of each share, by the prefix of the share.
            names: The names that this worker claims.
            left_out: The ids of jobs that are not moved, because their rows are locked.
        """
        # The share of each tenant, and these shares without those whose tasks are not claimed here.
        share_of = {key: prefix_of(BLOCKED_BY_SHARE, key) for key in tenants}
        prefixes = [prefix for prefix in dict.fromkeys(share_of.values()) if prefix in shares]
        # The shares whose locks the last execution has taken.
        locked_shares: set[str] = set()

        async def run(selection: Selection) -> list[Record]:
            """Move jobs in one transaction. It runs again, with a selection of jobs, if a move is refused."""
            async with self._statements.connections.admission() as connection:
                rows = await self._statements.fetch("lock_shares", LOCK_CLASS, prefixes, on=connection)
                locked_shares.clear()
                locked_shares.update(row["prefix"] for row in rows)
                if not locked_shares:
                    return []
                keys = [key for key in tenants if share_of[key] in locked_shares]
                # The statement takes the pairs of a share and the name of a task as two arrays.
                pairs = [(prefix, name) for prefix in locked_shares for name in shares[prefix]]
                # The ids are the keys of a JSON object, which the server searches faster than an array.
                left_out_ids = json.dumps(dict.fromkeys([*left_out, *selection.left_out]))
                return await self._statements.fetch(
                    "feed_shares",
                    keys,
                    [share_of[key] for key in keys],
                    [prefix for prefix, _ in pairs],
                    [name for _, name in pairs],
                    names,
                    self._statements.now,
                    left_out_ids,
                    only=selection.only,
                    finds=selection.finds,
                    on=connection,
                )

        rows = await self._refused_moves.change(run)
        # Without a row, other feeders hold the locks of all shares.
        if not rows:
            return Fed(jobs=0, due=None, room=0, is_complete=False)
        # Each execution returns one row. The last one knows how much room the others have left.
        last_row = rows[-1]
        due_times = [row["due"] for row in rows if row["due"] is not None]
        return Fed(
            jobs=sum(row["jobs"] for row in rows),
            due=min(due_times, default=None),
            room=last_row["room"],
            is_complete=len(locked_shares) == len(prefixes),
            locked=tuple(last_row["locked"]),
        )

    async def find_locked(self, job_ids: Collection[str]) -> set[str]:
        """Return the ids of those of these jobs whose rows other transactions have locked."""
        async with self._statements.connections.admission() as connection:
            rows = await self._statements.fetch("lock_settled", list(job_ids), [], on=connection)
        return {row["job_id"] for row in rows}
