"""Use Alembic in a database with the tables of pg_scheduler.

Autogenerate drops every table that is not part of the metadata of the application. Without
`ignore_scheduler_tables()`, such a migration would also drop the tables of pg_scheduler, with all jobs.

Revisions may create and upgrade the tables with ``op.scheduler_migrate()``. Alembic 1.18 and newer finds it;
for older versions, ``env.py`` must import this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from alembic.operations import MigrateOperation, Operations

from pg_scheduler.database.migrations.run import run_migrations
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.migrate import TABLES, script, steps_between

if TYPE_CHECKING:
    from alembic.runtime.environment import IncludeNameFn, NameFilterParentNames, NameFilterType

__all__ = ["SchedulerMigrateOp", "ignore_scheduler_tables"]


def ignore_scheduler_tables(schema: str | None = None, *, then: IncludeNameFn | None = None) -> IncludeNameFn:
    """Return an ``include_name`` function for ``env.py`` that hides the tables from autogenerate.

    It is used by ``alembic revision --autogenerate`` and by ``alembic check``.

    Args:
        schema: The schema of the tables, as in ``Scheduler(schema=...)``. The tables are hidden in this
            schema and in the default schema of the connection, which has no name in Alembic. None hides
            tables of these names in every schema.
        then: Your own ``include_name`` function, called for all other names.

    Example:
        >>> include_name = ignore_scheduler_tables()
        >>> include_name("scheduled_jobs", "table", {"schema_name": None})
        False
        >>> include_name("orders", "table", {"schema_name": None})
        True
    """

    def include_name(name: str | None, type_: NameFilterType, parent_names: NameFilterParentNames) -> bool:
        is_hidden = type_ == "table" and name in TABLES
        if schema is not None:
            # The default schema of the connection has no name.
            is_hidden = is_hidden and parent_names["schema_name"] in {schema, None}
        if is_hidden:
            return False
        return then is None or then(name, type_, parent_names)

    return include_name


@Operations.register_operation("scheduler_migrate")
class SchedulerMigrateOp(MigrateOperation):
    """The operation ``op.scheduler_migrate()`` of a revision."""

    def __init__(self, target: int, *, start: int = 0, schema: str | None = None) -> None:
        if target == start:
            raise ConfigurationError(
                f"op.scheduler_migrate({target}, start={start}) changes nothing; pass the version before as "
                "start=, in downgrade() the higher one"
            )
        self.target = target
        self.start = start
        self.schema = schema

    @classmethod
    def scheduler_migrate(
        cls, operations: Operations, target: int, *, start: int = 0, schema: str | None = None
    ) -> None:
        """Apply or revert the migrations of pg_scheduler between two versions, in the revision's transaction.

        Versions that the database records already, because a worker has migrated it, are left out. Other
        versions are never applied or reverted. With ``--sql`` the statements are printed.

        Args:
            operations: Alembic's ``op``.
            target: The version after. If it is lower than ``start``, the migrations are reverted.
            start: The version before; 0 for no tables, or for those of pg-scheduler 0.2.
            schema: The schema of the tables, as in ``Scheduler(schema=...)``, created if it does not exist.
                None to search along the search path of the connection; with ``--sql``, "public".

        Raises:
            ConfigurationError: This release has no such version, both versions are equal, or the revision
                does not run in a transaction.
            SchemaMissingError: Migrations up to the lower version are missing.
            SchemaTooNewError: The database has a migration that this release cannot use, or later ones than
                ``start``, which would have to be reverted first.
            MigrationChangedError: An applied migration differs from the shipped one.

        Example::

            def upgrade() -> None:
                op.scheduler_migrate(3)


            def downgrade() -> None:
                op.scheduler_migrate(0, start=3)
        """
        operations.invoke(cls(target, start=start, schema=schema))

    def reverse(self) -> SchedulerMigrateOp:
        """Return the operation that undoes this one."""
        return SchedulerMigrateOp(self.start, start=self.target, schema=self.schema)


@Operations.implementation_for(SchedulerMigrateOp)
def _migrate(operations: Operations, operation: SchedulerMigrateOp) -> None:
    """Carry out the operation; with ``--sql``, print its statements instead."""
    start, target, schema = operation.start, operation.target, operation.schema
    context = operations.get_context()
    # With --sql, there is no connection, so the statements are those for a database at the start version.
    if context.as_sql:
        for statement in script(steps_between(start, target), "public" if schema is None else schema):
            context.impl.static_output(statement)
        return
    connection = operations.get_bind()

    def run(statement: str) -> Sequence[Sequence[Any]]:
        """Run a statement, and return its rows."""
        # Without parameters, the driver leaves a percent sign in the statement as it is.
        result = connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
        return result.all() if result.returns_rows else ()

    run_migrations(run, start=start, target=target, schema=schema)
