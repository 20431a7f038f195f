"""Words by which a shell completes ids and names, and ``completion``: scripts that ask this program for them.

Ids and names are read from the database within 300 ms, else there are none.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from typer.completion import (  # type: ignore[attr-defined] # it has no __all__
    get_completion_script,
    install,
)

from .commands import Command, Group, reject_empty
from .errors import UsageError
from .output import Output
from .settings import COMPLETE_VARIABLE, PROGRAM, read_settings

if TYPE_CHECKING:
    from pg_scheduler import Scheduler

LIMIT_VARIABLE: Final = "PG_SCHEDULER_COMPLETION_SECONDS"
LIMIT_S: Final = 0.3
"""Seconds until the completion ends without any word, unless the variable has another number."""

MAX_WORDS: Final = 200

_SAFE: Final = re.compile(r"[\w.:@/+-]+", re.ASCII)
"""Words that a shell reads without quotes. Other words, which people may have chosen, are not offered."""

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

OWN_SCRIPTS: Final = {"bash": BASH, "zsh": ZSH}
"""Scripts that replace those of Typer, which split ids at colons and complete nothing at the first use."""

Shell = Annotated[
    Literal["bash", "zsh", "fish"] | None,
    typer.Argument(metavar="SHELL", help="bash, zsh or fish [$SHELL]."),
]


def show(command: Command, shell: Shell = None) -> None:
    """Print the script of a shell."""
    command.output.write_text(_script(_shell_name(shell)))


def install_script(command: Command, shell: Shell = None) -> None:
    """Write the script of a shell to a file, and let its start file load it."""
    name = _shell_name(shell)
    _, path = install(shell=name, prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE)
    path.write_text(_script(name), encoding="utf-8")
    command.output.say(f"{path} written; it takes effect in a new {name}")


def _script(shell: str) -> str:
    """Return the script that lets a shell complete the words of this program."""
    if shell in OWN_SCRIPTS:
        return OWN_SCRIPTS[shell]
    return f"{get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell)}\n"


def _shell_name(shell: str | None) -> str:
    """Return the name of a shell for which there is a script; None stands for the shell in ``$SHELL``."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise UsageError(f"name the shell: {', '.join(SHELLS)}")
    return name


def complete_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names that workers claim, that have due or running jobs, or that are paused."""

    async def read(scheduler: Scheduler) -> Iterable[str]:
        from pg_scheduler.inspect import Inspector  # noqa: PLC0415 - only this needs it

        return [task.name for task in (await Inspector(scheduler).tasks()).items]

    return _complete(ctx, incomplete, read)


TaskName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The name of a task.", autocompletion=complete_names, callback=reject_empty
    ),
]


def complete_schedules(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of schedules that begin with what was typed."""

    async def read(scheduler: Scheduler) -> Iterable[str]:
        # The list is in the order of the ids, in which those that begin with the text follow the text itself.
        schedules = await scheduler.schedules.list(after=incomplete or None, limit=MAX_WORDS)
        return [schedule.schedule_id for schedule in schedules]

    return _complete(ctx, incomplete, read)


def complete_workers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of workers that begin with what was typed."""

    async def read(scheduler: Scheduler) -> Iterable[str]:
        return [worker.worker_id for worker in await scheduler.workers()]

    return _complete(ctx, incomplete, read)


def _complete(
    ctx: typer.Context, incomplete: str, read: Callable[[Scheduler], Awaitable[Iterable[str]]]
) -> list[str]:
    """Return the words that begin with what was typed, and that a shell reads without quotes.

    ``read`` returns all words. If the database is too slow, a signal ends the process without any word. A
    timeout of asyncio would still wait for the thread that looks up the name of a host.
    """

    async def run() -> Iterable[str]:
        command = Command(read_settings(ctx), Output(), ctx)
        async with command.scheduler(verified=False) as scheduler:
            return await read(scheduler)

    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    try:
        signal.setitimer(signal.ITIMER_REAL, float(os.environ.get(LIMIT_VARIABLE, LIMIT_S)))
        words = asyncio.run(run())
    except Exception:  # noqa: BLE001 - a person who types sees no errors: there is nothing to complete
        return []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    matching_words = [word for word in words if word.startswith(incomplete) and _SAFE.fullmatch(word)]
    return matching_words[:MAX_WORDS]


COMMANDS: Final = Group("Complete words in a shell.", {"install": install_script, "show": show})
