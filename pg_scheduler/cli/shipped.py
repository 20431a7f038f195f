"""``alerts``: print files that the package contains."""

from __future__ import annotations

from importlib.resources import files

import typer

from .commands import Command, add_command

__all__ = ["add_to"]

OPS = files("pg_scheduler") / "ops"


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "alerts")(alerts)


def alerts(command: Command) -> None:
    """Print the alerting rules for Prometheus, as YAML."""
    command.output.write_text((OPS / "alerts" / "pg_scheduler.rules.yaml").read_text(encoding="utf-8"))
