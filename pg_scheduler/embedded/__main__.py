"""Run a command with a private server: ``python -m pg_scheduler.embedded --data .pgdata -- command``."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Final

from pg_scheduler.embedded.binaries import EmbeddedError
from pg_scheduler.embedded.server import server

SIGNAL_EXIT_CODE: Final = 128


FORWARDED_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
"""Signals by which something else than the terminal's keys ends this process, and which it forwards."""


def _run(command: list[str], environment: Mapping[str, str]) -> int:
    """Run the command until it exits and return its exit code, or 128 + signal if a signal ended it.

    The terminal sends Ctrl-C to this process and to the command. The command may continue after it, as psql
    does, so this process has to continue too. A supervisor sends SIGTERM to this process only, so it is
    forwarded. Otherwise the command would continue without its server.
    """
    process: subprocess.Popen[bytes] | None = None
    early_signals: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        """Send a signal to the command, or note it while the command is being started."""
        if process is None:
            early_signals.append(number)
        else:
            process.send_signal(number)

    handlers: dict[int, Callable[[int, FrameType | None], None]] = {
        signal.SIGINT: lambda _number, _frame: None,
        **dict.fromkeys(FORWARDED_SIGNALS, forward),
    }
    previous_handlers = {number: signal.getsignal(number) for number in handlers}
    # The command inherits an ignored signal, but no handler. A signal that is ignored already, such as SIGHUP
    # under nohup, gets no handler, so that the command ignores it too.
    replaced_handlers = {
        number: handler for number, handler in previous_handlers.items() if handler is not signal.SIG_IGN
    }
    for number in replaced_handlers:
        signal.signal(number, handlers[number])
    try:
        process = subprocess.Popen(command, env=environment)
        for number in early_signals:
            process.send_signal(number)
        code = process.wait()
    finally:
        for number, handler in replaced_handlers.items():
            signal.signal(number, handler)
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
