"""The group ``migrate``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from pg_scheduler.database.migrations.apply import apply
from pg_scheduler.database.migrations.engine import check_engine
from pg_scheduler.database.migrations.indexes import build_progress
from pg_scheduler.database.migrations.plan import Step
from pg_scheduler.database.migrations.preview import pending_steps, render_script
from pg_scheduler.errors import MigrationChangedError, SchemaError, SchemaMismatchError
from pg_scheduler.migrate import (
    build_indexes,
    home_schema,
    migrate,
    missing_indexes,
    shipped_migrations,
    verify,
)

from .commands import Command, Group, confirm
from .errors import CommandError, ExitCode
from .output import Column, Shape, columns
from .progress import ProgressStyle, Reporter, Style, read_style, watch
from .values import Yes

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A migration to apply or to revert."""

    version: int
    name: str
    action: Literal["apply", "revert"]
    kind: Literal["expand", "contract"] | None
    needs: int | None
    """The schema version that a release must have at least to use the result; None for any."""


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """An index that a command built."""

    index: str
    action: Literal["built"] = "built"


@dataclass(frozen=True, slots=True)
class Verified:
    """The tables, compared with those of this release."""

    schema: str
    schema_version: int
    matches: bool
    problem: str | None
    missing_indexes: Sequence[str]


STEP: Final = Shape(
    "migration",
    PlannedStep,
    (
        *columns("version", "name", "action", "kind"),
        Column("needs", "NEEDS RELEASES WITH", is_wide=True),
    ),
)
INDEX: Final = Shape("index", BuiltIndex, columns("index", "action"))
VERIFIED: Final = Shape(
    "schema",
    Verified,
    (
        Column("schema", "schema"),
        Column("schema_version", "version"),
        Column("matches", "matches this release"),
        Column("problem", "problem"),
        Column("missing_indexes", "missing indexes"),
    ),
)


async def upgrade(
    command: Command,
    check: Annotated[
        bool, typer.Option("--check", help="Apply nothing; exit with 6 if anything is missing.")
    ] = False,
    progress: ProgressStyle = None,
) -> ExitCode:
    """Create and upgrade the tables: print the plan, then apply it."""
    style = read_style(progress)
    async with command.connect() as connection:
        steps = await pending_steps(connection, schema=command.schema)
        if check:
            _write(command, steps)
            command.output.say(_count(steps, "to apply"))
            if steps:
                return ExitCode.SCHEMA
            # A worker refuses tables that lack a part, although no migration is missing.
            await verify(connection, schema=command.schema)
            return ExitCode.DONE
        command.output.say(_describe(steps))
        if steps:
            # It takes a second session to find out whether advisory locks exclude other sessions.
            async with command.connect() as second_connection:
                await check_engine(connection, second_connection)
        # This runs without missing migrations too, because it recreates tables that were dropped.
        applied_versions = await _apply(command, connection, steps, style)
        home = await home_schema(connection, command.schema)
        # Another session may have applied some of the planned ones meanwhile.
        applied = [step for step in steps if step.migration.version in applied_versions]
        _write(command, applied)
        missing_names = await missing_indexes(connection, schema=home)
    command.output.say(_count(applied, "applied") if applied else "no migration was missing")
    if missing_names:
        command.output.say(
            f"left out on large tables: {', '.join(missing_names)}; run pg-scheduler migrate indexes"
        )
    return ExitCode.DONE


async def plan(command: Command) -> None:
    """Print the migrations that migrate would apply."""
    # Why a worker would refuse the tables, although no migration is missing.
    problem: SchemaError | None = None
    async with command.connect() as connection:
        steps = await pending_steps(connection, schema=command.schema)
        if not steps:
            try:
                await verify(connection, schema=command.schema)
            except SchemaError as error:
                problem = error
    _write(command, steps)
    command.output.say(_count(steps, "to apply"))
    if problem is not None:
        command.output.say(str(problem))


def sql(
    command: Command,
    start: Annotated[int, typer.Option("--from", metavar="N", help="Version of the tables; 0 for none.")] = 0,
    target: Annotated[
        int | None, typer.Option("--to", metavar="N", help="Version to migrate to [the newest].")
    ] = None,
) -> None:
    """Print the SQL of migrations, without a connection. The schema is --schema, else public."""
    command.output.write_text(render_script(command.schema or "public", start=start, target=target))


async def down(
    command: Command,
    target: Annotated[int, typer.Option("--to", metavar="N", help="Version to migrate down to.")],
    yes: Yes = False,
) -> None:
    """Revert migrations. What they added is lost."""
    async with command.connect() as connection:
        steps = await pending_steps(connection, schema=command.schema, target=target)
        # A step upward means that the target is a newer version than that of the tables.
        if any(step.up for step in steps):
            raise CommandError(
                ExitCode.USAGE, f"the tables are older than version {target}; run pg-scheduler migrate"
            )
        if steps:
            command.output.say(_describe(steps))
            confirm("Revert them, with the data in what they added?", yes=yes)
            await migrate(connection, schema=command.schema, target=target)
    _write(command, steps)
    command.output.say(_count(steps, "reverted"))


