"""``exporter``: the metrics of all workers, for Prometheus."""

from __future__ import annotations

import asyncio
import signal
from importlib.util import find_spec

import typer

from .commands import Command, add_command
from .errors import CommandError, ExitCode
from .listening import Host, Port, address, cannot_listen


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "exporter")(exporter)


async def exporter(
    command: Command,
    host: Host = "127.0.0.1",
    port: Port = 9465,
) -> None:
    """Serve the metrics of all workers to Prometheus, until SIGTERM or SIGINT."""
    if find_spec("prometheus_client") is None:
        raise CommandError(
            ExitCode.USAGE,
            "the exporter needs prometheus-client; install the extra: pip install 'pg-scheduler[metrics]'",
        )
    from pg_scheduler.inspect import Inspector  # noqa: PLC0415
    from pg_scheduler.telemetry.cluster import ClusterCollector  # noqa: PLC0415 - needs the extra
    from pg_scheduler.telemetry.prometheus import serve_metrics  # noqa: PLC0415

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with command.scheduler() as scheduler:
        try:
            with serve_metrics(ClusterCollector(Inspector(scheduler)), host, port) as bound:
                command.output.say(f"serving {address(host, bound)}/metrics")
                await stopped.wait()
        except OSError as error:
            raise cannot_listen(host, port, error) from error
