"""Run a command with a private server: ``python -m pg_scheduler.embedded --data .pgdata -- command``."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from pg_scheduler.embedded.binaries import EmbeddedError
from pg_scheduler.embedded.server import server

SIGNAL_EXIT_CODE: Final = 128


def _run(command: list[str], environment: Mapping[str, str]) -> int:
    """Run the command until it exits and return its exit code, or 128 + signal if a signal ended it.

    The terminal sends Ctrl-C to this process and to the command. The command may continue after it, as psql
    does, so this process has to continue too.
    """
    previous_handler = signal.getsignal(signal.SIGINT)
    # The command inherits an ignored signal, but no handler. So Ctrl-C gets a handler that does nothing,
    # unless it is ignored already: then the command is to ignore it too.
    if previous_handler is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        code = subprocess.call(command, env=environment)
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    # subprocess returns the negative number of the signal that ended the command.
    if code < 0:
        return SIGNAL_EXIT_CODE - code
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Start a server, run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pg_scheduler.embedded",
        description="Run a command with PG_SCHEDULER_DSN set to a private PostgreSQL server.",
    )
    parser.add_argument("--data", help="data folder (default: a temporary one)")
    parser.add_argument("command", nargs="+", help="the command, after --")
    options = parser.parse_args(arguments)
    try:
        with server(options.data) as postgres:
            dsn = postgres.dsn()
            sys.stderr.write(f"PostgreSQL is ready; connect from another terminal: psql '{dsn}'\n")
            environment = os.environ | {"PG_SCHEDULER_DSN": dsn}
            return _run(options.command, environment)
    except EmbeddedError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
