"""The command line: ``pg-scheduler`` and ``python -m pg_scheduler``."""

from __future__ import annotations

import sys
from importlib.util import find_spec

USAGE = 2


def main() -> int:
    """Run the command line and return its exit code."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"pg-scheduler: the command line needs {' and '.join(missing)}; "
            "install the extra: pip install 'pg-scheduler[cli]'\n"
        )
        return USAGE
    from .cli.main import run  # noqa: PLC0415 - needs the extra

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
