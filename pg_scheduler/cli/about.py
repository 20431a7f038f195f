"""``version`` and ``config``."""

from __future__ import annotations

import platform
from typing import Final

import typer

from pg_scheduler.migrate import shipped_migrations
from pg_scheduler.version import __version__

from .commands import Command, add_command
from .output import SHAPE_VERSION, Column, Shape

VERSION: Final = Shape(
    "version",
    "version",
    (
        Column("version", "pg_scheduler"),
        Column("schema_version", "schema"),
        Column("python", "Python"),
    ),
)
CONFIG: Final = Shape(
    "setting",
    "name",
    (Column("name", "NAME"), Column("value", "VALUE"), Column("origin", "ORIGIN")),
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "version")(version)
    add_command(app, "config")(config)


def version(command: Command) -> None:
    """Print the versions of this release, its tables and Python."""
    command.output.write_one(
        VERSION,
        {
            "v": SHAPE_VERSION,
            "version": __version__,
            "schema_version": shipped_migrations()[-1].version,
            "python": platform.python_version(),
        },
    )


def config(command: Command) -> None:
    """Print every setting and its origin, without passwords."""
    command.output.write_list(
        CONFIG,
        [
            {"v": SHAPE_VERSION, "name": each.name, "value": each.shown, "origin": each.origin}
            for each in command.settings.all
        ],
    )
