"""The state of a worker: one word for each worker. The first one in this order applies.

- ``dead``: its lease has expired.
- ``stopping``: it shuts down, or has shut down while threads that cannot be stopped run on.
- ``draining``: it claims no more jobs until it is resumed; or this was requested, and the worker obeys with
  its next heartbeat.
- ``running``: it claims jobs, or plans schedules, as its role is.

The column ``is_draining`` of the statement ``inspect_workers`` is true for ``stopping`` and ``draining``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pg_scheduler.jobs.model import Worker
from pg_scheduler.worker.worker_rows import DRAIN

WorkerState: TypeAlias = Literal["running", "draining", "stopping", "dead"]


def state_of(worker: Worker) -> WorkerState:
    """Return the state of a worker: the first one that applies, from dead to running."""
    if not worker.is_alive:
        return "dead"
    if worker.is_stopping or worker.state == "stopping":
        return "stopping"
    return "draining" if is_draining(worker) else "running"


def is_draining(worker: Worker) -> bool:
    """Return whether a worker drains, or is requested to, whether it is alive or not."""
    return worker.wanted == DRAIN or worker.state == "draining"
