"""The command ``audit``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from pg_scheduler.inspect import AuditRecord, Inspector
from pg_scheduler.inspect.audit import ACTIONS

from .commands import Command
from .errors import UsageError, hint_at
from .output import Column, Shape, columns
from .values import read_since

RECORD: Final = Shape(
    "audit_record",
    AuditRecord,
    (
        *columns("at", "actor", "action"),
        Column("subject", "SUBJECT", is_long=True),
        *columns("via", "details", is_wide=True),
    ),
    identity="id",
)


async def audit(
    command: Command,
    *,
    action: Annotated[str | None, typer.Option(help="Only this action, such as cancel_jobs.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only changes that this person or node made.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only changes of this job, schedule or task.")] = None,
    via: Annotated[str | None, typer.Option(help="Only changes by this way: api, cli, code ...")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME|1h", help="Only changes since this time, or so long ago.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME|1h", help="Only changes before this time, or so long ago.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Records of the page, up to 1000.")] = 50,
    after: Annotated[str | None, typer.Option(help="Continue after the page before.")] = None,
) -> None:
    """Print who did what, the newest changes first."""
    zone = command.output.zone
    async with command.scheduler() as scheduler:
        page = await Inspector(scheduler).audit(
            action=action,
            actor=actor,
            subject=subject,
            via=via,
            since=None if since is None else read_since("--since", since, zone),
            until=None if until is None else read_since("--until", until, zone),
            limit=limit,
            after=after,
        )
    if not page.items and action is not None and action not in ACTIONS:
        hint = hint_at(action, ACTIONS, f"actions: {', '.join(ACTIONS)}")
        raise UsageError(f"unknown action {action!r}{hint}")
    command.output.write_list(RECORD, page.items, next=page.next, summary=page.summary)
    command.output.say(page.summary)
    if page.next is not None:
        command.output.say(f"continue with --after '{page.next}'")
