"""``completion``: scripts by which shells complete the words of this program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from typer.completion import (  # type: ignore[attr-defined] # it has no __all__
    completion_init,
    get_completion_script,
    install,
)

from .commands import Command, add_command
from .errors import CommandError, ExitCode

PROGRAM: Final = "pg-scheduler"
VARIABLE: Final = "_PG_SCHEDULER_COMPLETE"
"""The variable by which a shell asks for words."""

SHELLS: Final = ("bash", "zsh", "fish")

BASH: Final = """\
_pg_scheduler_completion() {
    local IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}" words last
    IFS=' ' read -ra words <<< "$line"  # bash has split the words at colons, too
    [[ "$line" == *' ' ]] && words+=('')
    last="${words[${#words[@]}-1]}"
    COMPREPLY=( $( env COMP_WORDS="$line" COMP_CWORD=$(( ${#words[@]} - 1 )) \\
                   _PG_SCHEDULER_COMPLETE=complete_bash "$1" 2>/dev/null ) )
    if [[ "$last" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then  # it replaces what follows the last colon
        COMPREPLY=( "${COMPREPLY[@]#"${last%"${last##*:}"}"}" )
    fi
    return 0
}

complete -o default -F _pg_scheduler_completion pg-scheduler
"""

ZSH: Final = """\
#compdef pg-scheduler

_pg_scheduler_completion() {
    eval "$( env _TYPER_COMPLETE_ARGS="${(j: :)words[1,CURRENT]}" \\
                 _PG_SCHEDULER_COMPLETE=complete_zsh "$words[1]" 2>/dev/null )"
}

if [[ "$funcstack[1]" == _pg-scheduler ]]; then  # zsh loads this file when it is first needed, as a function
    _pg_scheduler_completion
else
    compdef _pg_scheduler_completion pg-scheduler
fi
"""

OWN: Final = {"bash": BASH, "zsh": ZSH}
"""Scripts that replace those of Typer, which split ids at colons and complete nothing at the first use."""

Shell = Annotated[
    Literal["bash", "zsh", "fish"] | None,
    typer.Argument(metavar="[SHELL]", help="bash, zsh or fish [$SHELL]."),
]


def add_to(app: typer.Typer) -> None:
    """Add the group, and answer shells that ask for words."""
    if VARIABLE in os.environ:
        completion_init()
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Complete words in a shell.")
    app.add_typer(group, name="completion")
    add_command(group, "install")(install_script)
    add_command(group, "show")(show)


def show(command: Command, shell: Shell = None) -> None:
    """Print the script of a shell."""
    command.output.write_text(_script(_known(shell)))


def install_script(command: Command, shell: Shell = None) -> None:
    """Write the script of a shell to a file, and let its start file load it."""
    name = _known(shell)
    _, path = install(shell=name, prog_name=PROGRAM, complete_var=VARIABLE)
    path.write_text(_script(name), encoding="utf-8")
    command.output.say(f"{path} written; it takes effect in a new {name}")


def _script(shell: str) -> str:
    if shell in OWN:
        return OWN[shell]
    return f"{get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell)}\n"


def _known(shell: str | None) -> str:
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise CommandError(ExitCode.USAGE, f"name the shell: {', '.join(SHELLS)}")
    return name
