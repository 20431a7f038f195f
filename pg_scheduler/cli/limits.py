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
    (*columns("name", "tenants", "running", "admitted", "waiting"), Column("tasks", is_wide=True)),
)
TENANT: Final = Shape(
    "tenant",
    TenantState,
    columns("name", "key", "running", "admitted", "waiting", "last_turn_at"),
    identity="key",
)


async def list_limits(command: Command) -> None:
    """Print the limits that live workers declare, what is in use, and the jobs that wait."""
    async with command.inspector() as inspector:
        limits = await read_limits(inspector)
        shares = await inspector.shares()
    _write(command, LIMIT, limits)
    if shares.items:
        command.output.say(f"{shares.summary}: pg-scheduler limits shares")


async def show(
    command: Command, name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a limit.")]
) -> None:
    """Print the keys of a limit that are in use or for which jobs wait; one row for a limit without keys."""
    async with command.inspector() as inspector:
        keys = await read_limit(inspector, name)
        names = {limit.name for limit in (await read_limits(inspector)).items}
    # Jobs may use or wait for a limit that no live worker declares any more.
    is_in_use = any(key.waiting or key.running for key in keys.items)
    if name not in names and not is_in_use:
        hint = hint_at(name, sorted(names), title="declared limits")
        raise NotFoundError(f"no live worker declares the limit {name!r}{hint}")
    _write(command, LIMIT_KEY, keys)


async def list_shares(command: Command) -> None:
    """Print the shares of tasks, with their tenants, and jobs that run, are admitted, or wait for a turn."""
    async with command.inspector() as inspector:
        shares = await inspector.shares()
    _write(command, SHARE, shares)


async def tenants(
    command: Command, name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a share.")]
) -> None:
    """Print the tenants of a share whose jobs run, are admitted or wait, those with most waiting first."""
    async with command.inspector() as inspector:
        tenants = await inspector.tenants(name)
        names = {share.name for share in (await inspector.shares()).items}
    if name not in names and not tenants.items:
        hint = hint_at(name, sorted(names), title="shares")
        raise NotFoundError(f"no live worker declares the share {name!r}, and no job waits in it{hint}")
    _write(command, TENANT, tenants)


def _write(
    command: Command, shape: Shape[Any], page: LimitList | LimitKeyList | ShareList | TenantList
) -> None:
    """Write limits, shares or tenants, and their summary, with whether any count stopped at a bound."""
    is_capped = page.is_capped or page.is_waiting_capped
    if isinstance(page, ShareList | TenantList):
        is_capped = is_capped or page.is_in_flight_capped
    command.output.write_list(shape, page.items, is_capped=is_capped, summary=page.summary)
    command.output.say(page.summary)


COMMANDS: Final = Group(
    "Inspect limits and shares.",
    {"list": watched(list_limits), "show": show, "shares": watched(list_shares), "tenants": watched(tenants)},
)
