"""The metrics of all workers for Prometheus, as the exporter of the command line serves them."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from starlette.responses import Response

from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.dashboard.context import NotFoundError, PageRequest, RejectedError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


async def metrics(request: PageRequest, *, is_head: bool) -> Response:
    """Return the metrics, at most 10 s old.

    Raises:
        NotFoundError: The extra ``[metrics]`` is not installed.
        RejectedError: The request sees only some names.
    """
    if request.access.visible_names is not None:
        raise RejectedError("you may not read the metrics: they belong to all names", 403)
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415 - an extra
    except ImportError:
        text = "the metrics need prometheus-client; install the extra: pip install 'pg-scheduler[metrics]'"
        raise NotFoundError(text) from None
    if is_head:
        return Response(media_type=CONTENT_TYPE_LATEST)

    # The registry is kept for good. Its collector reads the database for a scrape, at most every 10 s.
    registry = await request.read_shared(_make_registry, age_s=inf, is_age_shown=False)
    return Response(await run_in_thread(generate_latest, registry), media_type=CONTENT_TYPE_LATEST)


async def _make_registry(request: PageRequest) -> CollectorRegistry:
    """Return a registry of Prometheus whose collector reads the database."""
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra

    from pg_scheduler.telemetry.cluster import ClusterCollector  # noqa: PLC0415

    registry = CollectorRegistry()
    registry.register(ClusterCollector(request.inspector))
    return registry
