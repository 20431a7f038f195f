"""``health``: whether a worker is live, for supervisors that run a command."""

from __future__ import annotations

import http.client
import platform
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from pg_scheduler.inspect.texts import counted

from .commands import Command
from .errors import ExitCode, UsageError
from .output import Column, Shape


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a worker is healthy."""

    source: str
    is_ok: bool
    text: str


HEALTH: Final = Shape(
    "health",
    Health,
    (Column("source", "source"), Column("is_ok", "ok"), Column("text", "text")),
)
PORT: Final = "worker.health-port"
"""The option of the worker, which a variable or the settings file may set."""

MAX_BYTES: Final = 100_000


async def health(
    command: Command,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask a probe, such as http://127.0.0.1:8080/readyz.")
    ] = None,
    is_local: Annotated[
        bool, typer.Option("--self", help="Read the rows of the workers of this machine instead.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=600, metavar="SECONDS", help="How long to wait for an answer.")
    ] = 5.0,
) -> ExitCode:
    """Print whether a worker is healthy, and exit with 1 if it is not.

    Without options: the probe /livez at PG_SCHEDULER_WORKER_HEALTH_PORT, or at health-port in
    [tool.pg-scheduler.worker], else --self.
    """
    if url is not None and is_local:
        raise UsageError("pass --url or --self, not both")
    # Without these options, the port is that of the worker, if a variable or the file sets it.
    if url is None and not is_local:
        ports = [option.value for option in command.options("worker") if option.name == PORT]
        url = f"http://127.0.0.1:{ports[0]}/livez" if ports else None
    if url is None:
        is_ok, text = await _ask_table(command)
    else:
        is_ok, text = _ask_probe(url, timeout)
    command.output.write_one(HEALTH, Health(url or platform.node(), is_ok, text))
    return ExitCode.DONE if is_ok else ExitCode.NEGATIVE


def _ask_probe(url: str, timeout_s: float) -> tuple[bool, str]:
    """Return whether the probe at a URL succeeds, and the text of its response or of the error."""
    if urlsplit(url).scheme not in {"http", "https"}:
        raise UsageError(f"--url must begin with http:// or https://, not {url!r}")
    # A proxy that the environment names may not reach the probe.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=timeout_s) as response:
            return True, _text(response.read(MAX_BYTES))
    except urllib.error.HTTPError as error:
        # The error is also the response, which has to be closed.
        with error:
            return False, _text(error.read(MAX_BYTES)) or f"HTTP {error.code}"
    except urllib.error.URLError as error:
        return False, f"no answer: {error.reason}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return False, f"no answer: {error}"


def _text(body: bytes) -> str:
    """Return the body of a response as text."""
    return body.decode("utf-8", "replace").strip()


async def _ask_table(command: Command) -> tuple[bool, str]:
    """Return whether a worker of this machine has a valid lease, and how many have one as text."""
    hostname = platform.node()
    async with command.inspector() as inspector:
        workers_here = [worker for worker in await inspector.workers() if worker.hostname == hostname]
    if not workers_here:
        return False, f"no worker runs on {hostname}"
    live_workers = [worker for worker in workers_here if worker.is_alive]
    text = f"{len(live_workers)} of {counted(len(workers_here), 'worker')} on {hostname} with a valid lease"
    return bool(live_workers), text