async def _apply(command: Command, connection: Connection, steps: Sequence[Step], style: Style) -> list[int]:
    """Migrate to the newest version, show which migration is applied, and return the applied versions.

    ``steps`` are the planned migrations.
    """
    begun_steps: list[Step] = []
    with Reporter(style, command.output) as reporter:

        async def show_progress() -> None:
            if begun_steps:
                migration = begun_steps[-1].migration
                # Its number among the planned ones, from 1.
                number = sum(step.migration.version <= migration.version for step in steps)
                text = f"applying {migration.version:04} {migration.name}, {number} of {len(steps)}"
                reporter.show(text, number - 1, len(steps))

        work = apply(connection, shipped_migrations(), schema=command.schema, on_step=begun_steps.append)
        return await watch(work, show_progress, command.output)


async def indexes(command: Command, progress: ProgressStyle = None) -> None:
    """Build the indexes that are missing or invalid, while jobs run."""
    style = read_style(progress)
    async with command.connect() as connection:
        missing = await missing_indexes(connection, schema=command.schema)
        if missing:
            command.output.say(f"building {', '.join(missing)}; waiting for every older transaction")
        try:
            built = await _build(command, connection, style)
        except asyncio.CancelledError:
            command.output.say(
                "an index that is not complete is invalid, and not used: run pg-scheduler migrate indexes "
                "again, which replaces it"
            )
            raise
    command.output.write_list(INDEX, [BuiltIndex(name) for name in built])
    command.output.say(f"{len(built)} built" if built else "no index is missing")


async def _build(command: Command, connection: Connection, style: Style) -> list[str]:
    """Build the indexes, and show the progress of each, which is read on a second connection."""
    work = build_indexes(connection, schema=command.schema)
    if style == "off":
        return await work
    watcher: Connection | None = None
    async with AsyncExitStack() as opened:
        with Reporter(style, command.output) as reporter:

            async def show_progress() -> None:
                nonlocal watcher
                # The second connection is opened only if the work takes long enough to show its progress.
                if watcher is None:
                    watcher = await opened.enter_async_context(command.connect())
                progress = await build_progress(watcher, connection.get_server_pid())
                if progress is not None:
                    # The total is 0 in a phase for which PostgreSQL does not know it.
                    extent = f", {progress.done:,} of {progress.total:,}" if progress.total else ""
                    reporter.show(f"{progress.phase}{extent}", progress.done, progress.total or None)

            return await watch(work, show_progress, command.output)


async def verify_schema(command: Command) -> ExitCode:
    """Compare the tables with those of this release; exit with 1 if they differ."""
    problem: str | None = None
    missing: list[str] = []
    async with command.connect() as connection:
        home = await home_schema(connection, command.schema)
        try:
            await verify(connection, schema=home)
        except (MigrationChangedError, SchemaMismatchError) as error:
            problem = str(error)
        # This error means that the records of migrations cannot be read, which the problem states already.
        with suppress(SchemaMismatchError):
            missing = await missing_indexes(connection, schema=home)
    newest = shipped_migrations()[-1].version
    command.output.write_one(VERIFIED, Verified(home, newest, problem is None, problem, missing))
    return ExitCode.DONE if problem is None else ExitCode.NEGATIVE


def _write(command: Command, steps: Iterable[Step]) -> None:
    """Write a row for each migration that is applied or reverted."""
    command.output.write_list(STEP, [_row(step) for step in steps])


def _row(step: Step) -> PlannedStep:
    """Return a step as a row of output."""
    # The schema version that a release must know to use the tables after this step. It is None if the
    # migration declares no kind, and 0 if it is an expansion, which any release can use.
    needs = step.migration.needs
    kind: Literal["expand", "contract"] | None = None
    if needs is not None:
        kind = "contract" if needs else "expand"
    return PlannedStep(
        version=step.migration.version,
        name=step.migration.name,
        action="apply" if step.up else "revert",
        kind=kind,
        needs=needs or None,
    )


def _describe(steps: list[Step]) -> str:
    """Return what is about to be done: ``to apply:`` or ``to revert:`` with the names of the migrations."""
    names = ", ".join(f"{step.migration.version:04} {step.migration.name}" for step in steps)
    verb = "apply" if all(step.up for step in steps) else "revert"
    return f"to {verb}: {names}" if steps else "nothing to apply"


def _count(steps: list[Step], what: str) -> str:
    """Return the number of migrations with what was done with them, such as ``2 migrations applied``."""
    noun = "migration" if len(steps) == 1 else "migrations"
    return f"{len(steps)} {noun} {what}"


COMMANDS: Final = Group(
    "Create and upgrade the tables: print the plan, then apply it.",
    {
        "plan": plan,
        "sql": sql,
        "down": down,
        "indexes": indexes,
        "verify": verify_schema,
    },
    upgrade,
)
