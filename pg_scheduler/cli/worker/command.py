"""The command ``worker`` and its options."""

from __future__ import annotations

import os
import signal
from fnmatch import fnmatchcase
from typing import Annotated, Final

import typer

from pg_scheduler.cli.commands import Command, add_command
from pg_scheduler.cli.errors import CommandError, ExitCode, hint_at
from pg_scheduler.cli.project import VARIABLES
from pg_scheduler.cli.values import read_duration
from pg_scheduler.inspect.texts import counted

from .inside import verify_tables
from .logs import configure_logging
from .options import WorkerOptions, read_names
from .process import NOTHING_REGISTERED, open_scheduler, probes, run_worker
from .registered import REGISTERED, registered_tasks
from .reload import load_or_wait
from .stop import StopRequest, handle_signals
from .supervisor import Supervisor, program
from .target import Source, load_targets

PREFIX: Final = "PG_SCHEDULER_WORKER_"

_FORMATS: Final = ("text", "json")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "worker")(worker)


async def worker(  # noqa: PLR0917 - Typer passes every option by name
    command: Command,
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET", help="A Scheduler as package.module:attribute, or modules of jobs."),
    ],
    slots: Annotated[int | None, typer.Option(help="Jobs that run at the same time.")] = None,
    batch: Annotated[int | None, typer.Option(help="Jobs claimed by one statement, at most.")] = None,
    names: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Claim only these names; * is allowed."),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(min=1, max=1000, help="Processes, each a worker of its own."),
    ] = 1,
    drain: Annotated[bool, typer.Option("--drain", help="End once no job is due.")] = False,
    max_jobs: Annotated[int | None, typer.Option(min=1, help="End after so many attempts.")] = None,
    max_rss: Annotated[
        int | None,
        typer.Option(min=1, metavar="MB", help="End at so much memory."),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="End after 90s, 15m, 12h or 2d."),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Answer /livez, /readyz, /startupz."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve metrics to Prometheus."),
    ] = None,
    health_host: Annotated[str, typer.Option(help="The address of both ports.")] = "127.0.0.1",
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text or json.")] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a source file changes, for development.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Import, connect, print the tasks, and end.")
    ] = False,
) -> ExitCode:
    """Run jobs until SIGTERM or Ctrl-C. A second one cancels the running jobs."""
    if log_format not in {None, *_FORMATS}:
        raise CommandError(ExitCode.USAGE, f"--log-format must be text or json, not {log_format!r}")
    options = WorkerOptions(
        slots=slots,
        batch=batch,
        names=read_names(names),
        drain=drain,
        max_jobs=max_jobs,
        max_rss_mb=max_rss,
        max_age_s=None if max_age is None else read_duration("--max-age", max_age),
        health_host=health_host,
        health_port=health_port,
        metrics_port=metrics_port,
        log_format=log_format,
        reload=reload,
    )
    if processes > 1 and reload:
        raise CommandError(ExitCode.USAGE, "--reload runs one process; leave out --processes")
    if processes > 1 and metrics_port is not None:
        raise CommandError(
            ExitCode.USAGE, "--metrics-port serves one process; with --processes, start pg-scheduler exporter"
        )
    if processes > 1 and not check:
        configure_logging(log_format)
        return await _supervise(command, targets, options, processes)
    if reload:
        configure_logging(log_format)
    source = await load_or_wait(targets) if reload else load_targets(targets)
    configure_logging(log_format)
    if check:
        return await _check(command, source, options)
    return await run_worker(command, source, options)


async def _check(command: Command, source: Source | None, options: WorkerOptions) -> ExitCode:
    async with open_scheduler(command, source, options) as scheduler:
        await verify_tables(scheduler)
        tasks = await registered_tasks(scheduler)
    command.output.write_list(REGISTERED, tasks)
    if not tasks:
        raise CommandError(ExitCode.NEGATIVE, NOTHING_REGISTERED)
    names = [name for task in tasks for name in (task.name, *task.aliases)]
    unmatched = [each for each in options.names if not any(fnmatchcase(name, each) for name in names)]
    if unmatched:
        hint = hint_at(unmatched[0], names)
        raise CommandError(
            ExitCode.USAGE, f"--names matches no registered task: {', '.join(unmatched)}{hint}"
        )
    command.output.say(f"{counted(len(tasks), 'registered task')}; the tables can be used")
    return ExitCode.DONE


async def _supervise(
    command: Command, targets: list[str], options: WorkerOptions, processes: int
) -> ExitCode:
    stop = StopRequest()
    supervisor = Supervisor(
        [*program(), "worker", *_arguments(options), "--", *targets],
        _environment(command),
        processes,
        stop,
        ends_when_done=options.drain,
    )
    with (
        handle_signals(
            stop,
            on_usr1=lambda: supervisor.send(signal.SIGUSR1),
            on_usr2=lambda: supervisor.send(signal.SIGUSR2),
        ),
        probes(supervisor.reports, options),
    ):
        await supervisor.run()
    if stop.is_hurried:
        raise CommandError(ExitCode.INTERRUPTED, "interrupted: running jobs were cancelled and released")
    return ExitCode.DONE


def _arguments(options: WorkerOptions) -> list[str]:
    """Return the options of each process; the supervisor answers the probes."""
    values = {
        "slots": options.slots,
        "batch": options.batch,
        "names": ",".join(options.names) or None,
        "max-jobs": options.max_jobs,
        "max-rss": options.max_rss_mb,
        "max-age": None if options.max_age_s is None else f"{options.max_age_s:.6f}s",
        "log-format": options.log_format,
    }
    given = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return [*given, *(["--drain"] if options.drain else [])]


def _environment(command: Command) -> dict[str, str]:
    """Return the variables of each process: the settings of this one, which may have passwords."""
    own = {"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}
    environment = {
        name: value for name, value in os.environ.items() if name not in own and not name.startswith(PREFIX)
    }
    for name, (variable, *_) in VARIABLES.items():
        origin = command.settings.origin(name)
        value = command.settings[name]
        if origin == f"--{name}" and value is not None:
            environment[variable] = value
    return environment
