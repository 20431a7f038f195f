"""The group ``limits``."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from pg_scheduler.inspect import Inspector, LimitKeyList, LimitList, read_limit, read_limits
from pg_scheduler.inspect.limits import LimitKeyState, LimitState

from .commands import Command, Group, watched
from .errors import NotFoundError, hint_at
from .output import Column, Shape, columns

_NUMBERS: Final = (
    Column("max_running", "MAX"),
    Column("max_starts", "MAX STARTS"),
    Column("per_s", "PER S"),
    *columns("running", "starts", "waiting"),
)
LIMIT: Final = Shape(
    "limit",
    LimitState,
    (
        *columns("name", "by_key", "spread"),
        *_NUMBERS,
        Column("tasks", "TASKS", is_wide=True),
    ),
)
LIMIT_KEY: Final = Shape(
    "limit_key", LimitKeyState, (Column("name", "NAME"), Column("key", "KEY"), *_NUMBERS), identity="key"
)


async def list_limits(command: Command) -> None:
    """Print the limits that live workers declare, what is in use, and the jobs that wait."""
    async with command.scheduler() as scheduler:
        found = await read_limits(Inspector(scheduler))
    _write(command, LIMIT, found)


async def show(
    command: Command, name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a limit.")]
) -> None:
    """Print the keys of a limit that are in use or for which jobs wait; one row for a limit without keys."""
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        found = await read_limit(inspector, name)
        known = {limit.name for limit in (await read_limits(inspector)).items}
    if name not in known and not any(each.waiting or each.running for each in found.items):
        hint = hint_at(name, known, f"declared limits: {', '.join(sorted(known)) or 'none'}")
        raise NotFoundError(f"no live worker declares the limit {name!r}{hint}")
    _write(command, LIMIT_KEY, found)


def _write(command: Command, shape: Shape[Any], found: LimitList | LimitKeyList) -> None:
    is_capped = found.is_capped or found.is_waiting_capped
    command.output.write_list(shape, found.items, is_capped=is_capped, summary=found.summary)
    command.output.say(found.summary)


COMMANDS: Final = Group("Inspect limits.", {"list": watched(list_limits), "show": show})
