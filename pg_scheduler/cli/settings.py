"""The settings: the values of the options that every command has, and where each of them comes from.

The first of these that has a value counts: the option, its environment variable, ``[tool.pg-scheduler]`` in
the nearest ``pyproject.toml``, and the default of the program. Typer applies this order, and records the
source of each value. Without any DSN, asyncpg reads libpq's variables and files.

The variable of an option is ``PG_SCHEDULER_<COMMAND>_<OPTION>``. In the file, its value is in the table of
its command, such as ``[tool.pg-scheduler.worker]``. For the options that every command has, ``VARIABLES``
names the variables, and the values are in ``[tool.pg-scheduler]`` itself.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final, NamedTuple

from pg_scheduler.base.dsn import mask_dsn, normalise_dsn, passwords_in
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.naming import most_similar

from .errors import CommandError, UsageError, hint_at

PREFIX: Final = "PG_SCHEDULER"

VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "dsn": ("PG_SCHEDULER_DSN", "DATABASE_URL"),
    "direct-dsn": ("PG_SCHEDULER_DIRECT_DSN",),
    "schema": ("PG_SCHEDULER_SCHEMA",),
    "output": ("PG_SCHEDULER_OUTPUT",),
    "tz": ("PG_SCHEDULER_TZ",),
}
"""The variables of the options that every command has, the first one wins."""

OTHER_VARIABLES: Final = frozenset(
    {
        "PG_SCHEDULER_COMPLETION_SECONDS",
        "PG_SCHEDULER_DASHBOARD_PASSWORD",
        "PG_SCHEDULER_DASHBOARD_USER",
        "PG_SCHEDULER_DEMO_NODE",
        "PG_SCHEDULER_PG_BIN",
        "PG_SCHEDULER_REPORT_FD",
        "PG_SCHEDULER_TEST_DSN",
        "PG_SCHEDULER_WEBHOOK_FORMAT",
        "PG_SCHEDULER_WEBHOOK_URL",
    }
)
"""The variables of this library that belong to no option."""

WITHOUT_DEFAULT: Final = frozenset({"help", "version", "yes"})
"""Options that have no variable and no default: ``yes`` is given each time, the others end the program."""

OF_CLIENT: Final = frozenset({"as", "arguments", "role"})
"""Options of ``mcp`` that a ``pyproject.toml`` may not set.

The assistant may have written that file, or fetched it with the code of other people. So only the arguments
and the variables count, which the client of the person gives to the program.
"""

SERVICES: Final = frozenset({"worker", "dashboard", "exporter"})
"""Commands of which ``--help`` names the variables, since they run where no arguments are written."""

MISSPELT: Final = 0.92
"""How similar a variable must be to one of this library to be a misspelt one, from 0 to 1.

They have the prefix in common. So ``PG_SCHEDULER_DNS`` is such a variable, and ``PG_SCHEDULER_TAG`` is not.
"""

_SERVICE_LINK: Final = re.compile(
    r".+_(?:SERVICE_HOST|SERVICE_PORT(?:_.+)?|PORT|PORT_[0-9]{1,5}_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
"""The names of the variables that Kubernetes and the links of Docker set for a service."""


class OptionName(NamedTuple):
    """An option of a command.

    Attributes:
        path: The words of the command.
        name: The name of the option, without the hyphens in front.
        parameter: The option as Typer has it.
    """

    path: tuple[str, ...]
    name: str
    parameter: Any


@dataclass(frozen=True, slots=True)
class Project:
    """The defaults in a ``pyproject.toml``.

    Attributes:
        path: The file; None for none.
        defaults: By the words of commands, then by parameters, as for Typer.
        error: Why the file is invalid. Each command raises it, but --help and --version need no valid file.
    """

    path: Path | None
    defaults: Mapping[str, Any]
    error: CommandError | None = None


def option_names(command: Any, path: tuple[str, ...] = ()) -> Iterator[OptionName]:
    """Yield every option of a command, and of the commands of a group, that may have a default."""
    yield from _own_names(command, path)
    # Only groups have commands.
    for word, subcommand in getattr(command, "commands", {}).items():
        yield from option_names(subcommand, (*path, word))


def name_variables(command: Any, path: tuple[str, ...] = ()) -> None:
    """Tell Typer which environment variables set the options of a command or of a group.

    ``path`` has the words of the command. Without words, the command is the program itself, whose options
    every command has.
    """
    if not path:
        # The commands of the program are imported later, and get their variables then.
        for _, name, parameter in _own_names(command, path):
            parameter.envvar = list(VARIABLES[name])
            parameter.show_envvar = False
            parameter.show_default = False  # the file may have a password
        return
    for words, name, parameter in option_names(command, path):
        parameter.envvar = _variable_name(*words, name)
        parameter.show_envvar = path[0] in SERVICES


def read_project(program: Any) -> Project:
    """Return the defaults in the nearest ``pyproject.toml`` in the working folder or above it.

    The error of an invalid file is a part of the result, since --help and --version need no valid file.
    """
    path = _find_project_file()
    try:
        return Project(path, _defaults(program, _read_table(path), f"{path}", ()))
    except CommandError as error:
        return Project(path, {}, error)


def misspelt_variables(program: Any, arguments: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each environment variable that is none of this library, and the one that was probably meant.

    A variable that is not very similar to one is not yielded, since it may be one of the application.
    ``arguments`` are those of the program. The modules of commands take time to import, so the variables of
    a command are known only if it runs, or if a service or ``config`` runs.
    """
    general_names = {*OTHER_VARIABLES, *(name for names in VARIABLES.values() for name in names)}
    unknown_names = [
        name
        for name in sorted(os.environ)
        if name.startswith(f"{PREFIX}_") and name not in general_names and not _SERVICE_LINK.fullmatch(name)
    ]
    if not unknown_names:
        return
    examines_all = not {*SERVICES, "config"}.isdisjoint(arguments)
    words = [word for word in program.commands if examines_all or word in arguments]
    known_names = general_names.union(*(_variables_of(program, word) for word in words))
    other_prefixes = tuple(f"{_variable_name(word)}_" for word in program.commands if word not in words)
    for name in unknown_names:
        if name in known_names or name.startswith(other_prefixes):
            continue
        near = most_similar(name, sorted(known_names))
        if near is not None and SequenceMatcher(None, near, name).ratio() >= MISSPELT:
            yield name, near


