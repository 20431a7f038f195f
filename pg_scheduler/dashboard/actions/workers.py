"""Drain and resume workers."""

from __future__ import annotations

from pg_scheduler.dashboard.actions.request import ActionRequest, Done
from pg_scheduler.dashboard.context import NotFoundError


async def drain(request: ActionRequest) -> Done:
    """Request of a worker to claim no more jobs."""
    worker_id = request.page.required("id")
    return _done(worker_id, await request.operations.inspector.drain_workers([worker_id]), "worker_drained")


async def resume(request: ActionRequest) -> Done:
    """Request of a draining worker to claim jobs again."""
    worker_id = request.page.required("id")
    return _done(worker_id, await request.operations.inspector.resume_workers([worker_id]), "worker_resumed")


def _done(worker_id: str, found: list[str], did: str) -> Done:
    if not found:
        raise NotFoundError(f"there is no worker {worker_id[:200]!r}; it may have ended")
    return Done("/worker", did, {"id": worker_id})
