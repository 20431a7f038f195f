"""The settings of the command line and where each of them comes from.

An option takes precedence over its environment variable, that one over ``[tool.pg-scheduler]`` in the nearest
``pyproject.toml``, and that one over the default. Without any DSN, asyncpg reads libpq's variables and files.
`pg_scheduler.cli.defaults` does the same for the options of single commands.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pg_scheduler.dsn import mask_dsn, normalise_dsn, passwords_in
from pg_scheduler.errors import ConfigurationError

from .errors import CommandError, ExitCode

PROGRAM: Final = "pg-scheduler"
COMPLETE_VARIABLE: Final = "_PG_SCHEDULER_COMPLETE"
"""The variable by which a shell asks for words."""

VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "dsn": ("PG_SCHEDULER_DSN", "DATABASE_URL"),
    "direct-dsn": ("PG_SCHEDULER_DIRECT_DSN",),
    "schema": ("PG_SCHEDULER_SCHEMA",),
    "output": ("PG_SCHEDULER_OUTPUT",),
    "tz": ("PG_SCHEDULER_TZ",),
}
"""The environment variables of each setting, the first one wins."""

NAMES: Final = tuple(VARIABLES)

REPORT_FD: Final = "PG_SCHEDULER_REPORT_FD"
"""The variable by which a supervisor passes a pipe for reports to its processes."""

_DEFAULTS: Final[Mapping[str, str]] = {"tz": "local"}
_DEFAULT_ORIGINS: Final[Mapping[str, str]] = {
    "dsn": "libpq: PGHOST, PGSERVICE, ~/.pgpass ...",
    "direct-dsn": "default: the DSN",
    "schema": "default: the search path",
    "output": "default: table on a terminal, else jsonl",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its origin.

    Attributes:
        name: As in ``[tool.pg-scheduler]``.
        value: The value; None for the behaviour that the origin describes.
        origin: An option, a variable, a file or the default.
    """

    name: str
    value: str | None
    origin: str

    @property
    def shown(self) -> str | None:
        """The value without passwords."""
        return mask_dsn(self.value) if self.value is not None and "dsn" in self.name else self.value


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a command."""

    all: tuple[Setting, ...]

    def __getitem__(self, name: str) -> str | None:
        return next(setting.value for setting in self.all if setting.name == name)

    def get(self, name: str) -> str | None:
        """Return the value of an option of a command; None if nothing sets it."""
        return next((setting.value for setting in self.all if setting.name == name), None)

    def origin(self, name: str) -> str:
        """Return the origin of a value."""
        return next(setting.origin for setting in self.all if setting.name == name)

    @property
    def secrets(self) -> list[str]:
        """The passwords that no output may contain."""
        return [
            word
            for setting in self.all
            if setting.value is not None and "dsn" in setting.name
            for word in passwords_in(setting.value)
        ]


def resolve(
    options: Mapping[str, str | None], environment: Mapping[str, str], project: Path | None
) -> Settings:
    """Return the settings that every command has.

    Args:
        options: The options that were given, by the names of the settings.
        environment: The environment variables. Empty ones are ignored.
        project: A ``pyproject.toml``; None for none.

    Raises:
        CommandError: A DSN is invalid, the file cannot be read, or a value of it is no text.
    """
    table = read_project(project)
    return Settings(tuple(_resolve(name, options, environment, table, project) for name in NAMES))


def find_project() -> Path | None:
    """Return the nearest ``pyproject.toml`` in the working folder or above it.

    Returns:
        None also if the folder was deleted, or one above it cannot be read.
    """
    with suppress(OSError):
        folder = Path.cwd()
        candidates = (each / "pyproject.toml" for each in (folder, *folder.parents))
        return next((path for path in candidates if path.is_file()), None)
    return None


def read_project(project: Path | None) -> Mapping[str, Any]:
    """Return the table ``[tool.pg-scheduler]`` of a file; an empty one for None.

    Raises:
        CommandError: The file cannot be read.
    """
    if project is None:
        return {}
    try:
        document: dict[str, Any] = tomllib.loads(project.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(ExitCode.USAGE, f"{project} cannot be read: {error}") from error
    if "pg_scheduler" in document.get("tool", {}):
        raise CommandError(
            ExitCode.USAGE, f"[tool.pg_scheduler] in {project} is not read; rename it to [tool.pg-scheduler]"
        )
    table = document.get("tool", {}).get("pg-scheduler", {})
    if not isinstance(table, dict):
        kind = type(table).__name__  # not its value: it may be a DSN
        raise CommandError(ExitCode.USAGE, f"tool.pg-scheduler in {project} must be a table, not a {kind}")
    return table


def _resolve(
    name: str,
    options: Mapping[str, str | None],
    environment: Mapping[str, str],
    table: Mapping[str, Any],
    project: Path | None,
) -> Setting:
    found = Setting(name, _DEFAULTS.get(name), _DEFAULT_ORIGINS.get(name, "default"))
    if (option := options.get(name)) is not None:
        found = Setting(name, option, f"--{name}")
    elif variable := next((each for each in VARIABLES[name] if environment.get(each)), None):
        found = Setting(name, environment[variable], variable)
    elif name in table:
        if not isinstance(table[name], str):
            kind = type(table[name]).__name__  # not its value: it may have a password
            raise CommandError(
                ExitCode.USAGE,
                f"{name} in [tool.pg-scheduler] of {project} must be a text, not a {kind}",
            )
        found = Setting(name, table[name], str(project))
    if found.value is not None and "dsn" in name:
        try:
            dsn = normalise_dsn(found.value, f"the DSN from {found.origin}")
        except ConfigurationError as error:
            raise CommandError(ExitCode.USAGE, str(error)) from error
        return Setting(name, dsn, found.origin)
    return found
