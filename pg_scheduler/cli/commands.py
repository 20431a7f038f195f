"""Turn a function into a command with the options that every command has.

The options may be given before or after the name of the command; those after it win.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from pg_scheduler import Scheduler
from pg_scheduler.errors import SchemaMissingError
from pg_scheduler.inspect import Inspector
from pg_scheduler.migrate import verify
from pg_scheduler.store.author import Author, acting_as
from pg_scheduler.store.connections.standalone import open_connection, open_pool
from pg_scheduler.store.faults import translated

from .dsn import remove_secrets
from .errors import CommandError, ExitCode, exit_code_of
from .output import FORMATS, Output, discard_stdout, read_format, read_zone
from .settings import NAMES, Settings, find_project, resolve

if TYPE_CHECKING:
    import asyncpg

__all__ = ["Command", "Result", "add_command", "add_group", "confirm", "with_common_options"]

MAX_IDENTITY_LENGTH: Final = 200
APPLICATION_NAME: Final = "pg_scheduler cli"

Result = ExitCode | None
Function = TypeVar("Function", bound=Callable[..., Result | Coroutine[Any, Any, Result]])


class CommandScheduler(Scheduler):
    """The Scheduler of a command, which is never started."""

    async def flush(self) -> None:
        """Send the notifications that are still to be sent."""
        await self._outbox.flush()


@dataclass(frozen=True, slots=True)
class Command:
    """What a command works with."""

    settings: Settings
    output: Output

    @property
    def schema(self) -> str | None:
        """The schema of the tables; None for the search path."""
        return self.settings["schema"]

    def connect(self) -> AbstractAsyncContextManager[asyncpg.Connection[asyncpg.Record]]:
        """Open a connection to the server itself: ``--direct-dsn``, else the DSN."""
        dsn = self.settings["direct-dsn"] or self.settings["dsn"]
        return open_connection(dsn, application_name=APPLICATION_NAME)

    @asynccontextmanager
    async def scheduler(self, *, verified: bool = True) -> AsyncIterator[Scheduler]:
        """Return a Scheduler that is not started; if verified, on a schema that this release can use."""
        async with open_pool(self.settings["dsn"], application_name=APPLICATION_NAME) as pool:
            actor = Inspector(pool).actor[:MAX_IDENTITY_LENGTH]
            scheduler = CommandScheduler(
                pool, schema=self.schema, direct_dsn=self.settings["direct-dsn"], identity=actor
            )
            if verified:
                async with pool.acquire() as connection:
                    with translated():
                        await verify(connection, schema=self.schema)
            with acting_as(Author(actor, "cli")):
                yield scheduler
            await scheduler.flush()


_COMMON: Final = [
    inspect.Parameter(name.replace("-", "_"), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    for name, kind in {
        "dsn": Annotated[
            str | None,
            typer.Option("--dsn", metavar="URL", help="The database [PG_SCHEDULER_DSN, DATABASE_URL]."),
        ],
        "direct-dsn": Annotated[
            str | None,
            typer.Option(
                "--direct-dsn", metavar="URL", help="The server behind a pooler [PG_SCHEDULER_DIRECT_DSN]."
            ),
        ],
        "schema": Annotated[
            str | None,
            typer.Option("--schema", metavar="NAME", help="Schema of the tables [PG_SCHEDULER_SCHEMA]."),
        ],
        "output": Annotated[
            str | None,
            typer.Option(
                "--output", "-o", metavar="FORMAT", help=f"{', '.join(FORMATS)} [PG_SCHEDULER_OUTPUT]."
            ),
        ],
        "tz": Annotated[
            str | None,
            typer.Option(
                "--tz", metavar="ZONE", help="Zone of times in tables: local, utc, a name [PG_SCHEDULER_TZ]."
            ),
        ],
    }.items()
]
_CONTEXT: Final = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def add_command(app: typer.Typer, name: str) -> Callable[[Function], Function]:
    """Return a decorator that adds a function, whose first argument is the `Command`, under this name."""

    def decorate(function: Function) -> Function:
        app.command(name)(with_common_options(function))
        return function

    return decorate


def add_group(app: typer.Typer, name: str, help_text: str) -> Callable[[Function], typer.Typer]:
    """Return a decorator that adds a group; the function runs if none of its commands is named."""

    def decorate(function: Function) -> typer.Typer:
        group = typer.Typer(rich_markup_mode=None, help=help_text)
        group.callback(invoke_without_command=True)(with_common_options(function))
        app.add_typer(group, name=name)
        return group

    return decorate


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal whether to continue.

    Raises:
        CommandError: The answer is no, or there is no terminal to ask on and ``--yes`` is missing.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(ExitCode.REFUSED, f"{question} Nothing was changed; pass --yes to confirm")
    if not typer.confirm(question, err=True):
        raise CommandError(ExitCode.REFUSED, "nothing was changed")


def with_common_options(
    function: Callable[..., Result | Coroutine[Any, Any, Result]],
) -> Callable[..., Result]:
    """Return the function as Typer calls it: with its own options and those of every command."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def call(**values: Any) -> Result:
        context: typer.Context = values.pop("ctx")
        options: dict[str, str] = context.ensure_object(dict)
        for name in NAMES:
            if (value := values.pop(name.replace("-", "_"))) is not None:
                options[name] = value
        return None if context.invoked_subcommand else _execute(function, options, values)

    call.__name__ = getattr(function, "__name__", "command")
    call.__doc__ = function.__doc__
    call.__annotations__ = {}
    call.__signature__ = inspect.Signature([*own, *_COMMON, _CONTEXT])  # type: ignore[attr-defined] # read by Typer
    return call


def _execute(
    function: Callable[..., Result | Coroutine[Any, Any, Result]],
    options: Mapping[str, str],
    values: Mapping[str, Any],
) -> Result:
    settings = resolve(options, os.environ, find_project(Path.cwd()))
    output = Output(
        read_format(settings["output"], is_terminal=sys.stdout.isatty()), read_zone(settings["tz"] or "local")
    )
    try:
        result = function(Command(settings, output), **values)
        return asyncio.run(result) if inspect.iscoroutine(result) else result  # type: ignore[return-value]
    except BrokenPipeError:  # the reader, such as head, has read enough; Typer would exit with 1
        discard_stdout()
        return ExitCode.DONE
    except KeyboardInterrupt as error:  # Typer would exit without a message
        raise CommandError(ExitCode.INTERRUPTED, "interrupted") from error
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        hint = "; or run pg-scheduler migrate" if isinstance(error, SchemaMissingError) else ""
        raise CommandError(code, remove_secrets(f"{error}{hint}", settings.secrets)) from error
