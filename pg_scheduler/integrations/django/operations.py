"""Apply and revert the migrations of the library in those of Django."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.db import connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import CreateModel
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.state import ModelState

from pg_scheduler.database.migrations.run import run_migrations
from pg_scheduler.database.migrations.verify import HOME_SCHEMA, SEARCH_PATH, no_schema
from pg_scheduler.migrate import script, shipped_migrations, steps_between


class MigrateTables(Operation):
    """Apply or revert one migration, unless the records of the library show that it is done.

    A worker may have migrated the database, or may do it at the same time: both take the same lock. Nothing
    happens in a database that is not PostgreSQL, or where a router does not allow the migration.

    Args:
        version: The number of the migration.
    """

    category = OperationCategory.SQL
    reduces_to_sql = True
    reversible = True

    def __init__(self, version: int) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Leave the state to other operations."""

    def database_forwards(self, app_label: str, schema_editor: Any, _from_state: Any, _to_state: Any) -> None:
        """Apply the migration."""
        _migrate(app_label, schema_editor, start=self.version - 1, target=self.version)

    def database_backwards(
        self, app_label: str, schema_editor: Any, _from_state: Any, _to_state: Any
    ) -> None:
        """Revert the migration."""
        _migrate(app_label, schema_editor, start=self.version, target=self.version - 1)

    def describe(self) -> str:
        """Return what the operation does."""
        return f"Migrate the tables of pg_scheduler to version {self.version}"


def create_models() -> list[CreateModel]:
    """Return the operations that give the state of a project the models of this release.

    The models read tables that SQL files create, so no former state of them is ever needed.
    """
    states = [ModelState.from_model(model) for model in apps.get_app_config("pg_scheduler").get_models()]
    return [CreateModel(state.name, list(state.fields.items()), state.options) for state in states]


def create_unmigrated(sender: Any, using: str, **_about: Any) -> None:
    """Create the tables, if the migrations are switched off, before ``migrate`` creates them from the models.

    Migrations are switched off in tests with ``--nomigrations`` or ``MIGRATE: False``.
    """
    module_name, _is_set_by_user = MigrationLoader.migrations_module(sender.label)
    # Django has no module of migrations for an application whose migrations are switched off.
    if module_name is None:
        with connections[using].schema_editor() as editor:
            _migrate(sender.label, editor, start=0, target=shipped_migrations()[-1].version)


def _migrate(app_label: str, editor: Any, *, start: int, target: int) -> None:
    """Apply or revert the migrations between two versions, or collect their statements for ``sqlmigrate``.

    ``editor`` is Django's schema editor.
    """
    connection = editor.connection
    if connection.vendor != "postgresql" or not router.allow_migrate(connection.alias, app_label):
        return

    def run(statement: str) -> Sequence[Sequence[Any]]:
        """Run a statement, and return its rows."""
        with connection.cursor() as cursor:
            cursor.execute(statement)
            rows: Sequence[Sequence[Any]] = cursor.fetchall() if cursor.description else ()
            return rows

    if editor.collect_sql:
        # The schema of the tables; None if there is none on the search path.
        home = run(HOME_SCHEMA)[0][0]
        if home is None:
            raise no_schema(run(SEARCH_PATH)[0][0])
        for statement in script(steps_between(start, target), home):
            editor.execute(statement, params=None)
    else:
        run_migrations(run, start=start, target=target)
