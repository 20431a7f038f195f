"""Migrate on a synchronous connection of any library, as a part of its transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.base.sqltext import qualify
from pg_scheduler.database.migrations.plan import Applied, check, shipped_migrations, steps_between
from pg_scheduler.database.migrations.records import RECORDS, create_records
from pg_scheduler.database.migrations.sql import UNPIN, create_schema, lock, step_statements
from pg_scheduler.database.migrations.verify import HOME_SCHEMA, SEARCH_PATH, no_schema
from pg_scheduler.errors import ConfigurationError, SchemaMissingError, SchemaTooNewError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pg_scheduler.database.migrations.plan import Migration

# The search path that lock() sets is lost at once if each statement is a transaction of its own.
_EXISTING: Final = qualify_builtins("""
    SELECT current_setting('search_path') = 'pg_catalog, pg_temp',
        to_regnamespace('{home}') IS NOT NULL,
        to_regclass('{records}') IS NOT NULL
""")
_APPLIED: Final = "SELECT version, checksum, needs FROM {schema}scheduler_migrations"


def run_migrations(
    run: Callable[[str], Sequence[Sequence[Any]]],
    *,
    start: int,
    target: int,
    schema: str | None = None,
    shipped: Iterable[Migration] | None = None,
) -> list[int]:
    """Apply or revert the migrations between two versions, unless that was done before.

    Other nodes and tools may migrate the same schema meanwhile. No migration outside of the two versions is
    applied or reverted, whichever the database has.

    Args:
        run: Executes one statement without parameters, in which ``%`` and ``:name`` have no meaning, and
            returns its rows, if any. The statements must be part of one transaction, whose isolation level is
            READ COMMITTED. After an error it must be rolled back.
        start: The version before.
        target: The version after; a lower one reverts migrations.
        schema: The schema of the tables, created if it does not exist; None to search along the search path.
        shipped: The migrations; None for those of this release.

    Returns:
        The versions that were applied or reverted, in that order.

    Raises:
        ConfigurationError: This release has no such version, or the statements are not in a transaction.
        SchemaMissingError: Migrations up to the lower version are missing, or the search path has no schema.
        SchemaTooNewError: The database has a migration that this release cannot use, or later ones than
            ``start``, which would have to be reverted first.
        MigrationChangedError: An applied migration differs from the shipped one.
    """
    migrations = shipped_migrations() if shipped is None else tuple(shipped)
    steps = steps_between(start, target, shipped=migrations)
    home = run(HOME_SCHEMA)[0][0] if schema is None else schema
    if home is None:
        raise no_schema(run(SEARCH_PATH)[0][0])
    run(lock(home))
    quoted_names = {
        "home": qualify("{schema}", home).removesuffix("."),
        "records": qualify(f"{{schema}}{RECORDS}", home),
    }
    # The names stand within texts of the statement, where a quote is doubled.
    literals = {key: name.replace("'", "''") for key, name in quoted_names.items()}
    ((is_in_transaction, has_schema, has_records),) = run(_EXISTING.format_map(literals))
    if not is_in_transaction:
        raise ConfigurationError("migrations must be in a transaction, not on an autocommit connection")
    applied: dict[int, Applied] = {}
    if has_records:
        applied = {version: Applied(*record) for version, *record in run(qualify(_APPLIED, home))}
    check(applied, migrations)
    # A step up is pending if the database lacks its migration, and a step down if the database has it.
    pending_steps = [step for step in steps if step.up is (step.migration.version not in applied)]
    # If nothing is left to revert, the database may lack lower versions too, which were reverted since.
    if pending_steps or start < target:
        _check_neighbours(applied, start, target, home)
    if pending_steps and not has_schema:
        run(create_schema(home))
    if pending_steps and not has_records:
        run(create_records(home))
    for step in pending_steps:
        for statement in step_statements(step, home):
            run(statement)
    run(UNPIN)
    return [step.migration.version for step in pending_steps]


def _check_neighbours(applied: Mapping[int, Applied], start: int, target: int, home: str) -> None:
    """Raise an error unless the database has all versions below the steps, and none above those to revert."""
    if missing := [f"{version:04}" for version in range(1, min(start, target) + 1) if version not in applied]:
        raise SchemaMissingError(
            f"the tables of pg_scheduler in schema {home!r} lack the migrations {', '.join(missing)}, which "
            f"precede version {max(start, target)}",
            "apply them first",
        )
    newest = max(applied, default=0)
    if target < start < newest:
        raise SchemaTooNewError(
            f"the tables of pg_scheduler in schema {home!r} are at version {newest}, and {start} is to be "
            "reverted",
            f"revert the versions after {start} first",
        )
