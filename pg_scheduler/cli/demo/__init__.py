"""``demo``: a demonstration on one screen, and then, if asked for, in the browser.

Nothing of it is imported before the command runs, since its jobs would be registered in every worker.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pg_scheduler.cli.commands import Command
from pg_scheduler.cli.errors import ExitCode, check_extra


def demo(
    _command: Command,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve the dashboard on the demo's data, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the dashboard; 0 for a free one.")
    ] = 8080,
    plain: Annotated[bool, typer.Option("--plain", help="Print plain lines, on a terminal too.")] = False,
) -> ExitCode:
    """Run two workers on a private PostgreSQL for 20 seconds, kill one, and count what was lost."""
    if dashboard:
        check_extra("the dashboard", "dashboard")
    from .run import run  # noqa: PLC0415 - registers its jobs

    return run(plain=plain, port=port if dashboard else None)
