"""``version`` and ``config``."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from typing import Final

from pg_scheduler.migrate import shipped_migrations
from pg_scheduler.version import __version__

from .commands import Command
from .output import Column, Shape, columns
from .settings import Setting


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a release."""

    version: str
    schema_version: int
    python: str


VERSION: Final = Shape(
    "version",
    Versions,
    (
        Column("version", "pg_scheduler"),
        Column("schema_version", "schema"),
        Column("python", "Python"),
    ),
)
CONFIG: Final = Shape("setting", Setting, columns("name", "value", "origin"))


def version(command: Command) -> None:
    """Print the versions of this release, its tables and Python."""
    newest = shipped_migrations()[-1].version
    command.output.write_one(VERSION, Versions(__version__, newest, platform.python_version()))


def config(command: Command) -> None:
    """Print every setting and its origin, without passwords."""
    settings = [*command.settings.all, *command.options()]
    command.output.write_list(CONFIG, [replace(setting, value=setting.shown) for setting in settings])
