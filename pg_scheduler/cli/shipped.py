"""``alerts`` and ``grafana``: print files that the package contains."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated

import typer

from .commands import Command, add_command
from .errors import CommandError, ExitCode, hint_at

OPS = files("pg_scheduler") / "ops"


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "alerts")(alerts)
    add_command(app, "grafana")(grafana)


def alerts(command: Command) -> None:
    """Print the alerting rules for Prometheus, as YAML."""
    command.output.write_text((OPS / "alerts" / "pg_scheduler.rules.yaml").read_text(encoding="utf-8"))


def grafana(
    command: Command,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Dashboard to print.")] = None,
) -> None:
    """Print a dashboard for Grafana, as JSON; without a name, the names of the dashboards."""
    folder = OPS / "grafana"
    names = sorted(each.name.removesuffix(".json") for each in folder.iterdir())
    if name is None:
        command.output.write_text("".join(f"{each}\n" for each in names))
        return
    if name not in names:
        hint = hint_at(name, names, f"dashboards: {', '.join(names)}")
        raise CommandError(ExitCode.NOT_FOUND, f"no dashboard is named {name!r}{hint}")
    command.output.write_text((folder / f"{name}.json").read_text(encoding="utf-8"))
