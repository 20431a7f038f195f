"""A schema with a trap for every built-in object that the library's SQL may name.

A trap is a function, operator, domain or collation of an ordinary role. It counts its calls in a sequence,
which no rollback undoes, and raises. The names come from the source files and from the statements, so that a
new statement gets its traps without a change here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import asyncpg

import pg_scheduler
from pg_scheduler.base.sqltext import qualify
from pg_scheduler.database.queries import load_queries
from pg_scheduler.migrate import shipped_migrations

SCHEMA = "trap"
PATHS = ("trap, public", "trap, pg_catalog")
"""With the first one, PostgreSQL searches pg_catalog before the traps: only a better match is called."""

PACKAGE = Path(pg_scheduler.__file__).parent
FILES = (*PACKAGE.rglob("*.sql"), *PACKAGE.rglob("*.py"))
TEXT = "\n".join(
    [file.read_text(encoding="utf-8") for file in FILES]
    + [script for each in shipped_migrations() for script in (each.up, each.down)]
)
WORDS = sorted(set(re.findall(r"[a-z]\w*", TEXT)))
CALLED = sorted(set(re.findall(r"[a-z]\w*(?=\s?\()", TEXT)))
OPERATORS = sorted({*re.findall(r"(?<=\s)[-+*/<>=~!@#%^&|]+(?=\s)", TEXT), "~~", "<>", "<=", ">="})

QUALIFICATION = r"pg_catalog\.(?!pg_\w+\s)"
"""What the loader writes before built-in names. The source itself qualifies the views of the system."""

UTILITIES = {"apply_deferred", "lock_declarations", "lock_for_claims"}
"""Statements that have no expressions and cannot be prepared."""

_TOOLS = """
CREATE FUNCTION trap.create(kind text, name text, command text) RETURNS void LANGUAGE plpgsql AS $f$
DECLARE sequence text := format('trap.%I', left('sprung ' || kind || ' ' || name, 60));
BEGIN
    EXECUTE 'CREATE SEQUENCE IF NOT EXISTS ' || sequence;
    EXECUTE replace(command, '@body', format(
        'LANGUAGE plpgsql AS $t$ BEGIN PERFORM pg_catalog.nextval(%L); RAISE EXCEPTION %L; END $t$',
        sequence, 'sprung: ' || kind || ' ' || replace(name, '%', '%%')));
EXCEPTION  -- PL/pgSQL cannot replace some functions, such as those with internal arguments
    WHEN duplicate_function OR invalid_function_definition OR feature_not_supported OR undefined_object
        OR datatype_mismatch OR duplicate_object OR wrong_object_type OR syntax_error THEN NULL;
END $f$;
CREATE FUNCTION trap.operator(name text, l text, r text, result text) RETURNS void LANGUAGE plpgsql AS $f$
DECLARE function text := 'operator ' || md5(name || l || r);
BEGIN
    PERFORM trap.create('operator', name,
        format('CREATE FUNCTION trap.%I(%s, %s) RETURNS %s @body', function, l, r, result));
    PERFORM trap.create('operator', name, format(
        'CREATE OPERATOR trap.%s (FUNCTION = trap.%I, LEFTARG = %s, RIGHTARG = %s)', name, function, l, r));
END $f$;
SET client_min_messages = error;
"""
_FUNCTIONS = """
SELECT trap.create('function', proname,
    format('CREATE FUNCTION trap.%I(%s) RETURNS %s @body', proname, pg_get_function_arguments(oid),
        CASE WHEN proretset THEN 'SETOF ' ELSE '' END || format_type(prorettype, NULL)))
FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY ($1::text[])
"""
_OPERATORS = """
SELECT trap.operator(
    oprname, format_type(oprleft, NULL), format_type(oprright, NULL), format_type(oprresult, NULL))
FROM pg_operator
WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprname = ANY ($1::text[]) AND oprleft <> 0
"""
_DOMAINS = """
SELECT
    trap.create('type', typname,
        format('CREATE FUNCTION trap.%I(pg_catalog.%I) RETURNS bool @body', 'check ' || typname, typname)),
    trap.create('type', typname, format('CREATE DOMAIN trap.%1$I AS pg_catalog.%1$I CHECK (trap.%2$I(VALUE))',
        typname, 'check ' || typname))
