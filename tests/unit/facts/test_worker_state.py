"""The state of a worker."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pg_scheduler import Worker
from pg_scheduler.facts.worker_state import state_of

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def worker(
    state: str | None, wanted: str | None = None, *, is_alive: bool = True, is_stopping: bool = False
) -> Worker:
    return Worker(
        worker_id="w",
        hostname="host",
        pid=1,
        version="1",
        max_concurrent_jobs=1,
        running_jobs=0,
        started_at=NOW,
        last_beat=NOW,
        lease_until=NOW,
        is_alive=is_alive,
        is_stopping=is_stopping,
        state=state,
        wanted=wanted,
    )


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (worker("running"), "running"),
        (worker(None), "running"),
        (worker("a state of a later release"), "running"),
        (worker("running", "drain"), "draining"),
        (worker("draining"), "draining"),
        (worker("stopping", "drain"), "stopping"),
        (worker("draining", "drain", is_stopping=True), "stopping"),
        (worker("draining", "drain", is_alive=False), "dead"),
    ],
)
def test_first_state_in_order_applies(row: Worker, state: str) -> None:
    assert state_of(row) == state
