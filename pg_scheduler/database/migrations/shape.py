"""Compare the tables of a schema with those that the migrations make.

A column, an index or a constraint may have been dropped. A view or a partitioned table may be in the place of
a table, and rules or policies may change what statements do. Statements would fail later, or run jobs twice,
so such a schema is rejected with an error that contains the remedy.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.base.sqltext import quote_identifier
from pg_scheduler.base.text.remedies import execute, execute_all, then
from pg_scheduler.database.migrations.plan import migrations_folder, shipped_migrations
from pg_scheduler.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence


LATER_INDEXES: Final = frozenset({"scheduled_jobs_unsuccessful"})
"""Indexes that the migrations leave out on large tables, so that workers do without them."""


class Part(NamedTuple):
    """A fact about a table, as the catalogue has it.

    Attributes:
        table: The name of the table.
        kind: The kind of the part, such as ``column``.
        name: The name of the column, constraint, rule and so on.
        value: The type of a column, the definition of an index.
    """

    table: str
    kind: str
    name: str
    value: str = ""


PARTS: Final = qualify_builtins(r"""
    SELECT relname::text AS "table", part.kind, part.name, part.value
    FROM (
        SELECT class.oid, class.relname, class.relkind, class.relpersistence, class.relreplident,
            namespace.nspname
        FROM pg_catalog.pg_class AS class
        JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
        WHERE namespace.nspname = $1 AND class.relname = ANY ($2::text[])
    ) AS relation
    CROSS JOIN LATERAL (
        SELECT 'relation', relkind::text, relpersistence::text
        UNION ALL
        SELECT 'column', attname::text,
            regexp_replace(
                replace(format_type(atttypid, atttypmod), 'pg_catalog.', ''), '"([a-z0-9_]+)"', '\1', 'g'
            )
        FROM pg_catalog.pg_attribute
        WHERE attrelid = relation.oid AND attnum > 0 AND NOT attisdropped
        UNION ALL
        SELECT 'constraint', conname::text, ''
        FROM pg_catalog.pg_constraint
        WHERE conrelid = relation.oid AND contype = 'c'
        UNION ALL
        SELECT 'index', '',
            regexp_replace(
                regexp_replace(
                    replace(pg_get_indexdef(indexrelid), 'pg_catalog.', ''), 'OPERATOR\(([^)]+)\)', '\1', 'g'
                ),
                '"([a-z0-9_]+)"', '\1', 'g'
            )
        FROM pg_catalog.pg_index
        WHERE indrelid = relation.oid AND indisvalid
        UNION ALL
        SELECT 'rule', quote_ident(rulename::text), ''
        FROM pg_catalog.pg_rewrite
        WHERE ev_class = relation.oid AND ev_enabled <> 'D'
        UNION ALL
        SELECT 'child', format('%I.%I', spaces.nspname, child.relname), ''
        FROM pg_catalog.pg_inherits
        JOIN pg_catalog.pg_class AS child ON child.oid = inhrelid
        JOIN pg_catalog.pg_namespace AS spaces ON spaces.oid = child.relnamespace
        WHERE inhparent = relation.oid
        UNION ALL
        SELECT CASE WHEN key.is_primary THEN 'publication' ELSE 'keyless' END,
            quote_ident(published.pubname::text), ''
        FROM pg_catalog.pg_publication_tables AS published
        JOIN pg_catalog.pg_publication AS publication ON publication.pubname = published.pubname
        CROSS JOIN LATERAL (
            SELECT coalesce(bool_or(indisprimary AND indisvalid), false) AS is_primary,
                coalesce(bool_or(indisreplident AND indisvalid), false) AS is_identity
            FROM pg_catalog.pg_index
            WHERE indrelid = relation.oid
        ) AS key
        WHERE (relation.relreplident = 'n'
               OR relation.relreplident = 'i' AND NOT key.is_identity
               OR relation.relreplident = 'd' AND NOT key.is_primary)
          AND published.schemaname = relation.nspname AND published.tablename = relation.relname
          AND (publication.pubupdate OR publication.pubdelete)
        UNION ALL
        SELECT 'policy', quote_ident(current_user::text), ''
        WHERE row_security_active(relation.oid) AND (
            SELECT count(DISTINCT command.code) < 3 OR bool_or(NOT polpermissive)
            FROM pg_catalog.pg_policy
            JOIN (VALUES ('r'), ('w'), ('d')) AS command (code)
                ON polcmd::text = ANY (ARRAY [command.code, '*'])
            WHERE polrelid = relation.oid
              AND (NOT polpermissive OR pg_get_expr(polqual, polrelid) = 'true')
              AND EXISTS (
                  SELECT FROM unnest(polroles) AS role
                  WHERE role = 0 OR pg_has_role(role, 'USAGE')
              )
        )
    ) AS part (kind, name, value)
