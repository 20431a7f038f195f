"""Plan migrations without a database.

A migration is a pair of files ``NNNN_name.up.sql`` and ``NNNN_name.down.sql``, numbered from 1 without gaps.
A database records each applied migration with a checksum of the up file. If a migration were edited after its
release, two databases of the same version could differ, so a changed checksum is an error.

Expand first, contract later: the first line of an up file declares its kind. A file with ``-- expand``
removes nothing that a release uses, so nodes of older releases keep running on the new schema, and can start
on it. One with ``-- contract 0007`` removes what releases without migration 0007 use, which are refused
afterwards.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pg_scheduler.errors import ConfigurationError, MigrationChangedError, SchemaTooNewError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.resources.abc import Traversable


_FILE_NAME = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.up\.sql")
_DECLARATION = re.compile(r"-- (?:expand|contract (?P<needs>\d{4}))\n")
_TABLE_COMMAND = re.compile(
    r"\b(?P<command>CREATE|DROP) TABLE (?:IF (?:NOT )?EXISTS )?\{schema\}(?P<table>\w+)"
)


class Applied(NamedTuple):
    """A migration as recorded in a database.

    Attributes:
        checksum: The checksum of the up file.
        needs: The schema version that a release must have at least to use the result; None if not declared.
    """

    checksum: str
    needs: int | None = None


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration as shipped with this release.

    Attributes:
        version: Its number, from 1.
        name: The name in its file names.
        up: The SQL that applies it, with ``{schema}`` before every table name.
        down: The SQL that reverts it.
    """

    version: int
    name: str
    up: str
    down: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the up file, independent of its line endings."""
        return hashlib.sha256("\n".join(self.up.splitlines()).encode()).hexdigest()

    @property
    def needs(self) -> int | None:
        """The schema version that a release must have at least to use the result; None if not declared."""
        declaration = _DECLARATION.match("\n".join(self.up.splitlines()))
        return int(declaration["needs"] or 0) if declaration else None


@dataclass(frozen=True, slots=True)
class Step:
    """A migration to apply or to revert.

    Attributes:
        migration: The migration.
        up: Whether it is applied.
    """

    migration: Migration
    up: bool


def plan(
    applied: Mapping[int, Applied], shipped: Iterable[Migration], target: int | None = None
) -> list[Step]:
    """Return the steps from the applied migrations to the target.

    Args:
        applied: The migrations recorded in the database, by version.
        shipped: All migrations of this release.
        target: The version to migrate to; None for the newest, 0 for none.

    Returns:
        The steps in order: those to revert by descending, then those to apply by ascending version.

    Raises:
        ConfigurationError: This release has no such target version.
        SchemaTooNewError: The database has an unknown migration that this release cannot use, or would have
            to revert.
        MigrationChangedError: An applied migration differs from the shipped one.
    """
    migrations = {migration.version: migration for migration in shipped}
    newest_shipped, newest_applied = max(migrations, default=0), max(applied, default=0)
    if target is not None and not 0 <= target <= newest_shipped:
        raise ConfigurationError(
            f"target is {target}, but this release has the schema versions 0 to {newest_shipped}"
        )
    check(applied, migrations.values())
    # A database that is newer than this release stays as it is.
    if target is None:
        target = max(newest_shipped, newest_applied)
    # A migration above the target has to be reverted, and only its own release has the SQL for that.
    if newest_applied > max(newest_shipped, target):
        raise _too_new(newest_applied, newest_shipped)
    # The target may be newer than this release, if the database is.
    versions = range(1, min(newest_shipped, target) + 1)
    down = [
        Step(migrations[version], up=False) for version in sorted(applied, reverse=True) if version > target
    ]
    up = [Step(migrations[version], up=True) for version in versions if version not in applied]
    return down + up


def steps_between(
    start: int, target: int | None = None, *, shipped: Iterable[Migration] | None = None
) -> list[Step]:
    """Return the steps from one version of the schema to another, without a database.

    Args:
        start: The version before; 0 for no tables, or for those of pg-scheduler 0.2.
        target: The version after; None for the newest. If it is lower, the steps revert migrations.
        shipped: The migrations; None for those of this release.

    Raises:
        ConfigurationError: This release has no such version.

    Example:
        >>> [(step.migration.version, step.up) for step in steps_between(1, 0)]
        [(1, False)]
    """
    migrations = shipped_migrations() if shipped is None else tuple(shipped)
    if not 0 <= start <= len(migrations):
        raise ConfigurationError(
            f"start is {start}, but this release has the schema versions 0 to {len(migrations)}"
        )
    applied = {
        migration.version: Applied(migration.checksum, migration.needs) for migration in migrations[:start]
    }
    return plan(applied, migrations, target)


def check(applied: Mapping[int, Applied], shipped: Iterable[Migration]) -> None:
    """Check that this release can use a database with these applied migrations.

    Migrations of a newer release are accepted if each of them declares that this release can use the result.

    Raises:
        SchemaTooNewError: The database has a migration that this release cannot use.
        MigrationChangedError: An applied migration differs from the shipped one.
    """
    migrations = {migration.version: migration for migration in shipped}
    newest_shipped = max(migrations, default=0)
    for version, (checksum, needs) in sorted(applied.items()):
        migration = migrations.get(version)
        # A migration of a newer release: ``needs`` is the version that this release must have at least.
        if migration is None:
            if needs is None or needs > newest_shipped:
                raise _too_new(max(applied), newest_shipped)
        elif checksum != migration.checksum:
            raise MigrationChangedError(
                f"migration {version:04} ({migration.name}) was applied with the checksum {checksum}, but "
                f"this release ships it with {migration.checksum}",
                "install the release that applied it, or undo the edit of the file and add a new migration",
            )


def table_names(migrations: Iterable[Migration]) -> list[str]:
    """Return the tables that exist after these migrations, in the order of their creation.

    ``scheduler_migrations``, which records the migrations, is not among them.
    """
    # A dict keeps the order.
    names: dict[str, None] = {}
    for migration in migrations:
        for command, table in _table_commands(migration.up):
            if command == "CREATE":
                names[table] = None
            else:
                names.pop(table, None)
    return list(names)


@cache
def _table_commands(text: str) -> tuple[tuple[str, str], ...]:
    """Return the commands of a migration that create or drop tables, each with the name of the table."""
    return tuple((match["command"], match["table"]) for match in _TABLE_COMMAND.finditer(text))


def _too_new(newest_applied: int, newest_shipped: int) -> SchemaTooNewError:
    """Return the error about a database that a newer release has migrated."""
    return SchemaTooNewError(
        f"the database is at schema version {newest_applied}, but this release of pg_scheduler supports "
        f"versions up to {newest_shipped}",
        f"upgrade pg_scheduler, or migrate down to {newest_shipped} with the newer release",
    )


@cache
def shipped_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this release by version."""
    return load_migrations(migrations_folder())


