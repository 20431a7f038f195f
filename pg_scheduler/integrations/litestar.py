"""Run a Scheduler with an application of Litestar. It needs the extra ``[litestar]``."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import click
from litestar import Litestar
from litestar.config.app import AppConfig
from litestar.datastructures import State
from litestar.di import Provide
from litestar.plugins import CLIPlugin, InitPlugin

from pg_scheduler import Scheduler

__all__ = ["SchedulerPlugin"]

VARIABLES: Final = {"schema": "PG_SCHEDULER_SCHEMA", "direct_dsn": "PG_SCHEDULER_DIRECT_DSN"}


async def _provide_scheduler(state: State) -> Scheduler:
    """Return the Scheduler of the application, as a dependency of handlers."""
    scheduler: Scheduler = state.scheduler
    return scheduler


class SchedulerPlugin(InitPlugin, CLIPlugin):
    """Starts a Scheduler with the application, and stops it at its end.

    Handlers receive it as the dependency ``scheduler``; elsewhere it is ``app.state.scheduler``. A dependency
    of this name that the application defines itself takes precedence. ``litestar jobs`` runs the commands of
    ``pg-scheduler``, if the extra ``[cli]`` is installed; ``PG_SCHEDULER_DSN`` and ``--dsn`` take precedence
    over the URL.

    Args:
        url: Address of the database, as for `Scheduler.connect()`.
        start: Whether the processes of the application run jobs. Otherwise they only schedule them.
        **settings: The other parameters of `Scheduler.connect()`, by name.

    Example::

        from litestar import Litestar, post
        from litestar.di import NamedDependency

        from pg_scheduler.integrations.litestar import SchedulerPlugin


        @post("/reports")
        async def build_report(scheduler: NamedDependency[Scheduler]) -> None:
            await scheduler.enqueue("reports.build")


        app = Litestar([build_report], plugins=[SchedulerPlugin(dsn)])
    """

    __slots__ = ("_settings", "_start", "_url")

    def __init__(self, url: str, *, start: bool = True, **settings: Any) -> None:
        self._url = url
        self._start = start
        self._settings = settings

    def connect(self) -> AbstractAsyncContextManager[Scheduler]:
        """Open a Scheduler with the same settings that is not started.

        ``litestar jobs worker shop:plugin.connect`` runs the jobs of an application in a process of its own.
        """
        return Scheduler.connect(self._url, start=False, **self._settings)

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the lifespan, the dependency and the name of its type; Litestar calls this."""
        app_config.lifespan.append(self._run)
        app_config.dependencies.setdefault("scheduler", Provide(_provide_scheduler))
        app_config.signature_namespace.setdefault("Scheduler", Scheduler)
        return app_config

    def on_cli_init(self, cli: click.Group) -> None:
        """Add the command ``jobs``; Litestar calls this."""

        @cli.command("jobs", add_help_option=False, context_settings={"ignore_unknown_options": True})
        @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
        def jobs(arguments: tuple[str, ...]) -> None:
            """Operate the jobs of this application."""
            variables = {"PG_SCHEDULER_DSN": self._url}
            for name, value in self._settings.items():
                if name in VARIABLES:
                    variables[VARIABLES[name]] = value
            # Variables that are set already take precedence.
            variables |= os.environ
            # The program replaces this process, since it handles signals itself.
            program = [sys.executable, "-m", "pg_scheduler", *arguments]
            os.execve(sys.executable, program, variables)  # noqa: S606 - this library's own program

    @asynccontextmanager
    async def _run(self, app: Litestar) -> AsyncIterator[None]:
        """Run the Scheduler as long as the application runs."""
        async with Scheduler.connect(self._url, start=self._start, **self._settings) as scheduler:
            app.state.scheduler = scheduler
            yield
