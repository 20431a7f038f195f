"""The command line: ``pg-scheduler`` and ``python -m pg_scheduler``."""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec

USAGE = 2


def main() -> int:
    """Run the command line and return its exit code."""
    _open_streams()
    if "worker" in sys.argv and hasattr(signal, "pthread_sigmask"):
        # SIGUSR1 would end the process while the command is being imported, so it is held back until the
        # command handles it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"pg-scheduler: the command line needs {' and '.join(missing)}; "
            "install the extra: pip install 'pg-scheduler[cli]'\n"
        )
        return USAGE
    from .cli.main import run  # noqa: PLC0415 - needs the extra

    return run(sys.argv[1:])


def _open_streams() -> None:
    """Open the null device in place of each standard stream that is closed, which is None in ``sys``.

    The null device gets the free descriptor (0, 1 or 2). Otherwise a socket would get it, and whatever prints
    to the stream would write to the socket.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


if __name__ == "__main__":
    sys.exit(main())
