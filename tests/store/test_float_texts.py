"""Numbers that the server writes as texts, under any setting of extra_float_digits.

A role or a database may have ``extra_float_digits = -15``. The server then writes a number of the type double
precision with one digit, as text and in JSON: ``floor(random() * 4096)`` as ``2e+03``, a timeout of 3,661.5
seconds as ``4e+03``. A cast to ``numeric`` or ``integer`` before keeps the digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConflictResolution
from pg_scheduler.migrate import migrate
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every
from tests.support.traps import parameter_types, statements

FLOATS = {"700", "701", "1021", "1022"}
"""The types real and double precision, and their arrays."""

WRITERS = """
    SELECT oid::text FROM pg_proc
    WHERE pronamespace = 'pg_catalog'::regnamespace AND (
        proname = ANY (ARRAY [
            'concat', 'concat_ws', 'format', 'quote_literal', 'quote_nullable', 'array_to_string',
            'anytextcat', 'textanycat'
        ])
        OR proname ~ '^(jsonb?_(build|agg|object_agg)|(to|row_to|array_to)_jsonb?$)')
"""
"""The functions that write values of any type as text or JSON."""

FUNCTION = "FROM pg_proc WHERE oid = to_regproc('public.statement')"

EXPRESSIONS = """
    SELECT pg_describe_object('pg_attrdef'::regclass, oid, 0), adbin::text FROM pg_attrdef
    UNION ALL SELECT conname, conbin::text FROM pg_constraint WHERE conbin IS NOT NULL
    UNION ALL SELECT indexrelid::regclass::text, indexprs::text FROM pg_index WHERE indexprs IS NOT NULL
    UNION ALL SELECT indexrelid::regclass::text, indpred::text FROM pg_index WHERE indpred IS NOT NULL
