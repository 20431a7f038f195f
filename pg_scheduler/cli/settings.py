"""The settings: the values of the options that every command has, and where each of them comes from.

An option takes precedence over its environment variable, that one over ``[tool.pg-scheduler]`` in the nearest
``pyproject.toml``, and that one over the default. Typer applies this order, and records the source of each
value. Without any DSN, asyncpg reads libpq's variables and files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pg_scheduler.dsn import mask_dsn, normalise_dsn, passwords_in
from pg_scheduler.errors import ConfigurationError

from .errors import UsageError
from .project import VARIABLES, Project, option_names

PROGRAM: Final = "pg-scheduler"
COMPLETE_VARIABLE: Final = "_PG_SCHEDULER_COMPLETE"
"""The variable by which a shell asks for words."""

DEMO_NODE: Final = "PG_SCHEDULER_DEMO_NODE"
"""The variable with the name of a node that the demo started, which logs nothing and ends with it."""

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


def read_settings(context: Any) -> Settings:
    """Return the settings of a command, of which options after its name win over those before it.

    Raises:
        CommandError: A DSN is invalid.
    """
    return Settings(tuple(_read(name, context) for name in VARIABLES))


def read_options(context: Any, words: Iterable[str] = ()) -> list[Setting]:
    """Return the options that a variable or the file sets, of these commands; of all if there are none."""
    project, commands = project_of(context), context.find_root().command.commands
    found = []
    options = (each for word in words or commands for each in option_names(commands[word], (word,)))
    for path, name, parameter in options:
        table: Any = project.defaults
        for word in path:
            table = table.get(word, {})
        key = ".".join((*path, name))
        if variable := _variable([parameter.envvar]):
            found.append(Setting(key, os.environ[variable], variable))
        elif parameter.name in table:
            found.append(Setting(key, _text(table[parameter.name]), f"{project.path}"))
    return found


def project_of(context: Any) -> Project:
    """Return the defaults with which the program runs."""
    project: Project = context.find_root().obj
    return project


def source_of(context: Any, parameter: str) -> str | None:
    """Return where a value comes from: COMMANDLINE, ENVIRONMENT, DEFAULT_MAP or DEFAULT."""
    return getattr(context.get_parameter_source(parameter), "name", None)


def _read(name: str, context: Any) -> Setting:
    parameter, holder = name.replace("-", "_"), context
    while source_of(holder, parameter) != "COMMANDLINE" and holder.parent is not None:
        holder = holder.parent
    value: str | None = holder.params.get(parameter)
    match source_of(holder, parameter):
        case "COMMANDLINE":
            origin = f"--{name}"
        case "ENVIRONMENT":
            origin = _variable(VARIABLES[name]) or ""
        case "DEFAULT_MAP":
            origin = f"{project_of(context).path}"
        case _:
            value, origin = _DEFAULTS.get(name), _DEFAULT_ORIGINS.get(name, "default")
    if value is not None and "dsn" in name:
        try:
            value = normalise_dsn(value, f"the DSN from {origin}")
        except ConfigurationError as error:
            raise UsageError(str(error)) from error
    return Setting(name, value, origin)


def _variable(names: Iterable[str]) -> str | None:
    """Return the variable that sets a value. Empty ones are ignored."""
    return next((each for each in names if os.environ.get(each)), None)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
