"""The command ``worker`` and its options."""

from __future__ import annotations

import os
import signal
import threading
from fnmatch import fnmatchcase
from typing import Final

from pg_scheduler.base.fork import inheritance
from pg_scheduler.cli.commands import Command
from pg_scheduler.cli.errors import CommandError, ExitCode, RefusedError, UsageError, hint_at
from pg_scheduler.cli.settings import VARIABLES
from pg_scheduler.cli.tasks import REGISTERED, registered_tasks
from pg_scheduler.cli.values import Targets, read_duration
from pg_scheduler.inspect.texts import counted
from pg_scheduler.telemetry.server import MAX_PORT
from pg_scheduler.tools import obstacle, verify_tables
from pg_scheduler_plugins.program import ending_at_sigterm

from .logs import configure_logging
from .options import WorkerOptions
from .process import NOTHING_REGISTERED, open_scheduler, probes, run_worker
from .reload import load_or_wait, program
from .stop import IN_CHILDREN, StopRequest, handle_signals, note_usr1
from .supervisor import Supervisor, open_report_pipe
from .target import Source, load_targets

PREFIX: Final = "PG_SCHEDULER_WORKER_"

PASSED_ON: Final = (
    "slots",
    "batch",
    "names",
    "migrations",
    "on-copy",
    "max-jobs",
    "max-rss",
    "max-age",
    "log-format",
)
"""Options that the supervisor passes to each process. The health port is its own: it answers the probes."""


_FORMATS: Final = ("text", "json")


async def worker(
    command: Command,
    targets: Targets,
    options: WorkerOptions,
) -> ExitCode:
    """Run jobs until SIGTERM or Ctrl-C. A second one cancels the running jobs."""
    _check_options(options)
    # Without a handler, the first process of a container would ignore a SIGTERM that comes while the targets
    # are imported. The worker has not claimed a job before it sets its own handlers, so until then the
    # process ends at once at SIGTERM. A SIGUSR1 that comes early is noted, and applies when the worker
    # starts.
    with (
        ending_at_sigterm(ExitCode.DONE),
        inheritance.handle_in_children(IN_CHILDREN),
        note_usr1() as early_usr1,
    ):
        return await _run(command, targets, options, early_usr1)


async def _run(
    command: Command, targets: Targets, options: WorkerOptions, early_usr1: threading.Event
) -> ExitCode:
    """Run the worker in this process, or the supervisor of several processes."""
    # A check runs no jobs, so it needs one process.
    if options.processes > 1 and not options.check:
        configure_logging(options.log_format)
        return await _supervise(command, targets, options, early_usr1)
    # The pipe is opened before the targets are imported: their code may fork or start programs, which must
    # not inherit it.
    report_pipe = open_report_pipe()
    # With --reload, an import that fails is logged. Later, the targets may have configured logging
    # themselves.
    if options.reload:
        configure_logging(options.log_format)
    # With --reload, a target that cannot be imported is imported again when its code has changed.
    source = await load_or_wait(targets) if options.reload else load_targets(targets)
    configure_logging(options.log_format)
    if options.check:
        return await _check(command, source, options)
    return await run_worker(command, source, options, report_pipe, early_usr1)


def _check_options(options: WorkerOptions) -> None:
    """Raise CommandError (USAGE) for values that contradict the rules or each other."""
    if options.log_format not in {None, *_FORMATS}:
        raise UsageError(f"--log-format must be text or json, not {options.log_format!r}")
    if options.max_age is not None:
        # This raises the error for a text that is no duration, before the worker starts.
        read_duration("--max-age", options.max_age)
    if options.processes > 1 and options.reload:
        raise UsageError("--reload runs one process; leave out --processes")
    # The ports of the processes follow one another. With port 0, each gets a free one.
    if options.metrics_port and options.metrics_port + options.processes - 1 > MAX_PORT:
        raise UsageError(
            f"--metrics-port {options.metrics_port} leaves no port for each of {options.processes} "
            f"processes, which follow one another up to {MAX_PORT}; pass a lower one, or 0 for free ports"
        )


async def _check(command: Command, source: Source | None, options: WorkerOptions) -> ExitCode:
    """Print the registered tasks; raise CommandError if a worker could not start, or would run no job."""
    async with open_scheduler(command, source, options) as scheduler:
        # Why a worker could not start.
        reason = await obstacle(scheduler)
        if reason is not None:
            raise RefusedError(reason)
        await verify_tables(scheduler)
        tasks = await registered_tasks(scheduler)
    command.output.write_list(REGISTERED, tasks)
    if not tasks:
        raise CommandError(ExitCode.NEGATIVE, NOTHING_REGISTERED)
    names = [name for task in tasks for name in (task.name, *task.aliases)]
    # A pattern of --names that no registered task has is probably misspelled.
    unmatched_patterns = [
        pattern for pattern in options.patterns if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if unmatched_patterns:
        hint = hint_at(unmatched_patterns[0], names)
        raise UsageError(f"--names matches no registered task: {', '.join(unmatched_patterns)}{hint}")
    command.output.say(f"{counted(len(tasks), 'registered task')}; the tables can be used")
    return ExitCode.DONE


async def _supervise(
    command: Command, targets: list[str], options: WorkerOptions, early_usr1: threading.Event
) -> ExitCode:
    """Run several processes of the same worker until a signal or ``--drain`` stops them."""
    stop = StopRequest()
    commands = [
        [*program(), "worker", *_arguments(options, number), "--", *targets]
        for number in range(options.processes)
    ]
    supervisor = Supervisor(commands, _environment(command), stop, ends_when_done=options.drain)
    with (
        handle_signals(
            stop,
            on_usr1=supervisor.drain,
            on_usr2=lambda: supervisor.send(signal.SIGUSR2),
        ),
        probes(supervisor.reports, options),
    ):
        # The signal came before its handler was set.
        if early_usr1.is_set():
            supervisor.drain()
        await supervisor.run()
    if stop.is_hurried:
        raise CommandError(ExitCode.INTERRUPTED, "interrupted: running jobs were cancelled and released")
    return ExitCode.DONE


def _arguments(options: WorkerOptions, number: int) -> list[str]:
    """Return the options of a process. Its number, from 0, decides its port for metrics."""
    arguments = []
    for name in PASSED_ON:
        value = getattr(options, name.replace("-", "_"))
        if value is not None:
            arguments.append(f"--{name}={value}")
    if options.metrics_port is not None:
        # With port 0, each process gets a free port.
        port = 0 if options.metrics_port == 0 else options.metrics_port + number
        arguments += [f"--metrics-port={port}", f"--health-host={options.health_host}"]
    if options.drain:
        arguments.append("--drain")
    return arguments


def _environment(command: Command) -> dict[str, str]:
    """Return the environment of each process.

    Settings that were given as options are variables in it and no arguments, since a DSN may have a password.
    """
    # The supervisor itself notifies systemd.
    systemd_variables = {"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}
    environment = {
        name: value
        for name, value in os.environ.items()
        # The options of the worker are those of the supervisor, or arguments of the process.
        if name not in systemd_variables and not name.startswith(PREFIX)
    }
    # The first variable of an option has precedence over its other ones.
    for name, (variable, *_) in VARIABLES.items():
        origin = command.settings.origin(name)
        value = command.settings[name]
        if origin == f"--{name}" and value is not None:
            environment[variable] = value
    return environment
