"""Drain and resume workers."""

from __future__ import annotations

from pg_scheduler.dashboard.actions.request import ActionRequest, ConfirmPage, Redirect
from pg_scheduler.dashboard.context import NotFoundError
from pg_scheduler.dashboard.texts import short
from pg_scheduler.inspect.texts import counted


async def drain(request: ActionRequest) -> Redirect | ConfirmPage:
    """Ask a worker to claim no more jobs, once the user has confirmed it."""
    worker_id = request.page.required("id")
    if request.is_confirmed:
        return _redirect(worker_id, await request.page.inspector.drain_workers([worker_id]), "worker_drained")
    workers = await request.page.inspector.workers()
    worker = next((worker for worker in workers if worker.worker_id == worker_id), None)
    if worker is None:
        raise _no_such_worker(worker_id)
    jobs = counted(worker.running_jobs, "running job")
    name = short(worker.identity or worker_id)
    question = f"Drain {name}? It completes its {jobs} and claims no more, until it is resumed or ends."
    return ConfirmPage(question, "Drain", "/worker")


async def resume(request: ActionRequest) -> Redirect:
    """Ask a draining worker to claim jobs again."""
    worker_id = request.page.required("id")
    return _redirect(worker_id, await request.page.inspector.resume_workers([worker_id]), "worker_resumed")


def _redirect(worker_id: str, changed_ids: list[str], did: str) -> Redirect:
    """Return to the page of a worker.

    Raises:
        NotFoundError: The worker was not changed, so it does not exist.
    """
    if not changed_ids:
        raise _no_such_worker(worker_id)
    return Redirect("/worker", did, {"id": worker_id})


def _no_such_worker(worker_id: str) -> NotFoundError:
    """Return the error about a worker that has no row."""
    return NotFoundError(f"there is no worker {worker_id[:200]!r}; it may have ended")
