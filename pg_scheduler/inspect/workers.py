"""Read workers, and make requests of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.inspect.base import InspectorBase
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.validation import check_text
from pg_scheduler.settings import VacuumConfig, VacuumPolicy, VacuumTrigger
from pg_scheduler.store.author import acting_as
from pg_scheduler.store.workers import DRAIN

MAX_WORKERS: Final = 500
"""Workers of one call."""

POLICIES: Final = ("completed", "failed", "cancelled", "expired", "schedules", "audit")


class WorkerMethods(InspectorBase):
    """The methods of `Inspector` that read workers and make requests of them.

    Workers fulfil a request with their next heartbeat, which is requested at once.
    """

    async def workers(self) -> list[Worker]:
        """Return every worker that has a row, oldest first, and whether its lease is valid."""
        return await self._reads.workers.list_workers()

    async def retention(self) -> VacuumConfig:
        """Return the retention that every live worker reports.

        Raises:
            ConfigurationError: No live worker reports one, or they differ.
        """
        found = {
            json.dumps(values, sort_keys=True): values
            for worker in await self.workers()
            if worker.is_alive and isinstance(values := worker.settings.get("vacuum"), Mapping)
        }
        if not found:
            raise ConfigurationError(
                "no live worker reports its retention, and the default may delete more; start a worker"
            )
        if len(found) > 1:
            raise ConfigurationError("live workers have different retention policies; finish the deployment")
        return _config_of(next(iter(found.values())))

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


def _config_of(values: Mapping[str, Any]) -> VacuumConfig:
    try:
        policies: dict[str, Any] = {
            name: VacuumPolicy(
                VacuumTrigger(policy["trigger"]), days=policy.get("days"), keep_count=policy.get("keep_count")
            )
            for name in POLICIES
            if (policy := values.get(name)) is not None
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"the retention in the row of a worker is invalid: {error!r}") from error
    return VacuumConfig(**policies, track_metrics=bool(values.get("track_metrics")))
