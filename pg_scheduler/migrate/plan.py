"""What there is to do, decided without a database.

A migration is a pair of files ``NNNN_name.up.sql`` and ``NNNN_name.down.sql``, numbered from 1 without gaps.
What a database has applied is remembered with a checksum of the up file. A migration that was edited after
it had been applied somewhere would leave two kinds of databases that both say "version 3", so it is refused
rather than skipped.

Expand first, contract later: the first line of an up file says which it is. ``-- expand`` takes nothing away
that a release uses, so nodes of older releases go on, and may start, on what it makes. ``-- contract 0007``
takes away what releases use that know no migration 0007: they are refused from then on.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import ConfigurationError, MigrationChangedError, SchemaTooNewError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.resources.abc import Traversable

__all__ = [
    "Applied",
    "Migration",
    "Step",
    "check",
    "load_migrations",
    "plan",
    "shipped_migrations",
]

_FILE_NAME = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.up\.sql")
_MARK = re.compile(r"-- (?:expand|contract (?P<needs>\d{4}))\n")


class Applied(NamedTuple):
    """A migration as a database remembers it.

    Attributes:
        checksum: Of the up file.
        needs: The lowest schema version a release must know to work on what it made; None if nobody said.
    """

    checksum: str
    needs: int | None = None


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema's history, as this release ships it.

    Attributes:
        version: Its number, from 1.
        name: What it is about.
        up: The SQL that makes it, with ``{schema}`` before every name.
        down: The SQL that takes it back.
    """

    version: int
    name: str
    up: str
    down: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the up file, the same whatever line endings a checkout gave it."""
        return hashlib.sha256("\n".join(self.up.splitlines()).encode()).hexdigest()

    @property
    def needs(self) -> int | None:
        """The lowest schema version a release must know to work on what it makes, as its first line says."""
        mark = _MARK.match("\n".join(self.up.splitlines()))
        return int(mark["needs"] or 0) if mark else None


@dataclass(frozen=True, slots=True)
class Step:
    """One migration to run, up or down."""

    migration: Migration
    up: bool


def plan(
    applied: Mapping[int, Applied], shipped: Iterable[Migration], target: int | None = None
) -> list[Step]:
    """Say which migrations lead from what is applied to the target.

    Args:
        applied: By version, what the database remembers.
        shipped: All migrations of this release.
        target: The version to end at; None for the newest, 0 for none.

    Returns:
        The steps in the order to run them: upwards by rising, downwards by falling version.

    Raises:
        ConfigurationError: The target is no version of this release.
        SchemaTooNewError: The database has a migration this release does not know and cannot work with, or
            would have to take back.
        MigrationChangedError: A migration was applied in another form than the one shipped.
    """
    known = {migration.version: migration for migration in shipped}
    head, newest = max(known, default=0), max(applied, default=0)
    if target is not None and not 0 <= target <= head:
        raise ConfigurationError(f"target is {target}, but this release has the versions 0 to {head}")
    check(applied, known.values())
    if target is None:
        target = max(head, newest)
    if newest > max(head, target):
        raise _too_new(newest, head)
    wanted = range(1, min(head, target) + 1)
    down = [Step(known[version], up=False) for version in sorted(applied, reverse=True) if version > target]
    up = [Step(known[version], up=True) for version in wanted if version not in applied]
    return down + up


def check(applied: Mapping[int, Applied], shipped: Iterable[Migration]) -> None:
    """Refuse a database this release must not touch.

    One that a newer release has migrated is in order as long as each of those migrations says so.

    Raises:
        SchemaTooNewError: The database has a migration this release cannot work with.
        MigrationChangedError: A migration was applied in another form than the one shipped.
    """
    known = {migration.version: migration for migration in shipped}
    head = max(known, default=0)
    for version, (checksum, needs) in sorted(applied.items()):
        migration = known.get(version)
        if migration is None:
            if needs is None or needs > head:
                raise _too_new(max(applied), head)
        elif checksum != migration.checksum:
            raise MigrationChangedError(
                f"migration {version:04} ({migration.name}) was applied with the checksum {checksum}, but "
                f"this release ships it with {migration.checksum}. Install the release that applied it; if "
                "the file was edited, undo the edit and put the change into a new migration."
            )


def _too_new(newest: int, head: int) -> SchemaTooNewError:
    return SchemaTooNewError(
        f"the database is at schema version {newest}, this release of pg_scheduler knows versions up to "
        f"{head}. Upgrade pg_scheduler here, or migrate down to {head} with the newer release."
    )


@cache
def shipped_migrations() -> tuple[Migration, ...]:
    """The migrations of this release, by rising version: from the wheel, or from the checkout around it."""
    packaged = files(__package__.partition(".")[0]) / "migrations"
    return load_migrations(packaged if packaged.is_dir() else Path(__file__).parents[2] / "migrations")


def load_migrations(folder: Traversable) -> tuple[Migration, ...]:
    """Read all migrations of a folder, by rising version.

    Raises:
        FileNotFoundError: There is no such folder, or a migration has no way down.
        ValueError: The versions do not run from 1 without gaps.
    """
    found = [
        Migration(
            version=int(name["version"]),
            name=name["name"],
            up=file.read_text(encoding="utf-8"),
            down=(folder / file.name.replace(".up.sql", ".down.sql")).read_text(encoding="utf-8"),
        )
        for file in folder.iterdir()
        if (name := _FILE_NAME.fullmatch(file.name))
    ]
    found.sort(key=lambda migration: migration.version)
    versions = [migration.version for migration in found]
    if not versions or versions != list(range(1, len(versions) + 1)):
        raise ValueError(f"the migrations in {folder} are {versions}, not 1, 2, 3 ... without gaps")
    return tuple(found)
