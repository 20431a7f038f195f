"""Turn a function into a command with the options that every command has.

The options may be given before or after the name of the command; those after it win.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_type_hints

import typer

from pg_scheduler.base.dsn import remove_secrets
from pg_scheduler.base.main_task import run_main_task
from pg_scheduler.events.log import report_exit

from .errors import CommandError, ExitCode, RefusedError, exit_code_of, message_of
from .output import FORMATS, Output, read_format, read_zone
from .settings import VARIABLES, Setting, Settings, project_of, read_options, read_settings

if TYPE_CHECKING:
    import asyncpg

    from pg_scheduler import Scheduler
    from pg_scheduler.inspect import Inspector

Result = ExitCode | None
Function = Callable[..., Result | Coroutine[Any, Any, Result]]


@dataclass(frozen=True, slots=True)
class Command:
    """The settings, the output and the context of a command."""

    settings: Settings
    output: Output
    context: typer.Context

    @property
    def schema(self) -> str | None:
        """The schema of the tables; None for the search path."""
        return self.settings["schema"]

    def options(self, *words: str) -> list[Setting]:
        """Return the options that a variable or the file sets, of the named commands or of all."""
        return read_options(self.context, words)

    def connect(self) -> AbstractAsyncContextManager[asyncpg.Connection[asyncpg.Record]]:
        """Open a connection to the server itself: ``--direct-dsn``, else the DSN."""
        from .connections import open_server  # noqa: PLC0415 - not needed to complete words

        return open_server(self.settings)

    def scheduler(self, *, verified: bool = True) -> AbstractAsyncContextManager[Scheduler]:
        """Open a Scheduler, not started. If ``verified``, raise unless the schema fits this release."""
        from .connections import open_scheduler  # noqa: PLC0415 - not needed to complete words

        return open_scheduler(self.settings, verified=verified)

    @asynccontextmanager
    async def inspector(self, *, verified: bool = True) -> AsyncIterator[Inspector]:
        """Open an Inspector of a Scheduler, as `scheduler()` opens one."""
        from pg_scheduler.inspect import Inspector  # noqa: PLC0415 - not needed to complete words

        async with self.scheduler(verified=verified) as scheduler:
            yield Inspector(scheduler)


CLEAR: Final = "\x1b[H\x1b[2J"
"""Clears a terminal."""

Watch = Annotated[
    float | None, typer.Option(min=0.5, max=3600, metavar="SECONDS", help="Repeat until Ctrl-C.")
]

# The options that every command has. Their parameters have their names: ``direct_dsn`` for --direct-dsn.
_COMMON: Final = [
    inspect.Parameter(
        flags[0][2:].replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            str | None,
            typer.Option(*flags, metavar=metavar, help=f"{text} [{', '.join(VARIABLES[flags[0][2:]])}]."),
        ],
    )
    for flags, metavar, text in (
        (["--dsn"], "URL", "The database"),
        (["--direct-dsn"], "URL", "The server behind a pooler"),
        (["--schema"], "NAME", "Schema of the tables"),
        (["--output", "-o"], "FORMAT", ", ".join(FORMATS)),
        (["--tz"], "ZONE", "Zone of times in tables: local, utc, a name"),
    )
]
_CONTEXT: Final = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


class Group(NamedTuple):
    """A group of commands.

    Attributes:
        help: Its purpose.
        commands: Its commands by name.
        function: The function to call without a command; None to print the help.
    """

    help: str
    commands: Mapping[str, Function]
    function: Function | None = None


def add_command(app: typer.Typer, name: str, definition: Function | Group) -> None:
    """Add a command or a group of commands to Typer's application.

    The function of a command gets the `Command` as its first argument. The others are its own options.
    """
    if not isinstance(definition, Group):
        app.command(name)(with_common_options(definition))
        return
    group = typer.Typer(
        rich_markup_mode=None, no_args_is_help=definition.function is None, help=definition.help
    )
    if definition.function is not None:
        group.callback(invoke_without_command=True)(with_common_options(definition.function))
    for word, function in definition.commands.items():
        add_command(group, word, function)
    app.add_typer(group, name=name)


async def pause_between_runs(seconds: float) -> None:
    """Wait between two runs of a command with ``--watch``.

    Ctrl-C cancels the task. A call that ended at the same moment may have swallowed the cancellation, as
    timeouts of asyncpg do before Python 3.12. So this function asks the task whether it was cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    await asyncio.sleep(seconds)


