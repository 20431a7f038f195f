"""The program: its commands, and its exit code."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.completion import completion_init  # type: ignore[attr-defined] # it has no __all__
from typer.core import TyperGroup

from pg_scheduler.base.text.values import escape
from pg_scheduler.version import __version__

from .commands import Command, add_command, with_common_options
from .errors import CommandError, ExitCode
from .output import FULL, discard_stdout, escape_unencodable
from .settings import (
    COMPLETE_VARIABLE,
    DEMO_NODE,
    PROGRAM,
    REPORT_FD,
    misspelt_variables,
    name_variables,
    project_of,
    read_project,
    source_of,
)

_EXCLUSION: Final = re.compile(r"-[a-z_]+:")
"""A search term that excludes jobs; it looks like an option."""

LIBRARY: Final = logging.getLogger("pg_scheduler")

FUNCTIONS: Final[Mapping[str, str]] = {
    "version": "about:version",
    "config": "about:config",
    "status": "status:status",
    "stats": "status:stats",
    "vacuum": "vacuum:vacuum",
    "audit": "status:audit",
    "doctor": "doctor:examine",
    "worker": "worker.command:worker",
    "check": "doctor:check_code",
    "health": "health:health",
    "systemd": "deployment:systemd",
    "compose": "deployment:compose",
    "k8s": "deployment:k8s",
    "exporter": "servers:exporter",
    "dashboard": "servers:dashboard",
    "mcp": "assistant.command:mcp",
    "skill": "deployment:skill",
    "alerts": "deployment:alerts",
    "runbook": "deployment:runbook",
    "grafana": "deployment:grafana",
    "shapes": "shapes:shapes",
    "demo": "demo:demo",
    "completion": "completion:COMMANDS",
    "adopt": "adopt:adopt",
    "migrate": "migrate:COMMANDS",
    "import": "imports:COMMANDS",
    "jobs": "jobs:COMMANDS",
    "schedules": "schedules:COMMANDS",
    "tasks": "tasks:COMMANDS",
    "limits": "limits:COMMANDS",
    "sequences": "sequences:COMMANDS",
    "workers": "workers:COMMANDS",
}
"""The function or the group of each command, in the order of the help."""


class Commands(Mapping[str, Any]):
    """The commands by name. The module of a command is imported when the command is first read."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            module_name, _, attribute = FUNCTIONS[name].partition(":")
            module = import_module(f".{module_name}", __package__)
            # Typer makes a command only as a part of an application, so this one has a single command.
            app = typer.Typer(rich_markup_mode=None)
            add_command(app, name, getattr(module, attribute))
            command = typer.main.get_group(app).commands[name]
            name_variables(command, (name,))
            self._loaded[name] = command
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in FUNCTIONS

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command, or the default if its name is unknown.

        Unlike `Mapping.get()`, this method does not hide a KeyError of the import of the command's module.
        """
        if name not in self:
            return default
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(FUNCTIONS)

    def __len__(self) -> int:
        return len(FUNCTIONS)


class Program(TyperGroup):
    """The program, which lists its commands without importing them."""

    def __init__(self, **attributes: Any) -> None:
        attributes["commands"] = Commands()
        super().__init__(**attributes)
        name_variables(self)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - read by Typer
        """Return the names of the commands in the order of the help."""
        return list(FUNCTIONS)


def _print_version(is_requested: bool) -> None:
    """Print the version and end the program, if the option ``--version`` is given."""
    if is_requested:
        sys.stdout.write(f"{PROGRAM} {__version__}\n")
        raise typer.Exit


# The options that may precede the name of a command belong to this function, which has nothing to do.
def _main(
    command: Command,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    pass


def program() -> Any:
    """Return the program, with a variable for each option of its commands."""
    app = typer.Typer(
        name=PROGRAM,
        cls=Program,
        help="Operate pg_scheduler: jobs, schedules, tasks, workers and the tables in PostgreSQL.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(with_common_options(_main))
    return typer.main.get_command(app)


def _origin(error: Any) -> str | None:
    """Return where the invalid value of a usage error comes from, in words.

    This is a variable or the file; None for an argument, and for an error that is not about a value.
    """
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or parameter is None:
        return None
    source = source_of(context, parameter.name)
    if source == "ENVIRONMENT":
        # An option has the name of one variable, or a list of them.
        names = parameter.envvar
        return f"the variable {names if isinstance(names, str) else ', '.join(names)}"
    if source == "DEFAULT_MAP":
        # The path begins with the program, which the words that name the command follow.
        table = ".".join(("tool", PROGRAM, *context.command_path.split()[1:]))
        key = next((flag[2:] for flag in parameter.opts if flag.startswith("--")), parameter.name)
        return f"{key} in [{table}] of {project_of(context).path}"
    return None


class _WarningHandler(logging.Handler):
    """Writes the warnings of the library to stderr, unless the command or the application writes a log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the message of a record as one line."""
        # Another handler means that the command or the application writes the record itself.
        handlers = [*logging.getLogger().handlers, *LIBRARY.handlers]
        if all(isinstance(handler, logging.NullHandler | _WarningHandler) for handler in handlers):
            sys.stderr.write(f"{PROGRAM}: {record.levelname.lower()}: {escape(record.getMessage())}\n")


@contextmanager
def _warnings_written() -> Iterator[None]:
    """Write the warnings of the library while a command runs, and no longer.

    An application may call the command line within its own process, as Django's ``manage.py`` does. After the
    command, the log of the library is again as the application has configured it.
    """
    handler = _WarningHandler(logging.WARNING)
    LIBRARY.addHandler(handler)
    try:
        yield
    finally:
        LIBRARY.removeHandler(handler)


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Errors that a user can cause are one line on stderr."""
    escape_unencodable()
    try:
        # A shell runs the program with this variable to get the words that complete a command line.
        if COMPLETE_VARIABLE in os.environ:
            completion_init()
        command = program()
        project = read_project(command)
        defaults = project.defaults
        # A supervisor or the demo passes all options of this worker as arguments, so defaults do not apply.
        if REPORT_FD in os.environ or DEMO_NODE in os.environ:
            # Those of the program itself still apply. The others are by the names of commands.
            defaults = {name: value for name, value in defaults.items() if name not in FUNCTIONS}
        elif COMPLETE_VARIABLE not in os.environ:
            for name, near in misspelt_variables(command, arguments):
                message = f"the variable {name} is not read; did you mean {near}?"
                sys.stderr.write(f"{PROGRAM}: warning: {escape(message)}\n")
        with _warnings_written():
            code = command(
                list(arguments), prog_name=PROGRAM, standalone_mode=False, obj=project, default_map=defaults
            )
        sys.stdout.flush()
    except CommandError as error:
        sys.stderr.write(f"{PROGRAM}: {escape(str(error))}\n")
        return error.code
    except typer.TyperException as error:
        if isinstance(error, typer.BadParameter):
            # The wording of pydantic becomes that of this program.
            error.message = re.sub("^Input should", "it must", error.message.removeprefix("Value error, "))
        show = getattr(error, "show", None)  # Typer has no public name for errors with usage
        if show is not None:
            show(file=sys.stderr)
        origin = _origin(error)
        if origin is not None:
            sys.stderr.write(f"{PROGRAM}: this value comes from {escape(origin)}\n")
        # The error may be about a search term such as -name:a, which was taken for an option.
        exclusions = [argument for argument in arguments if _EXCLUSION.match(argument)]
        if exclusions and "--" not in arguments:
            sys.stderr.write(f"{PROGRAM}: put -- before the terms of a search: -- {escape(exclusions[0])}\n")
        return ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):  # Ctrl-C outside of a command, or at a question
        sys.stderr.write(f"{PROGRAM}: interrupted\n")
        return ExitCode.INTERRUPTED
    except (OSError, SystemExit) as error:
        return _end_output(error)
    return int(code or 0)


def _end_output(error: OSError | SystemExit) -> ExitCode:
    """Return the exit code of an error of stdout, a closed pipe or a full disk; raise other errors again."""
    # For a closed pipe, Typer raises a SystemExit, whose context is the error.
    cause = error.__context__ if isinstance(error, SystemExit) else error
    if isinstance(cause, BrokenPipeError):
        # The reader, such as head, has read enough.
        discard_stdout()
        return ExitCode.DONE
    if isinstance(error, SystemExit) or error.errno not in FULL:
        raise error
    discard_stdout()
    sys.stderr.write(f"{PROGRAM}: cannot write the output: {error.strerror}\n")
    return ExitCode.NEGATIVE
