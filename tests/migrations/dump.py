"""Describe a schema as text, for comparisons and reviews.

The text is made from the catalogue, because the output of pg_dump differs between server versions. Names do
not contain the schema, so the text is the same for every schema.

After a new migration, ``python3 dev.py renew`` writes the checked-in text.
"""

from __future__ import annotations

from pathlib import Path

import asyncpg

from pg_scheduler.base.sqltext import qualify
from pg_scheduler.database.migrations.plan import shipped_migrations
from pg_scheduler.database.migrations.records import create_records

CHECKED_IN = Path(__file__).parents[2] / "migrations" / "schema.txt"

# PostgreSQL 18 lists NOT NULL among the constraints too; here it belongs to the column.
_SHAPE = """
    WITH relation AS (
        SELECT class.oid, class.relname, class.reloptions
        FROM pg_class AS class
        WHERE class.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
          AND class.relkind IN ('r', 'p')
    ), line (relname, part, place, line) AS (
        SELECT relname, 0, '', 'table ' || relname FROM relation
        UNION ALL
        SELECT relname, 1, lpad(attnum::text, 4, '0'),
            concat_ws(
                ' ', '    column', attname, format_type(atttypid, atttypmod),
                CASE WHEN attnotnull THEN 'NOT NULL' END,
                'DEFAULT ' || pg_get_expr(adbin, adrelid),
                CASE WHEN attidentity = 'a' THEN 'GENERATED ALWAYS AS IDENTITY' END
            )
        FROM relation
        JOIN pg_attribute ON attrelid = relation.oid AND attnum > 0 AND NOT attisdropped
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        UNION ALL
        SELECT relname, 2, conname, concat_ws(' ', '    constraint', conname, pg_get_constraintdef(con.oid))
        FROM relation
        JOIN pg_constraint AS con ON conrelid = relation.oid AND contype <> 'n'
        UNION ALL
        SELECT relname, 3, indexdef.text, '    ' || indexdef.text
        FROM relation
        JOIN pg_index ON indrelid = relation.oid
        CROSS JOIN LATERAL (
            SELECT replace(pg_get_indexdef(indexrelid), quote_ident($1) || '.', '') AS text
        ) AS indexdef
        UNION ALL
        SELECT relname, 4, option, '    with ' || option FROM relation, unnest(reloptions) AS option
        UNION ALL
        SELECT proname, 5, '', format(
            'function %s(%s) RETURNS %s', proname, pg_get_function_arguments(oid), pg_get_function_result(oid)
        )
        FROM pg_proc
        WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
    )
    SELECT line FROM line ORDER BY relname COLLATE "C", part, place COLLATE "C"
"""


async def describe(connection: asyncpg.Connection, schema: str) -> str:
    """Return the columns, constraints, indexes and storage options of all tables, and functions, by line."""
    lines = await connection.fetch(_SHAPE, schema)
    return "".join(row["line"] + "\n" for row in lines)


async def shipped_shape(dsn: str) -> str:
    """Return the shape after all migrations, which run in a transaction that is rolled back."""
    connection = await asyncpg.connect(dsn)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("CREATE SCHEMA shape")
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        await connection.execute(create_records("shape"))
        for migration in shipped_migrations():  # migrate() would compare with the text that is out of date
            await connection.execute(qualify(migration.up, "shape"))
        shape = await describe(connection, "shape")
        await transaction.rollback()
    finally:
        await connection.close()
    return shape
