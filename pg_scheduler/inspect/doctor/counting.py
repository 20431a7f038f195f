"""Whether workers count what they do, which some checks need."""

from __future__ import annotations

from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.texts import listed


async def why_uncounted(store: InspectionStore) -> str | None:
    """Return which live workers count no attempts; None if all do."""
    silent = [
        f"{each.worker_id} on {each.hostname}"
        for each in await store.workers.list_workers()
        if each.is_alive and each.settings.get("statistics") is False
    ]
    return f"statistics are off (statistics=False): {listed(silent)}" if silent else None
