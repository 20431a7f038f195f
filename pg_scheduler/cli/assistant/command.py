"""The command ``mcp``: serves the tools to an assistant on stdin and stdout."""

from __future__ import annotations

import logging
import signal
from typing import Annotated, Final, Literal

import typer

from pg_scheduler.base.dsn import remove_secrets

from ..commands import Command
from ..errors import UsageError, check_extra

_log: Final = logging.getLogger("pg_scheduler.mcp")


def _check_person(person: str | None) -> str | None:
    """Return the name of a person, which must be a text in one line that the audit can store."""
    from pg_scheduler.dashboard.access import MAX_ACTOR_LENGTH  # noqa: PLC0415 - not needed to complete words

    if person is None:
        return None
    # An argument that is no UTF-8 has lone surrogates, which are not printable either.
    if not person.strip() or not person.isprintable() or len(person) > MAX_ACTOR_LENGTH:
        raise typer.BadParameter(
            f"it must be a name in one line of at most {MAX_ACTOR_LENGTH} characters, all of them printable"
        )
    return person.strip()


async def mcp(
    command: Command,
    *,
    role: Annotated[
        Literal["viewer", "operator", "admin"],
        typer.Option(help="What the assistant may do; a viewer changes nothing."),
    ] = "viewer",
    person: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="The person who confirms changes, for the audit.",
            callback=_check_person,
        ),
    ] = None,
    arguments: Annotated[
        bool,
        typer.Option(
            "--arguments/--no-arguments",
            help="Show arguments, metadata, results, values of steps and logs.",
        ),
    ] = False,
    redact: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="With --arguments: hide the values of this key; repeatable."),
    ] = None,
) -> None:
    """Serve tools to an assistant by the Model Context Protocol, on stdin and stdout, until stdin ends."""
    check_extra("the server for assistants", "mcp")
    from mcp.server.stdio import stdio_server  # noqa: PLC0415 - needs the extra

    from pg_scheduler.dashboard.access import MAX_ACTOR_LENGTH, Access  # noqa: PLC0415
    from pg_scheduler.dashboard.redaction import Redaction  # noqa: PLC0415
    from pg_scheduler.inspect import Inspector  # noqa: PLC0415

    from ..worker.logs import configure_logging  # noqa: PLC0415
    from .server import create_server, describe_error  # noqa: PLC0415
    from .tools import Session  # noqa: PLC0415

    if role != "viewer" and person is None:
        raise UsageError(f"--role {role} needs --as NAME: the audit has the name of the person who confirms")
    if redact and not arguments:
        raise UsageError("--redact hides values that only --arguments shows; pass both, or none")
    # stdout is the protocol, so the log goes to stderr.
    configure_logging(None)
    logging.getLogger("mcp").setLevel(logging.WARNING)
    async with command.scheduler() as scheduler:
        actor = person or Inspector(scheduler).actor[:MAX_ACTOR_LENGTH]
        access = Access(actor, role, sees_arguments=arguments)
        session = Session.of(scheduler, access, Redaction.of(redact or ()))

        def describe(error: Exception) -> str | None:
            """Return the text of an error without the secrets of the settings."""
            text = describe_error(error, command.schema)
            return None if text is None else remove_secrets(text, command.settings.secrets)

        server = create_server(session, describe)
        # A person who reads the log sees what the configuration of the client has permitted.
        hidden = f", without the values of {', '.join(redact)}" if redact else ""
        arguments_text = f"with arguments{hidden}" if arguments else "without arguments"
        _log.info("an assistant of %s may act as %s, %s", actor, role, arguments_text)
        # A thread reads stdin, and cannot be interrupted. So a Ctrl-C ends the program at once, as SIGTERM
        # does. A change in progress is a transaction, which the database then ends.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
        # The client has ended its input. A change that it confirmed before is made nevertheless.
        await session.finish()
