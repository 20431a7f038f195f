"""``manage.py pg_scheduler``: the commands of ``pg-scheduler`` for the database of a backend."""

from __future__ import annotations

import logging
import os
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils.autoreload import get_child_arguments

from pg_scheduler.integrations.django.address import dsn_of
from pg_scheduler.integrations.django.backend import Backend, neighbours_of
from pg_scheduler.integrations.django.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    InvalidTaskBackend,
    task_backends,
)
from pg_scheduler.integrations.django.worker import TARGET, selection

WORKER: Final = "worker"
CHECK: Final = "check"


FLAGS: Final = ("traceback", "no_color", "force_color", "skip_checks")
"""The options of every command of Django that have no value."""


class Command(BaseCommand):
    """Run a command of ``pg-scheduler``."""

    help = (
        "Run 'worker', or another command of pg-scheduler, for the database of a backend in TASKS. "
        "'worker --queue mail --concurrency 10' selects queues and sets how many tasks run at the same time; "
        "'worker --help' lists its other options."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        _add_options(parser)
        parser.add_argument("arguments", nargs=REMAINDER, metavar="command", help="worker, status, jobs ...")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run the command; end with its exit code unless that is 0."""
        if find_spec("typer") is None:
            raise CommandError("install the extra: pip install 'pg-scheduler[django]'")
        from pg_scheduler.cli.errors import ExitCode  # noqa: PLC0415 - needs the extra
        from pg_scheduler.cli.main import run  # noqa: PLC0415 - needs the extra

        # Django has parsed the options before the name of the command. This parser reads those after it.
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        _add_options(parser, is_after_command=True)
        later_options, words = parser.parse_known_args(options["arguments"])
        # An alias after the name of the command has precedence over one before it. Queues add up.
        alias = later_options.backend or options["backend"]
        queues = [*options["queue"], *later_options.queue]
        excluded_queues = [*options["exclude_queue"], *later_options.exclude_queue]
        backend = _backend_of(alias)
        # The command that run() calls loads TARGET in this process: the Scheduler of the backend. TARGET
        # reads the selection.
        if words[:1] == [WORKER]:
            selection.backend = alias
            selection.queues = queues
            selection.excluded = excluded_queues
            concurrency = later_options.concurrency
            if concurrency is None:
                concurrency = options["concurrency"]
            words = _words_of_worker(words, backend, concurrency)
            # call_command() in a program would end that program.
            if not self._called_from_command_line:
                raise CommandError("a worker ends its process; start it from a shell")
            # Django has used the last one, wherever it is.
            options["pythonpath"] = later_options.pythonpath or options["pythonpath"]
            _prepare_restart(words, options)
            _print_records_once()
        elif words[:1] == [CHECK]:
            # This command compares the tasks of TARGET with the jobs in the database.
            selection.backend = alias
            selection.queues = queues
            words = [*words, TARGET]
        with _variables(backend):
            code = run(words)
            if code != ExitCode.DONE:
                if code == ExitCode.SCHEMA:
                    self.stderr.write(
                        "In this project, manage.py migrate creates and upgrades the tables, and "
                        "manage.py pg_scheduler migrate creates again what was dropped."
                    )
                sys.exit(code)


def _words_of_worker(words: Sequence[str], backend: Backend, concurrency: int | None) -> list[str]:
    """Return the arguments of the worker, and raise an error if the backend has no queue of a selected name.

    An excluded queue may also belong to another backend with the same tables, whose jobs the worker sees.
    """
    other_queues = {queue for neighbour in neighbours_of(backend) for queue in neighbour.queues}
    excluded_here = {*selection.excluded} - other_queues
    for queue in {*selection.queues, *excluded_here}:
        # A backend without queues in the settings accepts any queue.
        if backend.queues and queue not in backend.queues:
            queues = ", ".join(sorted(backend.queues))
            raise CommandError(f"TASKS[{backend.alias!r}]['QUEUES'] has no {queue!r}; it has {queues}")
    # In a process that a supervisor started, the words have these two already.
    arguments = [word for word in words if word not in {TARGET, "--"}]
    if concurrency is not None:
        arguments.append(f"--slots={concurrency}")
    return [*arguments, TARGET]


def django_words(options: Mapping[str, Any]) -> list[str]:
    """Return the options that every command of Django has as words, without those that have no effect.

    ``--settings`` is in the environment.
    """
    words = [f"--{name.replace('_', '-')}" for name in FLAGS if options[name]]
    if options["verbosity"] != 1:
        words.append(f"--verbosity={options['verbosity']}")
    return [*words, *_path_words(options)]


def _path_words(options: Mapping[str, Any]) -> list[str]:
    """Return the option with a folder that Django adds to ``sys.path``; no word without one."""
    return [f"--pythonpath={options['pythonpath']}"] if options["pythonpath"] else []


def _prepare_restart(words: Sequence[str], options: Mapping[str, Any]) -> None:
    """Let restarts and the processes of the supervisor run this command, and not ``pg-scheduler``.

    ``words`` are the arguments of the worker, and ``options`` those that Django has parsed.
    """
    from pg_scheduler.cli.worker.reload import set_program  # noqa: PLC0415 - needs the extra

    # Django's command line for a process that replaces this one.
    command_line = get_child_arguments()
    arguments = sys.argv[1:]
    queues = [f"--queue={queue}" for queue in selection.queues]
    queues += [f"--exclude-queue={queue}" for queue in selection.excluded]
    # The words before the arguments: the interpreter with its options, and manage.py.
    program = command_line[: len(command_line) - len(arguments)]
    # The first argument is the name of this command of manage.py.
    set_program(
        [*program, arguments[0], *django_words(options), f"--backend={selection.backend}", *queues],
        # It loads the settings, the apps and their tasks.
        trial=[*program, "version", *_path_words(options)],
    )
    # A restart appends the arguments in sys.argv to the words of set_program().
    sys.argv[1:] = words


def _print_records_once() -> None:
    """Remove the handler that Django has in development by default: the worker has one for all records."""
    if settings.LOGGING_CONFIG and not settings.LOGGING:
        logger = logging.getLogger("django")
        # A subclass of this handler, such as one for files, is not the handler of Django.
        logger.handlers[:] = [
            handler for handler in logger.handlers if type(handler) is not logging.StreamHandler
        ]


def _add_options(parser: ArgumentParser, *, is_after_command: bool = False) -> None:
    """Add the options that may be before or after the name of the command of ``pg-scheduler``."""
    # Without a default, an option that is missing after the name does not override the one before it.
    parser.add_argument(
        "--backend",
        default=None if is_after_command else DEFAULT_TASK_BACKEND_ALIAS,
        help="Alias in TASKS (default: %(default)s).",
    )
    parser.add_argument(
        "--queue",
        action="append",
        default=[],
        help="worker: run the tasks of this queue only; may be repeated. Jobs without a queue are left out.",
    )
    parser.add_argument(
        "--exclude-queue",
        action="append",
        default=[],
        help="worker: leave the tasks of this queue to other workers; may be repeated.",
    )
    parser.add_argument("--concurrency", type=int, help="worker: tasks that run at the same time.")
    # Django reads these wherever they are, so they are removed from the words of the command.
    if is_after_command:
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")


def _backend_of(alias: str) -> Backend:
    """Return the backend of this library with an alias in ``TASKS``; raise CommandError if there is none."""
    try:
        backend = task_backends[alias]
    except InvalidTaskBackend as error:
        raise CommandError(f"TASKS has no usable backend {alias!r}: {error}") from error
    if not isinstance(backend, Backend):
        raise CommandError(f"TASKS[{alias!r}] uses another backend than pg_scheduler.integrations.django")
    return backend


@contextmanager
def _variables(backend: Backend) -> Iterator[None]:
    """Set the environment variables of ``pg-scheduler`` to the database of a backend within the block."""
    options = backend.settings
    values = {"PG_SCHEDULER_DSN": dsn_of(options.database, options.dsn)}
    if options.schema is not None:
        values["PG_SCHEDULER_SCHEMA"] = options.schema
    previous_values = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in previous_values.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
