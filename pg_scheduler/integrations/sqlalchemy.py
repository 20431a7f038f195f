"""Query the tables of pg_scheduler with SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Integer,
    MetaData,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSONB, OID
from sqlalchemy.types import TypeEngine

from pg_scheduler.database.migrations.shape import TableColumn, table_columns

__all__ = ["tables"]

_TYPES: Final[Mapping[str, TypeEngine[Any]]] = {
    "bigint": BigInteger(),
    "oid": OID(),
    "boolean": Boolean(),
    "date": Date(),
    "double precision": Double(),
    "integer": Integer(),
    "jsonb": JSONB(),
    "text": Text(),
    "timestamp with time zone": DateTime(timezone=True),
    "uuid": Uuid(),
}


def tables(schema: str | None = None) -> dict[str, Table]:
    """Return the tables of this release by name, for joins and queries.

    They have the columns and primary keys, in a MetaData of their own, so your ``create_all()`` and Alembic's
    autogenerate do not see them. Do not write to them: the methods of `Scheduler` do that, also in the
    transaction of a session (``connection=session``).

    Args:
        schema: The schema of the tables, as in ``Scheduler(schema=...)``; None for the search path.

    Example:
        >>> from sqlalchemy import select
        >>> jobs = tables("jobs")["scheduled_jobs"]
        >>> failed = select(jobs.c.job_id).where(jobs.c.status == "failed")
    """
    metadata = MetaData(schema=schema)
    return {
        name: Table(name, metadata, *(_column(column) for column in columns))
        for name, columns in table_columns().items()
    }


def _column(column: TableColumn) -> Column[Any]:
    """Return the column of SQLAlchemy for a column of a table of this release."""
    # The type of an array, such as text[], is that of its elements with brackets.
    element_type = column.type.removesuffix("[]")
    is_array = element_type != column.type
    kind = ARRAY(_TYPES[element_type]) if is_array else _TYPES[element_type]
    return Column(column.name, kind, nullable=column.is_nullable, primary_key=column.is_key)
