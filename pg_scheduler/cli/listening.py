"""What commands that listen on a port have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from .errors import CommandError, ExitCode

Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for every one.")
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 for a free one.")]


def address(host: str, port: int) -> str:
    """Return the start of the URL of what listens there."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def cannot_listen(host: str, port: int, error: OSError) -> CommandError:
    """Return the error for a port that cannot be used."""
    return CommandError(ExitCode.REFUSED, f"cannot listen on {host} port {port}: {error.strerror or error}")