def _variables_of(program: Any, word: str) -> set[str]:
    """Return the variables of the options of a command, or of the commands of a group."""
    return {option.parameter.envvar for option in option_names(program.commands[word], (word,))}


def _variable_name(*words: str) -> str:
    """Return the variable of an option: the words of its command, and its name."""
    return "_".join((PREFIX, *words)).upper().replace("-", "_")


def _own_names(command: Any, path: tuple[str, ...]) -> Iterator[OptionName]:
    """Yield the options of a command that may have a default.

    The options of the program, which every command has too, are those of the program alone.
    """
    for parameter in command.params:
        long_names = [flag[2:] for flag in parameter.opts if flag.startswith("--")]
        # An argument has no name with hyphens.
        if not long_names or long_names[0] in WITHOUT_DEFAULT:
            continue
        name = long_names[0]
        is_of_program = bool(path) and name in VARIABLES
        if not is_of_program:
            yield OptionName(path, name, parameter)


def _find_project_file() -> Path | None:
    """Return the nearest ``pyproject.toml``; None if there is none, or if a folder cannot be read."""
    with suppress(OSError):
        folder = Path.cwd()
        candidates = (parent / "pyproject.toml" for parent in (folder, *folder.parents))
        return next((path for path in candidates if path.is_file()), None)
    return None


def _read_table(path: Path | None) -> Mapping[str, Any]:
    """Return the table ``[tool.pg-scheduler]`` of a file; an empty one for None."""
    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    tools = _subtable(document, "tool", "tool", path)
    if "pg_scheduler" in tools:
        raise UsageError(f"[tool.pg_scheduler] in {path} is not read; rename it to [tool.pg-scheduler]")
    return _subtable(tools, "pg-scheduler", "tool.pg-scheduler", path)


def _subtable(table: Mapping[str, Any], key: str, name: str, path: Path) -> Mapping[str, Any]:
    """Return the table that a key has, empty without the key; ``name`` is the whole name for the message."""
    value = table.get(key, {})
    if not isinstance(value, dict):
        # The message has no value, which may be a DSN.
        kind = type(value).__name__
        raise UsageError(f"{name} in {path} must be a table, as in [tool.pg-scheduler], not a {kind}")
    return value


