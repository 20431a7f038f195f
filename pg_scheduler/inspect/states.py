"""Count the jobs of each state, within bounds."""

from __future__ import annotations

from typing import Final, NamedTuple

from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.jobs import totals_of
from pg_scheduler.inspect.paths import UNSUCCESSFUL

MAX_UNFINISHED_ROWS: Final = 1_000
"""Blocked jobs that are counted, and due and later ones of each priority."""

MAX_UNSUCCESSFUL_ROWS: Final = 5_000
"""Unsuccessful jobs that are counted, the newest."""


class StateCount(NamedTuple):
    """The number of jobs of a state.

    Attributes:
        number: The number.
        is_capped: Whether there may be more, because counting stopped.
        is_estimated: Whether it is an estimate of the database.
    """

    number: int
    is_capped: bool = False
    is_estimated: bool = False


async def count_states(inspector: Inspector) -> dict[str, StateCount]:
    """Return the number of jobs of each value of ``status:``, and of all jobs by the empty text.

    Numbers of unsuccessful jobs need their index, and estimates a table that was analyzed; else they are
    missing.
    """
    store = inspector._reads  # noqa: SLF001 - front ends share it, callers do not
    async with store.searches.transaction() as connection:
        estimates = (await store.searches.sizes(on=connection)).estimates
        unfinished = await store.cluster.unfinished(MAX_UNFINISHED_ROWS, on=connection)
        ended = None
        if UNSUCCESSFUL in estimates:
            ended = await store.cluster.unsuccessful(MAX_UNSUCCESSFUL_ROWS, on=connection)
    totals = totals_of(estimates)
    counts: dict[str, StateCount] = {}
    if totals.jobs is not None:
        counts[""] = StateCount(totals.jobs, is_estimated=True)
    counts |= {
        "due": StateCount(unfinished.due, unfinished.is_due_capped),
        "running": StateCount(unfinished.running, unfinished.is_due_capped),
        "scheduled": StateCount(unfinished.scheduled, unfinished.is_later_capped),
        "blocked": StateCount(unfinished.blocked, unfinished.blocked >= MAX_UNFINISHED_ROWS),
        "retrying": StateCount(unfinished.retrying, unfinished.is_later_capped),
    }
    if ended is not None:
        for state in ("failed", "expired", "cancelled"):
            counts[state] = StateCount(getattr(ended, state), ended.is_capped)
    if None not in (totals.jobs, totals.unfinished, totals.blocked, totals.unsuccessful):
        others = sum(each or 0 for each in (totals.unfinished, totals.blocked, totals.unsuccessful))
        counts["completed"] = StateCount(max((totals.jobs or 0) - others, 0), is_estimated=True)
    return counts