""")
"""The query of the parts of the tables $2 in the schema $1.

PostgreSQL qualifies built-in names in definitions if the search path hides them, and quotes all names if
``quote_all_identifiers`` is on. Both are removed.
"""

_KINDS: Final = {
    "p": ("partitioned table", "TABLE"),
    "v": ("view", "VIEW"),
    "m": ("materialized view", "MATERIALIZED VIEW"),
    "f": ("foreign table", "FOREIGN TABLE"),
    "S": ("sequence", "SEQUENCE"),
    "c": ("composite type", "TYPE"),
}

_SHAPE: Final = (migrations_folder() / "schema.txt").read_text(encoding="utf-8")

TABLES: Final[tuple[str, ...]] = tuple(re.findall(r"^table (\w+)$", _SHAPE, re.MULTILINE))
"""The tables of the newest version, for tools that must not change them."""

_ENTRY: Final = re.compile(r"^(?=table |function |    (?:column|constraint|CREATE|with) )", re.MULTILINE)
_COLUMN: Final = re.compile(
    r"(?P<type>.+?)(?P<is_set> NOT NULL)?(?: DEFAULT (?P<default>.+)| GENERATED ALWAYS AS IDENTITY)?"
)
_INDEX: Final = re.compile(
    r"CREATE (?P<unique>UNIQUE )?INDEX (?P<name>.+?) ON .+? USING (?P<definition>\w+ (?P<columns>.+))"
)
_ALTER: Final = "ALTER TABLE {table} "
_PRIMARY_KEY: Final = "_pkey"
_STORAGE: Final = re.compile(r" WITH \([^)]*\)")

_ORDINARY: Final = "r"
"""The ``relkind`` of an ordinary table in ``pg_class``."""


class _Cause(NamedTuple):
    """What makes a table unusable, as texts in which ``{table}`` and ``{name}`` stand for names."""

    problem: str
    remedy: str
    """The words before the statement."""
    statement: str


_BY_OWNER: Final = "execute as the owner of the table:"

_CAUSES: Final[dict[str, _Cause]] = {
    "rule": _Cause(
        "{table} has the rule {name}, which changes the Scheduler's statements",
        _BY_OWNER,
        "DROP RULE {name} ON {table}",
    ),
    "child": _Cause(
        "{table} has the child table {name}, whose rows the Scheduler's statements would change too",
        _BY_OWNER,
        "ALTER TABLE {name} NO INHERIT {table}",
    ),
    "publication": _Cause(
        "{table} has no replica identity and is in the publication {name}, so the server rejects updates",
        _BY_OWNER,
        "ALTER TABLE {table} REPLICA IDENTITY DEFAULT",
    ),
    "keyless": _Cause(
        "{table} has no primary key and no other replica identity, and is in the publication {name}, so the "
        "server rejects updates",
        _BY_OWNER,
        "ALTER TABLE {table} REPLICA IDENTITY FULL",
    ),
    "policy": _Cause(
        "row-level security of {table} may hide rows from the role {name}",
        "create permissive policies with USING (true) for the role and no restrictive ones, or execute as a "
        "superuser:",
        "ALTER ROLE {name} BYPASSRLS",
    ),
}


ADDED_LATER: Final = frozenset({"keyless"})
"""Kinds of parts that missing migrations may correct: an older schema has a table without a primary key."""


def check_relations(parts: Iterable[Part], schema: str, *, ignored: Container[str] = ()) -> None:
    """Raise an error unless each table is an ordinary one, and nothing changes or rejects its statements.

    Args:
        parts: The parts of the tables, from the catalogue.
        schema: The schema of the tables.
        ignored: The kinds of parts that are not looked at.

    Raises:
        SchemaMismatchError: The message names what differs and the remedy.
    """
    quoted_schema = quote_identifier(schema)
    for part in parts:
        table = f"{quoted_schema}.{part.table}"
        if part.kind == "relation" and part.name != _ORDINARY:
            kind, command = _KINDS.get(part.name, ("relation of another kind", "TABLE"))
            raise SchemaMismatchError(
                f"{table} is a {kind}, not an ordinary table",
                execute(
                    f"ALTER {command} {table} SET SCHEMA ...",
                    before="drop it, or move it to another schema by",
                ),
                then("call scheduler.initialize_db() or start(), which creates the table"),
            )
        cause = _CAUSES.get(part.kind)
        if cause is not None and part.kind not in ignored:
            problem, remedy, statement = (text.format(table=table, name=part.name) for text in cause)
            raise SchemaMismatchError(problem, execute(statement, before=remedy))


def check_parts(parts: Sequence[Part], schema: str, *, optional: Container[str] = LATER_INDEXES) -> None:
    """Raise an error if a table lacks a part of the newest version, or a column has another type.

    More columns, constraints and indexes are allowed. The name of an index does not matter.

    Args:
        parts: The parts of the tables, from the catalogue.
        schema: The schema of the tables.
        optional: The names of the indexes that may be missing.

    Raises:
        SchemaMismatchError: The message names every part that differs, and statements that repair it.
    """
    values = {_key(part): part.value for part in parts}
    differences: list[str] = []
    only_indexes_differ = True
    statements: list[str] = []
    quoted_schema = quote_identifier(schema)
    for part, addition in _expected_parts():
        table = f"{quoted_schema}.{part.table}"
        value = values.get(_key(part))
        if value is None and part.name in optional:
            continue
        # ``values`` has no part with this key, so the table lacks it.
        if value is None:
            differences.append(f"{part.kind} {part.name} of {part.table} is missing")
            only_indexes_differ = only_indexes_differ and part.name in index_statements()
            statements.append(addition.format(table=table))
        elif part.kind == "column" and value != part.value:
            differences.append(
                f"column {part.name} of {part.table} has the type {value}, expected {part.value}"
            )
            only_indexes_differ = False
            statements.append(_alter_type(part, addition).format(table=table))
    if differences:
        remedy = (
            "execute pg-scheduler migrate indexes, or call pg_scheduler.migrate.build_indexes(connection), "
            "which builds them while jobs run"
            if only_indexes_differ
            else "restore the tables that differ from a backup, or drop them, and start() creates them "
            "again, empty"
        )
        raise SchemaMismatchError(
            f"the tables of pg_scheduler in schema {schema!r} differ from version "
            f"{shipped_migrations()[-1].version}: {', '.join(differences)}",
            *execute_all(statements, before=f"{remedy}, or execute as their owner:"),
        )


class TableColumn(NamedTuple):
    """A column of the newest version."""

    name: str
    type: str
    is_nullable: bool
    is_key: bool
    """Whether it is part of the primary key."""


@cache
def table_columns() -> Mapping[str, Sequence[TableColumn]]:
    """Return the columns of the newest version, by table, as ``schema.txt`` lists them."""
    columns: dict[str, list[TableColumn]] = {}
    # The first text precedes the first table.
    _, *texts = re.split(r"^table ", _SHAPE, flags=re.MULTILINE)
    for table, text in zip(TABLES, texts, strict=True):
        primary = re.search(r"^    constraint \w+ PRIMARY KEY \((.+)\)$", text, re.MULTILINE)
        key_names = primary[1].split(", ") if primary else []
        columns[table] = []
        for name, definition in re.findall(r"^    column (\w+) (.+)$", text, re.MULTILINE):
            column = _COLUMN.fullmatch(definition)
            if column is not None:
                is_nullable = not column["is_set"]
                columns[table].append(TableColumn(name, column["type"], is_nullable, name in key_names))
    return columns


def missing_shipped_indexes(parts: Iterable[Part]) -> list[str]:
    """Return the names of the shipped indexes that tables lack, from the parts that the tables have.

    They are still to be built, or they were dropped, or they are invalid: an invalid index is none of the
    parts.
    """
    keys = {_key(part) for part in parts}
    # The first value of a key is the name of the table. A table that does not exist lacks no index.
    tables = {table for table, *_ in keys}
    return [
        part.name
        for part, _ in _expected_parts()
        if part.name in index_statements() and part.table in tables and _key(part) not in keys
    ]


@cache
def index_statements() -> Mapping[str, str]:
    """Return by name the statement that builds each index while jobs run; ``{schema}`` precedes its table.

    The index of a primary key is left out, because it belongs to a constraint and cannot be built alone.
    """
    # The statements are passed to qualify_builtins(), which rejects a function in upper case, and also the
    # word btree before a parenthesis. An index without that word is a btree too.
    return {
        part.name: addition.replace("INDEX", "INDEX CONCURRENTLY", 1)
        .replace(" USING btree", "", 1)
        .replace("COALESCE(", "coalesce(")
        .format(table=f"{{schema}}{part.table}")
        for part, addition in _expected_parts()
        if part.kind == "index" and not part.name.endswith(_PRIMARY_KEY)
    }


def unlogged_tables(parts: Iterable[Part]) -> list[str]:
    """Return the unlogged tables, which the server empties after a crash."""
    return sorted(part.table for part in parts if part.kind == "relation" and part.value == "u")


@cache
def shipped_storage() -> Mapping[str, Mapping[str, str]]:
    """Return the storage settings of the newest version, by the names of the table and of the setting."""
    storage: dict[str, dict[str, str]] = {}
    # The entries of a table follow that of the table itself.
    table = ""
    for entry in _ENTRY.split(_SHAPE):
        kind, _, text = entry.strip().partition(" ")
        if kind == "table":
            table = text
        elif kind == "with":
            name, _, value = text.partition("=")
            storage.setdefault(table, {})[name] = value
    return storage


def _key(part: Part) -> tuple[str, str, str]:
    """Return what identifies a part of a table: its name, or the definition of an index without its name."""
    if part.kind != "index":
        return part.table, part.kind, part.name
    # A definition is "CREATE UNIQUE INDEX name ON table USING btree (column)", perhaps without UNIQUE.
    command, _, definition = part.value.partition(" USING ")
    kind, _, _ = command.partition(" INDEX ")
    return part.table, kind, _STORAGE.sub("", definition)


@cache
def _expected_parts() -> tuple[tuple[Part, str], ...]:
    """Return the parts of the newest version, each with the statement that adds it; see ``_parse()``."""
    return tuple(_parse(_SHAPE))


def _parse(shape: str) -> Iterator[tuple[Part, str]]:
    """Yield the parts that ``schema.txt`` lists, each with the statement that adds it.

    In the statement, ``{table}`` stands for the qualified name of the table.
    """
    # The entries of a table follow that of the table itself.
    table = ""
    for entry in _ENTRY.split(shape):
        # An entry may have several lines, which are joined. Its first word is its kind.
        kind, _, text = " ".join(entry.split()).partition(" ")
        name, _, value = text.partition(" ")
        if kind == "table":
            table = text
        elif kind == "column" and (column := _COLUMN.fullmatch(value)):
            yield Part(table, kind, name, column["type"]), _alteration(f"ADD COLUMN {name} {value}")
        elif kind == "constraint" and value.startswith("CHECK"):
            yield Part(table, kind, name), _alteration(f"ADD CONSTRAINT {name} {value}")
        elif kind == "CREATE" and (index := _INDEX.fullmatch(f"{kind} {text}")):
            if index["name"].endswith(_PRIMARY_KEY):
                addition = _alteration(f"ADD PRIMARY KEY {index['columns']}")
            else:
                command = f"CREATE {index['unique'] or ''}INDEX {index['name']}"
                addition = f"{command} ON {{table}} USING {index['definition']}"
            yield Part(table, "index", index["name"], f"{kind} {text}"), addition


def _alteration(command: str) -> str:
    """Return the statement that alters a table by this command, with ``{table}`` for its name.

    ``str.format()`` replaces that, so braces of the command are doubled.
    """
    return _ALTER + command.replace("{", "{{").replace("}", "}}")


def _alter_type(column: Part, addition: str) -> str:
    """Return the statement that changes the type of a column.

    Its default and the constraints that use it are removed before and added again after. ``addition`` is the
    statement that adds the column, which contains its default.
    """
    name = column.name
    removals, additions = [], []
    _, _, default = addition.partition(" DEFAULT ")
    if default:
        removals.append(f"ALTER COLUMN {name} DROP DEFAULT")
        additions.append(f"ALTER COLUMN {name} SET DEFAULT {default}")
    for part, command in _expected_parts():
        is_constraint = part.kind == "constraint" and part.table == column.table
        if is_constraint and re.search(rf"\b{name}\b", command):
            removals.append(f"DROP CONSTRAINT IF EXISTS {part.name}")
            additions.append(command.removeprefix(_ALTER))
    commands = [
        *removals,
        f"ALTER COLUMN {name} TYPE {column.value} USING {name}::{column.value}",
        *additions,
    ]
    return _ALTER + ", ".join(commands)
