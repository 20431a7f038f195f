"""The options of ``worker``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from pg_scheduler.cli.values import read_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of the command. Some of them supervise several processes."""

    slots: Annotated[int | None, typer.Option(help="Jobs that run at the same time.")] = None
    batch: Annotated[int | None, typer.Option(help="Jobs claimed by one statement, at most.")] = None
    names: Annotated[
        str | None, typer.Option(metavar="A,B", help="Claim only these names; * is allowed.")
    ] = None
    migrations: Annotated[
        str | None, typer.Option(metavar="MODE", help="apply those that are missing, or only verify.")
    ] = None
    on_copy: Annotated[
        str | None, typer.Option(metavar="MODE", help="In a copy of the database: refuse, adopt or hold.")
    ] = None
    processes: Annotated[int, typer.Option(min=1, max=1000, help="Processes, each a worker of its own.")] = 1
    drain: Annotated[bool, typer.Option("--drain", help="End once no job is due.")] = False
    max_jobs: Annotated[int | None, typer.Option(min=1, help="End after so many attempts.")] = None
    max_rss: Annotated[int | None, typer.Option(min=1, metavar="MB", help="End at so much memory.")] = None
    max_age: Annotated[str | None, typer.Option(metavar="TIME", help="End after 90s, 15m, 12h or 2d.")] = None
    health_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Answer /livez, /readyz, /startupz.")
    ] = None
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve metrics to Prometheus; with --processes, one port per process, from this one on.",
        ),
    ] = None
    health_host: Annotated[str, typer.Option(help="The address of both ports.")] = "127.0.0.1"
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text or json.")] = None
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a source file changes, for development.")
    ] = False
    check: Annotated[bool, typer.Option("--check", help="Import, connect, print the tasks, and end.")] = False

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of the names that it claims; empty for all."""
        patterns = [name.strip() for name in (self.names or "").split(",")]
        # Empty parts are ignored, so a comma at the end does no harm.
        return tuple(pattern for pattern in patterns if pattern)

    @property
    def max_age_s(self) -> float | None:
        """Seconds after which a process ends, before they are varied by up to 10 %; None for no limit.

        Raises:
            CommandError: It is not a duration.
        """
        return None if self.max_age is None else read_duration("--max-age", self.max_age)

    @property
    def recycles(self) -> bool:
        """Whether a process ends at a number of attempts, an amount of memory or an age."""
        return any(limit is not None for limit in (self.max_jobs, self.max_rss, self.max_age))