"""
"""The expressions of the tables: defaults, constraints and indexes."""

NAME = f"{__name__}.work"

TYPES = (
    ":vartype",
    ":consttype",
    ":paramtype",
    ":funcresulttype",
    ":opresulttype",
    ":aggtype",
    ":wintype",
    ":casetype",
    ":coalescetype",
    ":minmaxtype",
    ":array_typeid",
    ":refrestype",
    ":resulttype",
)
"""The fields that have the type of the value of an expression."""

Node = list[Any]


def parsed(text: str) -> Node:
    """Return a tree of the server as nested lists: each node and each list is one."""
    stack: list[Node] = [[]]
    for token in re.findall(r"[{}()]|(?:\\.|[^\s{}()\\])+", text):
        if token in "{(":
            stack.append([])
        elif token in "})":
            closed = stack.pop()
            stack[-1].append(closed)
        else:
            stack[-1].append(token)
    [root] = stack
    return root


def field(node: Node, name: str) -> Any:
    """Return what follows the name of a field of a node; None if it has none."""
    return node[node.index(name) + 1] if name in node and node.index(name) + 1 < len(node) else None


def type_of(node: Any) -> str | None:
    """Return the type of the value of an expression; None if its node has none."""
    if not isinstance(node, list):
        return None
    return next((value for name in TYPES if (value := field(node, name)) is not None), None)


def nodes(tree: Any) -> Iterator[Node]:
    """Yield all nodes of a tree."""
    if isinstance(tree, list):
        yield tree
        for part in tree:
            yield from nodes(part)


def float_texts(text: str, writers: set[str]) -> list[str]:
    """Return where a tree of the server makes a text or JSON of a floating-point number."""
    float_writers = []
    for node in nodes(parsed(text)):
        kind = node[0] if node and isinstance(node[0], str) else ""
        if kind == "COERCEVIAIO" and type_of(field(node, ":arg")) in FLOATS:
            float_writers.append(kind)
        elif kind in {"FUNCEXPR", "AGGREF", "OPEXPR"}:
            called = field(node, ":funcid") or field(node, ":aggfnoid") or field(node, ":opfuncid")
            if called in writers:
                arguments = [argument for argument in field(node, ":args") if isinstance(argument, list)]
                if kind == "AGGREF":
                    arguments = [field(argument, ":expr") for argument in arguments]
                float_writers += [f"{kind} {called}" for argument in arguments if type_of(argument) in FLOATS]
    return float_writers


@pytest.mark.slow
async def test_no_statement_writes_a_floating_point_number_as_text(empty_dsn: str) -> None:
    connection = await asyncpg.connect(empty_dsn)
    await migrate(connection, schema="jobs")
    writers = {row[0] for row in await connection.fetch(WRITERS)}
    places_by_name = {}
    for name, text in statements("jobs").items():
        types = await parameter_types(connection, text) or "()"
        await connection.execute(
            f"CREATE FUNCTION public.statement{types} RETURNS void BEGIN ATOMIC {text.rstrip(';')}; END"
        )
        body = await connection.fetchval(f"SELECT prosqlbody::text {FUNCTION}")
        await connection.execute("DROP FUNCTION public.statement")
        if places := float_texts(body, writers):
            places_by_name[name] = places
    for name, tree in await connection.fetch(EXPRESSIONS):
        if places := float_texts(tree, writers):
            places_by_name[name] = places
    await connection.close()
    assert places_by_name == {}


@pytest.mark.parametrize(
    "expression",
    [
        "floor(random() * 4096)::text",
        "'x' || 1.5::real",
        "concat('x', random())",
        "jsonb_build_object('seconds', timeout_seconds)",
        "to_jsonb(ARRAY [timeout_seconds])",
        "jsonb_agg(coalesce(timeout_seconds, 1))",
    ],
)
async def test_search_finds_each_way_to_write_a_floating_point_number(
    pool: asyncpg.Pool, expression: str
) -> None:
    for text, count in ((expression, 1), ("jsonb_build_object('attempt', max(attempt), 'x', 1.5)", 0)):
        async with pool.acquire() as connection, connection.transaction():
            writers = {row[0] for row in await connection.fetch(WRITERS)}
            await connection.execute(
                "CREATE FUNCTION public.statement() RETURNS void BEGIN ATOMIC "
                f"SELECT {text} FROM scheduled_jobs GROUP BY timeout_seconds; END"
            )
            body = await connection.fetchval(f"SELECT prosqlbody::text {FUNCTION}")
            assert bool(float_texts(body, writers)) == bool(count), text
            await connection.execute("DROP FUNCTION public.statement")


@pytest.mark.parametrize("digits", [-15, 3])
async def test_jobs_and_records_keep_their_numbers_where_a_database_rounds_texts(
    empty_dsn: str, digits: int
) -> None:
    seconds = 3661.5
    timeouts: list[float] = []

    async def replace_itself() -> None:
        timeouts.append(await pool.fetchval("SELECT timeout_seconds FROM scheduled_jobs WHERE job_id = 'a'"))
        if len(timeouts) == 1:
            await t.scheduler.enqueue(
                NAME, job_id="a", timeout=seconds, conflict_resolution=ConflictResolution.REPLACE
            )

    async with asyncpg.create_pool(empty_dsn, min_size=0, max_size=4) as pool:
        database = await pool.fetchval("SELECT quote_ident(current_database())")
        await pool.execute(f"ALTER DATABASE {database} SET extra_float_digits = {digits}")
        await pool.expire_connections()
        async with pool.acquire() as connection:
            await migrate(connection)
        async with TestScheduler(pool) as t:
            t.scheduler.register(replace_itself, name=NAME)
            await t.scheduler.enqueue(NAME, job_id="a", timeout=1)
            options = json.dumps({"timeout": seconds})
            added = await pool.fetchval(
                "SELECT scheduler_add_job($1, options => $2::jsonb, execution_time => '2040-01-01')",
                "elsewhere.work",
                options,
            )
            every_day = Every(timedelta(days=1))
            await t.scheduler.schedules.add(
                NAME, every_day, schedule_id="s", jitter=timedelta(seconds=seconds), paused=True
            )
            for _ in range(20):
                await t.scheduler.schedules.resume("s")
                await t.scheduler.schedules.pause("s")
            await t.drain()
        stored = await pool.fetchval("SELECT timeout_seconds FROM scheduled_jobs WHERE job_id = $1", added)
        ids = await pool.fetch("SELECT id FROM scheduler_audit")
        jitters = await pool.fetch(
            "SELECT (details -> 'after' -> 'jitter_seconds')::float FROM scheduler_audit"
            " WHERE action = 'add_schedule'"
        )
    assert timeouts == [1, seconds]
    assert stored == seconds
    assert [tuple(row) for row in jitters] == [(seconds,)]
    assert len(ids) > 40
