"""Use Alembic in a database with the tables of pg_scheduler.

Autogenerate drops every table that is not part of the metadata of the application. Of the tables of
pg_scheduler, such a migration would delete all jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pg_scheduler.migrate import TABLES

if TYPE_CHECKING:
    from alembic.runtime.environment import IncludeNameFn, NameFilterParentNames, NameFilterType

__all__ = ["ignore_scheduler_tables"]


def ignore_scheduler_tables(schema: str | None = None, *, then: IncludeNameFn | None = None) -> IncludeNameFn:
    """Return an ``include_name`` function for ``env.py`` that hides the tables from autogenerate.

    It is used by ``alembic revision --autogenerate`` and by ``alembic check``.

    Args:
        schema: The schema of the tables, as in ``Scheduler(schema=...)``: only there, and in the default
            schema of the connection, which Alembic does not name, are they hidden. None hides tables of these
            names in every schema.
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
            is_hidden = is_hidden and parent_names["schema_name"] in {schema, None}
        return not is_hidden and (then is None or then(name, type_, parent_names))

    return include_name
