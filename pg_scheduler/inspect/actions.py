"""The methods of `Inspector` that make requests of workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pg_scheduler.inspect.base import InspectorBase
from pg_scheduler.jobs.validation import check_text
from pg_scheduler.store.author import acting_as
from pg_scheduler.store.types import DRAIN

MAX_WORKERS: Final = 500
"""Workers of one call."""


class WorkerActions(InspectorBase):
    """Requests that workers fulfil with their next heartbeat, which is requested at once."""

    async def drain_workers(self, worker_ids: Iterable[str]) -> list[str]:
        """Request of workers to claim no more jobs; running ones continue. Return the ids that exist.

        A request lasts until ``resume_workers()``, or the end of the worker.

        Args:
            worker_ids: At most 500 ids.

        Raises:
            ValueError: There are more ids.

        Example::

            await inspector.drain_workers([worker.worker_id for worker in await inspector.workers()])
        """
        return await self._request(worker_ids, DRAIN)

    async def resume_workers(self, worker_ids: Iterable[str]) -> list[str]:
        """Request of draining workers to claim jobs again. Return the ids that exist.

        Args:
            worker_ids: At most 500 ids.

        Raises:
            ValueError: There are more ids.

        Example::

            await inspector.resume_workers([worker.worker_id for worker in await inspector.workers()])
        """
        return await self._request(worker_ids, None)

    async def _request(self, worker_ids: Iterable[str], wanted: str | None) -> list[str]:
        ids = _checked(worker_ids)
        with acting_as(self._author()):
            return await self._store.workers.request_state(ids, wanted)


def _checked(worker_ids: Iterable[str]) -> list[str]:
    if isinstance(worker_ids, str):
        raise TypeError(f"worker_ids must be a list, not the str {worker_ids!r}; pass [{worker_ids!r}]")
    ids = [check_text("worker_id", each) for each in worker_ids]
    if len(ids) > MAX_WORKERS:
        raise ValueError(
            f"worker_ids must have at most {MAX_WORKERS} ids, not {len(ids)}; pass them in parts"
        )
    return ids
