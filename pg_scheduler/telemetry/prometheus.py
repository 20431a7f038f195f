"""Export the metrics of a process to Prometheus. The extra ``[metrics]`` installs what this needs.

``metrics_app()`` is an ASGI application for a web application that has a server; ``serve_metrics()`` answers
from a thread. Both read memory and make no query.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from pg_scheduler.base.text.remedies import SCHEDULER_REMEDY
from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.migrate import shipped_migrations
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.telemetry.families import Families
from pg_scheduler.telemetry.metrics import PROCESS
from pg_scheduler.telemetry.process_metrics import add_counters, add_gauges
from pg_scheduler.telemetry.server import Answer, App, Request, ThreadServer, answering, listen, text_answer
from pg_scheduler.tools import check_scheduler, meter_of, read_gauges, settings_of
from pg_scheduler.version import __version__

__all__ = ["SchedulerCollector", "metrics_app", "serve_metrics"]

PREFIX: Final = "pg_scheduler_"
MULTIPROCESS_VARIABLES: Final = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
PATHS: Final = frozenset({"", "/metrics"})
"""The paths of the metrics, without a slash at the end."""


class SchedulerCollector(Collector):
    """The metrics of a Scheduler, for a registry of prometheus_client; any thread may collect them.

    Args:
        scheduler: The Scheduler, started or not.

    Raises:
        ConfigurationError: The Scheduler counts nothing, or prometheus_client is in multiprocess mode.
        TypeError: ``scheduler`` is no Scheduler.

    Example::

        from prometheus_client import CollectorRegistry
        from pg_scheduler.telemetry.prometheus import SchedulerCollector

        registry = CollectorRegistry()
        registry.register(SchedulerCollector(scheduler))
    """

    def __init__(self, scheduler: Scheduler) -> None:
        refuse_multiprocess_mode()
        self._scheduler = check_scheduler(scheduler)
        meter = meter_of(scheduler)
        if meter is None:
            raise ConfigurationError(
                "this Scheduler counts nothing: it has statistics=False; leave it at True"
            )
        self._meter = meter
        self._schema_version = shipped_migrations()[-1].version

    def collect(self) -> Iterable[Metric]:
        """Return the families of this instant."""
        scheduler = self._scheduler
        families = Families(PROCESS, PREFIX, settings_of(scheduler).schema)
        version = (__version__, str(self._schema_version), platform.python_version())
        families.add("build_info", {version: 1})
        add_gauges(families, read_gauges(scheduler))
        add_counters(families, self._meter.snapshot(), is_running=scheduler.is_running)
        return families.all


def metrics_app(source: Scheduler | Collector) -> App:
    """Return an ASGI application that serves ``/`` and ``/metrics``, to be mounted in a web application.

    It has no authentication. A blocked event loop blocks this application too, but not ``serve_metrics()``.

    Args:
        source: The Scheduler, started or not, or a collector of prometheus_client.

    Raises:
        ConfigurationError: The Scheduler counts nothing, or prometheus_client is in multiprocess mode.
        TypeError: ``source`` is neither.

    Example::

        from pg_scheduler.telemetry.prometheus import metrics_app

        app = metrics_app(scheduler)  # FastAPI: application.mount("/metrics", app)
    """
    registry = _registry_of(source)

    async def answer(request: Request) -> Answer:
        """Return the answer to a scrape, which is made in a thread."""
        return await run_in_thread(_answer, registry, request)  # it may take tens of ms

    return answering(answer)


@contextmanager
def serve_metrics(source: Scheduler | Collector, host: str = "127.0.0.1", port: int = 9464) -> Iterator[int]:
    """Serve the metrics over HTTP, from threads, within a ``with`` block. It has no authentication.

    Args:
        source: The Scheduler, or a collector of prometheus_client.
        host: The address to listen on; ``"0.0.0.0"`` for every interface.
        port: The port; 0 for a free one.

    Yields:
        The port on which it listens.

    Raises:
        ConfigurationError: The Scheduler counts nothing, or prometheus_client is in multiprocess mode.
        OSError: The address cannot be used.
        TypeError: ``source`` is neither, or another value has the wrong type.
        ValueError: There is no such port.

    Example::

        from pg_scheduler.telemetry.prometheus import serve_metrics

        with serve_metrics(scheduler, port=0) as port:
            print(f"http://127.0.0.1:{port}/metrics")
    """
    answer = partial(_answer, _registry_of(source))
    with listen(host, port) as listening, ThreadServer(answer, listening, "pg_scheduler metrics") as server:
        yield server.port


def refuse_multiprocess_mode() -> None:
    """Raise ConfigurationError if prometheus_client is in multiprocess mode, which ignores collectors."""
    for variable in MULTIPROCESS_VARIABLES:
        if variable in os.environ:
            raise ConfigurationError(
                f"{variable} is set: in its multiprocess mode, prometheus_client exports no collectors; "
                "run `pg-scheduler exporter` for the metrics of all processes, or unset the variable and "
                "call serve_metrics() with another port in each process"
            )


def _answer(registry: CollectorRegistry, request: Request) -> Answer:
    """Return the answer to a scrape, in the format that the client accepts."""
    if request.path.rstrip("/") not in PATHS:
        return text_answer(404, "not found: the metrics are at /metrics\n")
    if request.method not in {"GET", "HEAD"}:
        return text_answer(405, "metrics are read by GET\n")
    encode, kind = choose_encoder(request.accept)
    return Answer(200, kind, encode(registry))


def _registry_of(source: Scheduler | Collector) -> CollectorRegistry:
    """Return a registry with the metrics of a Scheduler, or with a collector of prometheus_client."""
    registry = CollectorRegistry()
    # The method of a class has no object whose metrics it could collect.
    has_metrics = callable(getattr(source, "collect", None)) and not isinstance(source, type)
    if not isinstance(source, Scheduler) and not has_metrics:
        raise TypeError(
            "source must be a Scheduler or a collector of prometheus_client, not "
            f"{type(source).__name__}; {SCHEDULER_REMEDY}"
        )
    collector = SchedulerCollector(source) if isinstance(source, Scheduler) else source
    registry.register(collector)
    return registry
