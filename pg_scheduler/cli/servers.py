"""``exporter`` and ``dashboard``: serve the metrics of all workers, and the dashboard, by themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args

import typer

from pg_scheduler import Scheduler
from pg_scheduler.errors import ConfigurationError
from pg_scheduler_plugins.program import ending_at_sigterm

from .commands import Command
from .errors import CommandError, ExitCode, RefusedError, UsageError, check_extra

if TYPE_CHECKING:
    from pg_scheduler.dashboard.access import Authorize


Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for every one.")
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 for a free one.")]


WEBHOOK_URL: Final = "PG_SCHEDULER_WEBHOOK_URL"
WEBHOOK_FORMAT: Final = "PG_SCHEDULER_WEBHOOK_FORMAT"
WEBHOOK_POOL_SIZE: Final = 4
"""The maximum number of connections of a command that also sends findings."""


@asynccontextmanager
async def open_scheduler(command: Command) -> AsyncIterator[Scheduler]:
    """Open a Scheduler, not started, and send the findings of the doctor if there is a webhook."""
    from pg_scheduler.inspect.store.connections import MAX_POOL_SIZE  # noqa: PLC0415 - as the import below

    from .connections import open_scheduler as open_plain  # noqa: PLC0415 - not needed to complete words

    # The webhook needs further connections.
    max_size = WEBHOOK_POOL_SIZE if os.environ.get(WEBHOOK_URL) else MAX_POOL_SIZE
    async with (
        open_plain(command.settings, verified=True, max_size=max_size) as scheduler,
        doctor_webhook(scheduler),
    ):
        yield scheduler


@asynccontextmanager
async def _open_server(command: Command) -> AsyncIterator[Scheduler]:
    """Open the Scheduler of a server, whose process ends with exit code 0 at a SIGTERM that comes meanwhile.

    The kernel would ignore it if this is the first process of a container, and the server would start.
    """
    with ending_at_sigterm(ExitCode.DONE):
        async with open_scheduler(command) as scheduler:
            yield scheduler


@asynccontextmanager
async def doctor_webhook(scheduler: Scheduler) -> AsyncIterator[None]:
    """Send the findings of the doctor within the block, if the environment has the URL of a webhook.

    Raises:
        UsageError: The URL or the format is invalid, the pool is too small, or the database role may not
            write the audit. The message does not have the URL, because it is a secret.
    """
    from pg_scheduler.telemetry.webhook import DoctorWebhook  # noqa: PLC0415 - not needed to complete words

    url = os.environ.get(WEBHOOK_URL)
    # An empty variable counts as none.
    webhook_format = os.environ.get(WEBHOOK_FORMAT) or None
    if not url:
        yield
        return
    async with AsyncExitStack() as stack:
        try:
            webhook = DoctorWebhook(scheduler, url, format=cast("Any", webhook_format))
            await stack.enter_async_context(webhook)
        except (ValueError, ConfigurationError) as error:
            raise UsageError(f"{WEBHOOK_URL} or {WEBHOOK_FORMAT}: {error}") from error
        yield


def address(host: str, port: int) -> str:
    """Return the URL of a server that listens on a host and port, without a path."""
    # A host with colons is an address of IPv6, which a URL has in brackets.
    url_host = f"[{host}]" if ":" in host else host
    return f"http://{url_host}:{port}"


def cannot_listen(host: str, port: int, error: OSError) -> CommandError:
    """Return the error of a command for a port that cannot be used, with the reason of the system."""
    return RefusedError(f"cannot listen on {host} port {port}: {error.strerror or error}")


async def exporter(
    command: Command,
    host: Host = "127.0.0.1",
    port: Port = 9465,
) -> None:
    """Serve the metrics of all workers to Prometheus, until SIGTERM or SIGINT."""
    check_extra("the exporter", "metrics")
    from pg_scheduler.inspect import Inspector  # noqa: PLC0415 - not needed to complete words
    from pg_scheduler.telemetry.cluster import ClusterCollector  # noqa: PLC0415 - needs the extra
    from pg_scheduler.telemetry.prometheus import serve_metrics  # noqa: PLC0415

    from .worker.logs import configure_logging  # noqa: PLC0415

    configure_logging(None)
    stopped = asyncio.Event()
    async with _open_server(command) as scheduler:
        # Not before: a signal ends a process that still waits for the database.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        try:
            with serve_metrics(ClusterCollector(Inspector(scheduler)), host, port) as bound_port:
                command.output.say(f"serving {address(host, bound_port)}/metrics")
                await stopped.wait()
        except OSError as error:
            raise cannot_listen(host, port, error) from error


USER: Final = "PG_SCHEDULER_DASHBOARD_USER"
PASSWORD: Final = "PG_SCHEDULER_DASHBOARD_PASSWORD"  # noqa: S105 - the name of the variable

SHUTDOWN_S: Final = 1
"""Seconds for which open streams may delay the end."""


async def dashboard(
    command: Command,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    *,
    auth: Annotated[
        str,
        typer.Option(
            "--auth",
            metavar="token|basic|proxy:HEADER",
            help=f"Who may enter: a one-time link, the password in {PASSWORD}, or users that a proxy names.",
        ),
    ] = "token",
    role: Annotated[
        str | None,
        typer.Option(
            metavar="viewer|operator|admin",
            help="What those who enter may do.  [default: admin with the link, else viewer]",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Accept no action.")] = False,
) -> None:
    """Serve the dashboard over HTTP, until SIGTERM or SIGINT."""
    check_extra("the dashboard", "dashboard")
    from .worker.logs import configure_logging  # noqa: PLC0415 - not needed to complete words

    configure_logging(None)
    async with _open_server(command) as scheduler:
        say = command.output.say
        await serve(scheduler, say, host=host, port=port, auth=auth, role=role, read_only=read_only)


async def serve(
    scheduler: Scheduler,
    say: Callable[[str], None],
    *,
    host: str,
    port: int,
    auth: str = "token",
    role: str | None = None,
    read_only: bool = False,
) -> None:
    """Serve the dashboard of a Scheduler, and say where, until SIGTERM or SIGINT."""
    from pg_scheduler.dashboard import dashboard as create  # noqa: PLC0415 - needs the extra
    from pg_scheduler.dashboard.link import OneTimeLink  # noqa: PLC0415
    from pg_scheduler.telemetry.server import listen  # noqa: PLC0415 - not needed to complete words

    try:
        listening_socket = listen(host, port)
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    with listening_socket:
        # With port 0, the server has chosen a free one.
        bound_port = listening_socket.getsockname()[1]
        authorize = _authorization(auth, bound_port, role)
        app = create(scheduler, authorize=authorize, read_only=read_only)
        query = ""
        if isinstance(authorize, OneTimeLink):
            # The secret of the link is the query of its URL, which opens the dashboard once.
            app = authorize.before(app)
            query = authorize.query
        say(f"serving {address(host, bound_port)}/{query}")
        await _serve(app, listening_socket)


def _authorization(auth: str, port: int, role: str | None = None) -> Authorize:
    """Return the function that decides who may enter, for a value of ``--auth``.

    ``port`` is the one of the dashboard. ``role`` is what those who enter may do; None for the default.
    """
    from pg_scheduler.dashboard import Access, basic_auth, trusted_header  # noqa: PLC0415 - needs the extra
    from pg_scheduler.dashboard.access import MAX_ACTOR_LENGTH, Role  # noqa: PLC0415
    from pg_scheduler.dashboard.link import OneTimeLink  # noqa: PLC0415

    if role not in (None, *get_args(Role)):
        raise UsageError(f"--role must be viewer, operator or admin, not {role!r}")
    # The name of a proxy's header follows after a colon.
    kind, _, header = auth.partition(":")
    if auth == "token":
        # This is the name of a cookie. A browser sends cookies to each port of a host, so the name has the
        # port.
        return OneTimeLink(f"pg_scheduler_{port}", cast("Role", role or "admin"))
    access_role = cast("Role", role or "viewer")
    if auth == "basic":
        password = os.environ.get(PASSWORD, "")
        if not password:
            raise UsageError(f"--auth basic needs a password; set {PASSWORD}")
        user = os.environ.get(USER, "admin")
        try:
            return basic_auth(user, password, access=Access(user[:MAX_ACTOR_LENGTH], access_role))
        except ValueError as error:
            raise UsageError(f"{USER}: {error}") from error
    if kind == "proxy" and header:
        return trusted_header(header, role=access_role)
    raise UsageError(f"--auth must be token, basic or proxy:HEADER, not {auth!r}")


async def _serve(app: Any, listening_socket: socket.socket) -> None:
    """Serve an ASGI application on a socket, until SIGTERM or SIGINT."""
    import uvicorn  # noqa: PLC0415 - needs the extra

    class Server(uvicorn.Server):
        """A server whose signals are handled here, so that they end it with exit code 0."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Handle no signals, where the base class would handle them."""
            yield

    # The server logs nothing but its failure, and takes the address of a client from the connection.
    config = uvicorn.Config(
        app,
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="critical",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    server = Server(config)

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    await server.serve(sockets=[listening_socket])