def watched(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Result]]:
    """Return a command with the option ``--watch``, which repeats it.

    If the database is unavailable, a repeated command writes the error to stderr and continues.
    """

    async def call(command: Command, *, watch: float | None, **values: Any) -> Result:
        if watch is None:
            result: Result = await function(command, **values)
            return result
        while True:
            # On a terminal, each output replaces the one before.
            if command.output.is_table:
                command.output.write_text(CLEAR if sys.stdout.isatty() else "\n")
            try:
                await function(command, **values)
            except CommandError as error:
                if error.code is not ExitCode.UNAVAILABLE:
                    raise
                command.output.say(str(error))
            await pause_between_runs(watch)

    # Typer reads the options from the signature: those of the function, and --watch.
    signature = inspect.signature(function, eval_str=True)
    watch = inspect.Parameter("watch", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Watch)
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__signature__ = signature.replace(parameters=[*signature.parameters.values(), watch])  # type: ignore[attr-defined]
    return call


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal whether to continue.

    Raises:
        CommandError: The answer is no, or there is no terminal to ask on and ``--yes`` is missing.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RefusedError(f"{question} Nothing was changed; pass --yes to confirm")
    if not typer.confirm(question, err=True):
        raise RefusedError("nothing was changed")


def reject_empty(value: Any) -> Any:
    """Return the text or texts of an argument or option, none of which may be empty."""
    texts = value if isinstance(value, list | tuple) else [value]
    if "" in texts:
        raise typer.BadParameter("it must not be empty")
    return value


def with_common_options(
    function: Function,
) -> Callable[..., Result]:
    """Return the function as Typer calls it: with its own options and those of every command.

    A parameter whose type is a dataclass stands for the options that are its fields.
    """
    # The first parameter is the `Command`, which is no option.
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    # The dataclasses, and the options that are their fields, by the names of the parameters.
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in parameters if is_dataclass(parameter.annotation)
    }
    options_of = {name: _options_of(group) for name, group in groups.items()}
    options: list[inspect.Parameter] = []
    for parameter in parameters:
        # A parameter that is no dataclass is an option itself.
        options += options_of.get(parameter.name, [parameter])

    def call(**values: Any) -> Result:
        context: typer.Context = values.pop("ctx")
        # The values of the options of a dataclass become one value, an instance of it.
        for group, members in options_of.items():
            member_values = {member.name: values.pop(member.name) for member in members}
            values[group] = groups[group](**member_values)
        # `read_settings()` reads these options from the context, where their sources are known.
        for parameter in _COMMON:
            del values[parameter.name]
        # The function of a group is called only without a command of the group.
        return None if context.invoked_subcommand else _execute(function, context, values)

    # Typer reads the name, the help and the options of the command from these attributes.
    call.__name__ = getattr(function, "__name__", "command")
    call.__doc__ = function.__doc__
    call.__annotations__ = {}
    # In a signature, parameters without a default may follow others with one only if all are passed by name.
    by_name = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    call.__signature__ = inspect.Signature([*by_name, *_COMMON, _CONTEXT])  # type: ignore[attr-defined] # read by Typer
    return call


def _options_of(group: Any) -> list[inspect.Parameter]:
    """Return the fields of a dataclass of options as parameters that are passed by name."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]


def _execute(
    function: Function,
    context: typer.Context,
    values: Mapping[str, Any],
) -> Result:
    """Call the function of a command. An error that has an exit code becomes a CommandError."""
    # An invalid pyproject.toml does not prevent --help and --version, so its error is raised only here.
    problem = project_of(context).error
    if problem is not None:
        raise problem
    settings = read_settings(context)
    output_format = read_format(settings["output"], is_terminal=sys.stdout.isatty())
    output = Output(output_format, read_zone(settings["tz"] or "local"))
    try:
        result = function(Command(settings, output, context), **values)
        # The function of a command is a plain one or a coroutine function.
        return run_main_task(result, report_exit) if inspect.iscoroutine(result) else result  # type: ignore[return-value]
    except KeyboardInterrupt as error:  # Typer would exit without a message
        raise CommandError(ExitCode.INTERRUPTED, "interrupted") from error
    except asyncio.CancelledError as error:
        raise CommandError(
            ExitCode.NEGATIVE, "cancelled: code of a job or of the application has cancelled all tasks"
        ) from error
    except Exception as error:  # an error without an exit code is raised again
        code = exit_code_of(error)
        if code is None:
            raise
        message = message_of(error, schema=settings["schema"])
        raise CommandError(code, remove_secrets(message, settings.secrets)) from error
