"""The group ``workers``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import typer

from .commands import Command, add_command
from .output import SHAPE_VERSION, Column, Shape

__all__ = ["WORKER", "add_to"]

WORKER: Final = Shape(
    "worker",
    "worker_id",
    (
        Column("worker_id", "ID"),
        Column("is_alive", "ALIVE"),
        Column("running_jobs", "RUNNING", is_number=True),
        Column("max_concurrent_jobs", "SLOTS", is_number=True),
        Column("hostname", "HOST"),
        Column("pid", "PID", is_number=True),
        Column("version", "RELEASE"),
        Column("identity", "IDENTITY", is_wide=True),
        Column("role", "ROLE", is_wide=True),
        Column("started_at", "STARTED", is_wide=True),
        Column("lease_until", "LEASE UNTIL", is_wide=True),
        Column("state", "STATE", is_wide=True),
    ),
)


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Inspect workers.")
    group.callback()(_name_commands)
    app.add_typer(group, name="workers")
    add_command(group, "list")(list_workers)


def _name_commands() -> None:
    """Keep the name of the only command."""


async def list_workers(command: Command) -> None:
    """Print every worker that has a row, oldest first."""
    async with command.scheduler() as scheduler:
        workers = await scheduler.workers()
    command.output.write_list(WORKER, [{"v": SHAPE_VERSION} | asdict(worker) for worker in workers])