def migrations_folder() -> Traversable:
    """Return the folder of the migrations in the wheel, or else in the checkout."""
    package = __package__.partition(".")[0]
    packaged = files(package) / "migrations"
    return packaged if packaged.is_dir() else Path(str(files(package))).parent / "migrations"


def load_migrations(folder: Traversable) -> tuple[Migration, ...]:
    """Read all migrations of a folder, sorted by version.

    Raises:
        FileNotFoundError: The folder or a down file is missing.
        ValueError: The versions are not 1, 2, 3 and so on.
    """
    migrations: list[Migration] = []
    for up_file in folder.iterdir():
        match = _FILE_NAME.fullmatch(up_file.name)
        # A down file is read together with its up file.
        if match is None:
            continue
        down_file = folder / up_file.name.replace(".up.sql", ".down.sql")
        migrations.append(
            Migration(
                version=int(match["version"]),
                name=match["name"],
                up=up_file.read_text(encoding="utf-8"),
                down=down_file.read_text(encoding="utf-8"),
            )
        )
    migrations.sort(key=lambda migration: migration.version)
    versions = [migration.version for migration in migrations]
    if not versions or versions != list(range(1, len(versions) + 1)):
        raise ValueError(f"the migrations in {folder} are {versions}; number them 1, 2, 3 ... without gaps")
    return tuple(migrations)
