"""Schema migrations: check which ones a database has, and apply or revert them.

``verify`` runs one cheap query and changes nothing. ``migrate`` takes a lock and applies the missing
migrations in one transaction. It also recreates dropped tables.
"""

from pg_scheduler.database.migrations.apply import migrate
from pg_scheduler.database.migrations.indexes import build_indexes, missing_indexes
from pg_scheduler.database.migrations.plan import Migration, Step, shipped_migrations, steps_between
from pg_scheduler.database.migrations.shape import TABLES
from pg_scheduler.database.migrations.sql import script
from pg_scheduler.database.migrations.verify import home_schema, verify

__all__ = [
    "TABLES",
    "Migration",
    "Step",
    "build_indexes",
    "home_schema",
    "migrate",
    "missing_indexes",
    "script",
    "shipped_migrations",
    "steps_between",
    "verify",
]

for _name in __all__:  # tracebacks and docs name the module that users import from
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__
