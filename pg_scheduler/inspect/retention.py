"""The retention policies of the live workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.settings import VacuumConfig, VacuumPolicy, VacuumTrigger

POLICIES: Final = ("completed", "failed", "cancelled", "expired", "schedules", "audit")


async def read_retention(inspector: Inspector) -> VacuumConfig:
    """Return the retention that every live worker reports.

    Raises:
        ConfigurationError: No live worker reports one, or they differ.
    """
    found = {
        json.dumps(values, sort_keys=True): values
        for worker in await inspector.workers()
        if worker.is_alive and isinstance(values := worker.settings.get("vacuum"), Mapping)
    }
    if not found:
        raise ConfigurationError(
            "no live worker reports its retention, and the default may delete more; start a worker"
        )
    if len(found) > 1:
        raise ConfigurationError("live workers have different retention policies; finish the deployment")
    return _config_of(next(iter(found.values())))


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