def _defaults(command: Any, table: Mapping[str, Any], source: str, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the checked values of a table, by the names that Typer has for the parameters.

    The table of a command or group may contain tables of its commands, which are returned as further
    mappings.

    Args:
        command: The program, a group or a command.
        table: Its table in the file.
        source: The path of the file, for messages.
        path: The words of the command.
    """
    options = {option.name: option for option in _own_names(command, path)}
    commands = getattr(command, "commands", {})
    defaults: dict[str, Any] = {}
    place = f"[{_table_name(path)}] in {source}"
    for key, value in table.items():
        if path == ("mcp",) and key in OF_CLIENT:
            raise UsageError(
                f"{place} has the key {key!r}, which may not be there, since an assistant may edit the file; "
                f"remove it, and pass --{key} in the configuration of the client"
            )
        if key in options:
            defaults[options[key].parameter.name] = _checked(options[key], value, source)
        elif key in commands:
            if not isinstance(value, Mapping):
                raise UsageError(f"{key} in {place} must be a table, not {value!r}")
            defaults[key] = _defaults(commands[key], value, source, (*path, key))
        else:
            # The key may be the option of one of the commands in this group, so it belongs in another table.
            paths = [option.path for option in option_names(command, path) if option.name == key]
            if len(paths) == 1:
                problem = f"has the key {key!r}, which belongs in [{_table_name(paths[0])}]"
            else:
                keys = [*options, *commands]
                problem = f"has the unknown key {key!r}{hint_at(key, keys, title='known keys')}"
            raise UsageError(f"{place} {problem}")
    return defaults


def _checked(option: OptionName, value: Any, source: str) -> Any:
    """Return the value of an option in the file, or raise an error if its type is wrong.

    The value of an option that may be repeated is a list. A single text or number counts as a list of one.
    """
    table = _table_name(option.path)
    is_list = option.parameter.multiple
    # Without words in its path, this is an option of the program, such as the DSN. All of these are texts.
    if not option.path and not isinstance(value, str):
        # The message has no value, which may contain a password.
        kind = type(value).__name__
        raise UsageError(f"{option.name} in [{table}] of {source} must be a text, not a {kind}")
    # A list for an option that may not be repeated stays a single value here, and is refused below.
    values = value if isinstance(value, list) and is_list else [value]
    is_flag = option.parameter.is_flag
    kind = "true or false" if is_flag else "a text or a number"
    if is_list:
        kind = "a list of texts or numbers"
    for item in values:
        # A boolean of Python is an int too, so an option with a number would take true for 1.
        if not isinstance(item, str | int | float) or (isinstance(item, bool) and not is_flag):
            text = _text(value) if isinstance(value, bool) else repr(value)
            raise UsageError(f"{option.name} in [{table}] in {source} must be {kind}, not {text}")
    return values if is_list else value


def _table_name(path: tuple[str, ...]) -> str:
    """Return the name of the table for the options of a command, such as ``tool.pg-scheduler.worker``."""
    return ".".join(("tool", "pg-scheduler", *path))


PROGRAM: Final = "pg-scheduler"
COMPLETE_VARIABLE: Final = "_PG_SCHEDULER_COMPLETE"
"""The variable by which a shell asks for words."""

DEMO_NODE: Final = "PG_SCHEDULER_DEMO_NODE"
"""The variable with the name of a node of the demo. The node logs nothing and ends with the demo."""

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
        """The value without passwords, which only DSNs have."""
        if self.value is not None and "dsn" in self.name:
            return mask_dsn(self.value)
        return self.value


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
        passwords: list[str] = []
        for setting in self.all:
            if setting.value is not None and "dsn" in setting.name:
                passwords += passwords_in(setting.value)
        return passwords


def read_settings(context: Any) -> Settings:
    """Return the settings of a command. An option after the name of the command overrides one before it.

    Raises:
        CommandError: A DSN is invalid.
    """
    return Settings(tuple(_setting(name, context) for name in VARIABLES))


def read_options(context: Any, words: Iterable[str] = ()) -> list[Setting]:
    """Return the options that an environment variable or the ``pyproject.toml`` sets.

    ``words`` are the names of the commands whose options are returned; without words, those of all commands.
    """
    project = project_of(context)
    commands = context.find_root().command.commands
    options: list[OptionName] = []
    for word in words or commands:
        options += option_names(commands[word], (word,))
    settings = []
    for path, name, parameter in options:
        # The tables of the file are nested like the commands: that of "jobs list" is in that of "jobs".
        table: Any = project.defaults
        for word in path:
            table = table.get(word, {})
        key = ".".join((*path, name))
        variable = _variable([parameter.envvar])
        # A variable has precedence over the file.
        if variable is not None:
            settings.append(Setting(key, os.environ[variable], variable))
        elif parameter.name in table:
            settings.append(Setting(key, _text(table[parameter.name]), f"{project.path}"))
    return settings


def project_of(context: Any) -> Project:
    """Return the defaults with which the program runs."""
    project: Project = context.find_root().obj
    return project


def source_of(context: Any, parameter: str) -> str | None:
    """Return where a value comes from: COMMANDLINE, ENVIRONMENT, DEFAULT_MAP or DEFAULT."""
    return getattr(context.get_parameter_source(parameter), "name", None)


def _setting(name: str, context: Any) -> Setting:
    """Return the value of an option that every command has, and its origin."""
    # The command, its group and the program each have a context with this option. The innermost context whose
    # arguments have the option counts. If there is none, the context of the program counts, which also has
    # the values of variables and of the file.
    parameter = name.replace("-", "_")
    holder = context
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
            # Nothing sets the value. The origin states what applies instead.
            value, origin = _DEFAULTS.get(name), _DEFAULT_ORIGINS.get(name, "default")
    if value is not None and "dsn" in name:
        try:
            value = normalise_dsn(value, f"the DSN from {origin}")
        except ConfigurationError as error:
            raise UsageError(str(error)) from error
    return Setting(name, value, origin)


def _variable(names: Iterable[str]) -> str | None:
    """Return the first of these environment variables that is set to a text that is not empty."""
    return next((name for name in names if os.environ.get(name)), None)


def _text(value: Any) -> str:
    """Return a value of the file as the text of an argument."""
    if isinstance(value, list):
        return " ".join(map(_text, value))
    # TOML and the options of commands write true and false in lowercase.
    return str(value).lower() if isinstance(value, bool) else str(value)
