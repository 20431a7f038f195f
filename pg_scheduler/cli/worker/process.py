"""Run one Scheduler in this process until it is to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from io import FileIO
from typing import Any, Final

from pg_scheduler import Scheduler
from pg_scheduler.cli.commands import Command
from pg_scheduler.cli.connections import naming_dsn
from pg_scheduler.cli.errors import CommandError, ExitCode, RefusedError, UsageError, check_extra
from pg_scheduler.cli.servers import doctor_webhook
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.store.connections import open_pool
from pg_scheduler.telemetry.probes import HealthSource, serve_health
from pg_scheduler.telemetry.systemd import notify_systemd
from pg_scheduler.tools import (
    claims_nothing,
    configure,
    hurry,
    is_draining,
    log_stacks,
    settings_of,
    start_draining,
)

from .options import WorkerOptions
from .reload import Sources, read_sources, restart, wait_for_change
from .stop import StopRequest, end_soon, handle_signals, stop_self, wait_for_recycling, wait_until_drained
from .supervisor import send_reports
from .target import Source, open_source

APPLICATION_NAME: Final = "pg_scheduler worker"
NOTHING_REGISTERED: Final = "no function is registered; name the modules that declare them with @job"
POOL_SIZE: Final = 10
"""The maximum number of connections of the pool that is made for modules."""


@asynccontextmanager
async def open_scheduler(
    command: Command, source: Source | None, options: WorkerOptions
) -> AsyncIterator[Scheduler]:
    """Open the Scheduler of a source, or one for modules if that is None, with the options of the command.

    Raises:
        CommandError: An option does not apply to the source.
    """
    if source is None:
        direct_dsn = command.settings["direct-dsn"]
        with naming_dsn(command.settings, "dsn"):
            async with open_pool(
                command.settings["dsn"],
                application_name=APPLICATION_NAME,
                max_size=POOL_SIZE,
                runs_worker=True,
            ) as pool:
                scheduler = Scheduler(pool, schema=command.schema, direct_dsn=direct_dsn)
                configure(scheduler, **_settings_of(options))
                yield scheduler
        return
    # An option on the command line would have no effect. Values of variables and of the file are defaults,
    # and are not refused.
    for name in ("dsn", "direct-dsn", "schema"):
        if command.settings.origin(name) == f"--{name}":
            raise UsageError(f"{source.name} is connected by its own pool; omit --{name}, or name modules")
    async with open_source(source) as scheduler:
        settings = _settings_of(options)
        # The settings of a Scheduler that has started cannot be changed.
        if settings and scheduler.is_running:
            raise UsageError(
                f"{source.name} returned a Scheduler that has started, so --slots, --batch, --names "
                "--migrations and --on-copy do not apply; return it before its start"
            )
        configure(scheduler, **settings)
        yield scheduler


async def run_worker(
    command: Command,
    source: Source | None,
    options: WorkerOptions,
    report_pipe: FileIO | None,
    early_usr1: threading.Event,
) -> ExitCode:
    """Run a worker until a signal, a limit, ``--drain`` or an error stops it; return the exit code.

    Args:
        command: The command.
        source: The Scheduler or a callable that returns one; None for a new one with the functions of
            modules.
        options: The options of the command line.
        report_pipe: The pipe to the supervising process, if there is one.
        early_usr1: Set if SIGUSR1 came before this call.

    Raises:
        Exception: The error that stopped the Scheduler.
    """
    stop = StopRequest()
    source_files = await read_sources() if options.reload else None
    async with open_scheduler(command, source, options) as scheduler:
        drain_tasks: set[asyncio.Task[None]] = set()
        started = asyncio.Event()

        def stop_claiming() -> None:
            # A worker that has not started has no row yet, so the request that the task writes to the row
            # would come after the first claim. This call lets such a worker drain from its start on. It has
            # no effect after the start.
            start_draining(scheduler)
            task = asyncio.create_task(_stop_claiming(scheduler, started), name="pg_scheduler stop claiming")
            # The event loop refers to its tasks only weakly, so this set holds the task until it is done.
            drain_tasks.add(task)
            task.add_done_callback(drain_tasks.discard)

        with (
            handle_signals(stop, on_usr1=stop_claiming, on_usr2=lambda: log_stacks(scheduler)),
            probes(scheduler, options),
            metrics(scheduler, options),
            send_reports(report_pipe, scheduler, stop_self, lambda: is_draining(scheduler)) as ending,
        ):
            stop.on_hurry(lambda: hurry(scheduler))
            # The signal came before its handler was set.
            if early_usr1.is_set():
                stop_claiming()
            async with doctor_webhook(scheduler):
                # The last report to the supervisor states whether this process is to be started again.
                ending.is_recycling = await _run(scheduler, options, stop, source_files, started)
            for task in drain_tasks:
                task.cancel()
    if stop.is_hurried:
        raise CommandError(ExitCode.INTERRUPTED, "interrupted: running jobs were cancelled and released")
    if stop.must_restart:
        restart()
    return ExitCode.DONE


async def _run(
    scheduler: Scheduler,
    options: WorkerOptions,
    stop: StopRequest,
    source_files: Sources | None,
    started: asyncio.Event,
) -> bool:
    """Start the Scheduler, and shut it down when a stop is requested.

    Return whether a limit of the process, such as ``--max-jobs``, requested the stop. ``started`` is set
    after the start.
    """
    # This task begins before the start, so that it counts from the first job on.
    recycling = asyncio.create_task(wait_for_recycling(scheduler, options))
    try:
        if not await _start(scheduler, stop):
            return False
        started.set()
    finally:
        # The start failed, or a signal ended it. Otherwise the task is awaited below.
        if not scheduler.is_running:
            recycling.cancel()
    waits = [recycling, asyncio.create_task(stop.wait()), asyncio.create_task(_wait_for_stop(scheduler))]
    if options.drain:
        waits.append(asyncio.create_task(wait_until_drained(scheduler)))
    reloading: asyncio.Task[str] | None = None
    if source_files is not None:
        reloading = asyncio.create_task(wait_for_change(source_files))
        waits.append(reloading)
    try:
        ended_tasks, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        stop.must_restart = reloading is not None and reloading in ended_tasks
        for task in ended_tasks:
            # The result of the wait for the Scheduler raises the error that stopped it.
            stop.request(task.result())
        return recycling in ended_tasks
    finally:
        for task in waits:
            task.cancel()
        # The running jobs are cancelled before the shutdown, which would wait for them.
        if stop.is_hurried:
            hurry(scheduler)
        config, began = settings_of(scheduler), time.monotonic()
        try:
            await scheduler.shutdown()
        finally:
            # Tasks and threads that do not end may hold the process no longer than jobs may take to stop.
            time_to_stop_s = 0 if stop.is_hurried else config.shutdown_timeout + config.stop_grace
            ends_at = began + time_to_stop_s
            end_soon(partial(_end, stop), left_s=ends_at - time.monotonic())


def _end(stop: StopRequest) -> None:
    """End this process, whatever tasks and threads still run in it; or run its program again in it."""
    if stop.must_restart:
        restart()
    if stop.is_hurried:
        code = ExitCode.INTERRUPTED
    else:
        # Without a request, an error has stopped the Scheduler.
        code = ExitCode.DONE if stop.is_requested() else ExitCode.NEGATIVE
    # A handler of the application may hang in logging.shutdown().
    end_soon(partial(os._exit, code))
    logging.shutdown()
    os._exit(code)


async def _wait_for_stop(scheduler: Scheduler) -> str:
    """Wait until the Scheduler has stopped; return that as the reason, or raise the error that stopped it."""
    await scheduler.wait()
    return "the Scheduler was shut down"


async def _start(scheduler: Scheduler, stop: StopRequest) -> bool:
    """Start the Scheduler, and return True after the start.

    If a signal requests the stop before the start is complete, shut the Scheduler down and return False.
    """
    starting = asyncio.create_task(scheduler.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        await scheduler.shutdown()
        return False
    # This raises the error of a start that failed.
    starting.result()
    if claims_nothing(scheduler):
        logger.warning(NOTHING_REGISTERED, extra=record_fields(worker_id=scheduler.worker_id))
    return True


async def _stop_claiming(scheduler: Scheduler, started: asyncio.Event) -> None:
    """Request of the worker to claim no more jobs, once it has started, and log that."""
    # The request is written to the row of the worker, which exists after the start.
    await started.wait()
    try:
        await Inspector(scheduler).drain_workers([scheduler.worker_id])
    except DatabaseUnavailableError as error:
        logger.warning("SIGUSR1 has no effect: %s; send it again", error, extra=record_fields())
    else:
        logger.info(
            "SIGUSR1 received: no more jobs are claimed until pg-scheduler workers resume %s",
            scheduler.worker_id,
            extra=record_fields(worker_id=scheduler.worker_id),
        )


@contextmanager
def probes(source: HealthSource, options: WorkerOptions) -> Iterator[None]:
    """Answer the probes, if a port is given, and notify systemd, if it started this process.

    Raises:
        CommandError: The port cannot be used.
    """
    with ExitStack() as stack:
        if options.health_port is not None:
            with _listening("--health-port", options.health_port):
                server = stack.enter_context(serve_health(source, options.health_host, options.health_port))
            address = f"http://{options.health_host}:{server.port}/readyz"
            logger.info("probes at %s", address, extra=record_fields())
        stack.enter_context(notify_systemd(source))
        yield


@contextmanager
def metrics(scheduler: Scheduler, options: WorkerOptions) -> Iterator[None]:
    """Serve the metrics of the Scheduler, if a port is given.

    Raises:
        CommandError: prometheus-client is missing, or the port cannot be used.
    """
    if options.metrics_port is None:
        yield
        return
    check_extra("--metrics-port", "metrics")
    from pg_scheduler.telemetry.prometheus import serve_metrics  # noqa: PLC0415 - needs the extra

    with ExitStack() as stack:
        with _listening("--metrics-port", options.metrics_port):
            port = stack.enter_context(serve_metrics(scheduler, options.health_host, options.metrics_port))
        logger.info("metrics at http://%s:%s/metrics", options.health_host, port, extra=record_fields())
        yield


@contextmanager
def _listening(option: str, port: int) -> Iterator[None]:
    """Raise CommandError (REFUSED) if a port cannot be used within the block."""
    try:
        yield
    except OSError as error:
        message = f"{option} {port} cannot be used: {error.strerror or error}"
        raise RefusedError(message) from error


def _settings_of(options: WorkerOptions) -> dict[str, Any]:
    """Return the settings of the Scheduler for the options that are given. The others keep their defaults."""
    settings = {
        "max_concurrent_jobs": options.slots,
        "batch_claim_limit": options.batch,
        "only": options.patterns or None,
        "migrations": options.migrations,
        "on_copy": options.on_copy,
    }
    return {name: value for name, value in settings.items() if value is not None}
