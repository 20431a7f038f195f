"""The variables and the defaults of the options of each command.

The variable of an option is ``PG_SCHEDULER_<COMMAND>_<OPTION>``. Its default is in the table of its command
in ``[tool.pg-scheduler]``. `pg_scheduler.cli.settings` reads the options that every command has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .errors import CommandError, ExitCode, hint_at
from .settings import VARIABLES, Setting, read_project

PREFIX: Final = "PG_SCHEDULER"

WITHOUT_DEFAULT: Final = frozenset({"help", "version", "yes"})
"""Options that have neither: a confirmation is given each time, and the others end the program."""

SERVICES: Final = frozenset({"worker", "dashboard", "exporter"})
"""Commands of which ``--help`` names the variables, since they run where no arguments are written."""


@dataclass(frozen=True, slots=True)
class OptionName:
    """An option of a command.

    Attributes:
        path: The words of the command.
        name: The name of the option, without the hyphens in front.
        parameter: The option as Typer has it.
    """

    path: tuple[str, ...]
    name: str
    parameter: Any

    @property
    def key(self) -> str:
        """The key in ``[tool.pg-scheduler]``."""
        return ".".join((*self.path, self.name))

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "_".join((PREFIX, *self.path, self.name)).upper().replace("-", "_")


def names_of(command: Any, path: tuple[str, ...] = ()) -> Iterator[OptionName]:
    """Return every option of a command, and of the commands of a group, that may have a default."""
    yield from _own_names(command, path)
    for word, each in getattr(command, "commands", {}).items():
        yield from names_of(each, (*path, word))


def _own_names(command: Any, path: tuple[str, ...]) -> Iterator[OptionName]:
    for parameter in command.params:
        name = next((each[2:] for each in parameter.opts if each.startswith("--")), None)
        if name is not None and name not in VARIABLES and name not in WITHOUT_DEFAULT:
            yield OptionName(path, name, parameter)


def name_variables(command: Any, path: tuple[str, ...]) -> None:
    """Give each option of a command its variable."""
    for each in names_of(command, path):
        each.parameter.envvar = each.variable
        each.parameter.show_envvar = each.path[0] in SERVICES


def read_defaults(program: Any, project: Path | None) -> dict[str, Any]:
    """Return the defaults in a ``pyproject.toml`` by the words of commands, then by parameters, as for Typer.

    Raises:
        CommandError: The file cannot be read, a key is unknown, or its value is of another type.
    """
    return _defaults(program, read_project(project), f"{project}", ())


def set_options(program: Any, environment: Mapping[str, str], project: Path | None) -> list[Setting]:
    """Return the options that a variable or the file sets, in the order of the commands.

    Raises:
        CommandError: As `read_defaults()`.
    """
    defaults, found = read_defaults(program, project), []
    for each in names_of(program):
        table: Any = defaults
        for word in each.path:
            table = table.get(word, {})
        if environment.get(each.variable):
            found.append(Setting(each.key, environment[each.variable], each.variable))
        elif each.parameter.name in table:
            found.append(Setting(each.key, _text(table[each.parameter.name]), f"{project}"))
    return found


def _defaults(command: Any, table: Mapping[str, Any], source: str, path: tuple[str, ...]) -> dict[str, Any]:
    options = {each.name: each.parameter for each in _own_names(command, path)}
    commands = getattr(command, "commands", {})
    found: dict[str, Any] = {}
    place = f"[{'.'.join(('tool', 'pg-scheduler', *path))}] in {source}"
    for key, value in table.items():
        if not path and key in VARIABLES:
            continue
        if key in commands:
            if not isinstance(value, Mapping):
                raise CommandError(ExitCode.USAGE, f"{key} in {place} must be a table, not {value!r}")
            found[key] = _defaults(commands[key], value, source, (*path, key))
        elif key in options:
            found[options[key].name] = _checked(options[key], value, f"{key} in {place}")
        else:
            homes = [each.path for each in names_of(command, path) if each.name == key]
            if len(homes) == 1:
                home = ".".join(("tool", "pg-scheduler", *homes[0]))
                raise CommandError(ExitCode.USAGE, f"{place} has the key {key!r}, which belongs in [{home}]")
            raise _unknown(place, key, [*(() if path else VARIABLES), *options, *commands])
    return found


def _checked(parameter: Any, value: Any, name: str) -> Any:
    values = value if isinstance(value, list) and parameter.multiple else [value]
    if not all(isinstance(each, str | int | float) for each in values):
        kind = "a list of texts or numbers" if parameter.multiple else "a text, a number, true or false"
        raise CommandError(ExitCode.USAGE, f"{name} must be {kind}, not {value!r}")
    return values if parameter.multiple else value


def _unknown(place: str, key: str, known: Sequence[str]) -> CommandError:
    hint = hint_at(key, known, f"known keys: {', '.join(known)}")
    return CommandError(ExitCode.USAGE, f"{place} has the unknown key {key!r}{hint}")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