FROM pg_type
WHERE typnamespace = 'pg_catalog'::regnamespace AND typname = ANY ($1::text[]) AND typtype = 'b'
"""
_RESULT = """
SELECT CASE WHEN proretset THEN 'SETOF ' ELSE '' END || format_type(prorettype, NULL)
FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = $1
ORDER BY oid
LIMIT 1
"""
_TYPES = """
SELECT string_agg('pg_catalog.' || typname, ', ' ORDER BY place)
FROM pg_prepared_statements
CROSS JOIN unnest(parameter_types) WITH ORDINALITY AS parameter (type, place)
JOIN pg_type ON pg_type.oid = type
WHERE name = 'typed'
"""


class Call(NamedTuple):
    """A built-in function or operator as a statement calls it."""

    name: str
    arguments: tuple[str, ...]


async def create_traps(connection: asyncpg.Connection, calls: Iterable[Call]) -> None:
    """Create the traps as the current role, which owns the schema ``trap``."""
    await connection.execute("SET search_path = pg_catalog")
    await connection.execute(_TOOLS)
    await connection.fetch(_FUNCTIONS, CALLED)
    await connection.fetch(_OPERATORS, OPERATORS)
    await connection.fetch(_DOMAINS, WORDS)
    await connection.execute('CREATE COLLATION trap."C" FROM pg_catalog."POSIX"')
    for name, arguments in sorted(set(calls)):
        if re.match(r"\w", name):
            result = await connection.fetchval(_RESULT, name)
            if "any" in result:  # unnest() returns the elements of its argument
                result = re.sub(r"any\w+", arguments[0].removesuffix("[]"), result)
            parameters = ", ".join(each.replace(" =>", "") for each in arguments)
            command = f'CREATE FUNCTION trap."{name}"({parameters}) RETURNS {result} @body'
            await connection.execute("SELECT trap.create('function', $1, $2)", name, command)
        else:
            result = "boolean" if set(name) <= set("<>=~") else arguments[0]
            await connection.execute("SELECT trap.operator($1, $2, $3, $4)", name, *arguments, result)
    await connection.execute("RESET search_path; GRANT USAGE ON SCHEMA trap TO PUBLIC")
    await connection.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA trap TO PUBLIC")


SPRUNG = "SELECT sequencename FROM pg_sequences WHERE schemaname = 'trap' AND last_value IS NOT NULL"


def sites(statement: str) -> Iterator[tuple[str, str]]:
    """Yield what precedes and what follows each qualification of a built-in name."""
    for found in re.finditer(rf"(?<!')\b{QUALIFICATION}", statement):
        yield statement[: found.start()], statement[found.end() :]


def statements(schema: str) -> dict[str, str]:
    """Return the named statements that have expressions."""
    return {name: query.text for name, query in load_queries(schema).items() if name not in UTILITIES}


def _of_migrations(schema: str) -> Iterator[str]:
    for name in ("apply", "shape", "verify"):
        for value in vars(import_module(f"pg_scheduler.database.migrations.{name}")).values():
            if isinstance(value, str) and value.lstrip().startswith("SELECT") and "pg_catalog." in value:
                text = qualify(value, schema)
                if not text.rstrip().endswith(" FROM"):  # a part
                    yield text


async def parameter_types(connection: asyncpg.Connection, statement: str) -> str:
    """Return the types of the parameters, in parentheses unless there are none."""
    await connection.execute(f"PREPARE typed AS {statement}")
    types = await connection.fetchval(_TYPES)
    await connection.execute("DEALLOCATE typed")
    return f"({types})" if types else ""


async def calls_of_statements(connection: asyncpg.Connection, schema: str) -> set[Call]:
    """Return the calls of all statements, with the types that the server sees at each call.

    The schema must be migrated. An object that does not exist makes the server name those types.
    """
    calls = set()
    await connection.execute("CREATE SCHEMA missing")
    for text in [*statements(schema).values(), *_of_migrations(schema)]:
        types = await parameter_types(connection, text)
        for before, after in sites(text):
            try:
                await connection.execute(f"PREPARE probe {types} AS {before}missing.{after}")
            except asyncpg.UndefinedFunctionError as error:
                if found := re.match(r"function missing\.(\w+)\((.*)\) does not exist", str(error)):
                    arguments = [each for each in found[2].split(", ") if each]
                    calls.add(Call(found[1], tuple(each.replace("unknown", "text") for each in arguments)))
                elif found := re.match(r"operator does not exist: (.+) missing\.(\S+) (.+)", str(error)):
                    pair = [found[1], found[3]]
                    known = [each for each in pair if each != "unknown"] or ["text"]
                    calls.add(Call(found[2], tuple(each.replace("unknown", known[0]) for each in pair)))
                else:
                    raise
            except (asyncpg.UndefinedObjectError, asyncpg.UndefinedTableError):
                continue  # a type, a collation or a table of the catalogue
    return calls
