"""The group ``limits``, with shares."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from pg_scheduler.inspect import (
    LimitKeyList,
    LimitList,
    ShareList,
    ShareState,
    TenantList,
    TenantState,
    read_limit,
    read_limits,
)
from pg_scheduler.inspect.limits import LimitKeyState, LimitState

from .commands import Command, Group, watched
from .errors import NotFoundError, hint_at
from .output import Column, Shape, columns

_NUMBERS: Final = (
    Column("max_running", "MAX"),
    Column("max_starts"),
    Column("per_s", "PER S"),
    *columns("running", "starts", "waiting"),
)
LIMIT: Final = Shape(
    "limit",
    LimitState,
    (*columns("name", "by_key", "spread"), *_NUMBERS, Column("tasks", is_wide=True)),
)
LIMIT_KEY: Final = Shape("limit_key", LimitKeyState, (*columns("name", "key"), *_NUMBERS), identity="key")

SHARE: Final = Shape(
    "share",
    ShareState,
    (*columns("name", "tenants", "waiting", "in_flight"), Column("tasks", is_wide=True)),
)
TENANT: Final = Shape(
    "tenant",
    TenantState,
    columns("name", "key", "waiting", "in_flight", "last_turn_at"),
    identity="key",
)


async def list_limits(command: Command) -> None:
    """Print the limits that live workers declare, what is in use, and the jobs that wait."""
    async with command.inspector() as inspector:
        found, shared = await read_limits(inspector), await inspector.shares()
    _write(command, LIMIT, found)
    if shared.items:
        command.output.say(f"{shared.summary}: pg-scheduler limits shares")


async def show(
    command: Command, name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a limit.")]
) -> None:
    """Print the keys of a limit that are in use or for which jobs wait; one row for a limit without keys."""
    async with command.inspector() as inspector:
        found = await read_limit(inspector, name)
        known = {limit.name for limit in (await read_limits(inspector)).items}
    if name not in known and not any(each.waiting or each.running for each in found.items):
        hint = hint_at(name, sorted(known), title="declared limits")
        raise NotFoundError(f"no live worker declares the limit {name!r}{hint}")
    _write(command, LIMIT_KEY, found)


async def list_shares(command: Command) -> None:
    """Print the shares of tasks, with their tenants, the jobs that wait for a turn, and those in flight."""
    async with command.inspector() as inspector:
        found = await inspector.shares()
    _write(command, SHARE, found)


async def tenants(
    command: Command, name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a share.")]
) -> None:
    """Print the tenants of a share with jobs that wait or are in flight, those with most waiting first."""
    async with command.inspector() as inspector:
        found = await inspector.tenants(name)
        known = {share.name for share in (await inspector.shares()).items}
    if name not in known and not found.items:
        hint = hint_at(name, sorted(known), title="shares")
        raise NotFoundError(f"no live worker declares the share {name!r}, and no job waits in it{hint}")
    _write(command, TENANT, found)


def _write(
    command: Command, shape: Shape[Any], found: LimitList | LimitKeyList | ShareList | TenantList
) -> None:
    is_capped = found.is_capped or found.is_waiting_capped
    command.output.write_list(shape, found.items, is_capped=is_capped, summary=found.summary)
    command.output.say(found.summary)


COMMANDS: Final = Group(
    "Inspect limits and shares.",
    {"list": watched(list_limits), "show": show, "shares": watched(list_shares), "tenants": watched(tenants)},
)
