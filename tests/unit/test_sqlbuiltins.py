"""Statements name the schema of every built-in object, and keep their meaning."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pg_scheduler
from pg_scheduler.base.sqlbuiltins import qualify_builtins
from tests.support.cases import each_case
from tests.support.inside import load_queries
from tests.support.source import parsed

PACKAGE = Path(pg_scheduler.__file__).parent
PINNED = {"database/migrations/preview.py", "database/migrations/records.py", "database/migrations/repair.py"}
"""Their statements run in the transaction of migrate(), or of its script, whose search path is pg_catalog."""

STATEMENT = re.compile(r"\s*(CALL|COPY|DELETE|DO|INSERT|LOCK|MERGE|SELECT|UPDATE|VALUES|WITH)\b(?!-)")


def short(sql: str) -> str:
    """Return the qualified statement with @ in place of pg_catalog, to be readable here."""
    found = qualify_builtins(sql)
    return re.sub(r"OPERATOR\(pg_catalog\.([^)]+)\)", r"@\1", found).replace("pg_catalog.", "@")


@each_case(
    ("sql", "expected"),
    [
        ("SELECT now(), coalesce(a, f(b))", "SELECT @now(), coalesce(a, @f(b))"),
        ("SELECT extract(epoch FROM now())", "SELECT extract(epoch FROM @now())"),
        ("SELECT count(*), t.*, * FROM t", "SELECT @count(*), t.*, * FROM t"),
        ("SELECT make_interval(secs => $1 * 2)", "SELECT @make_interval(secs => $1 @* 2)"),
        ("SELECT a::text[], b::integer[]", "SELECT a::@text[], b::integer[]"),
        ("SELECT a::double precision, b::tid", "SELECT a::double precision, b::@tid"),
        ("SELECT timestamptz '2000-01-01', interval '1'", "SELECT @timestamptz '2000-01-01', interval '1'"),
        ("SELECT pg_catalog.now()::pg_catalog.text", "SELECT @now()::@text"),
        ("SELECT (a ->> 'b')::jsonb || c", "SELECT (a @->> 'b')::@jsonb @|| c"),
        ("SELECT a + b < c AND d <> ALL ($1)", "SELECT a @+ b @< c AND d @<> ALL ($1)"),
        ("SELECT a * b + c - d", "SELECT a @* b @+ c @- d"),
        ("SELECT a < (b + c), d = (e)[1]", "SELECT a @< (b @+ c), d @= (e)[1]"),
        ("SELECT (a, b) >= (c, d)", "SELECT (a, b) @>= (c, d)"),
        (
            "SELECT a WHERE NOT b = CASE WHEN c = d THEN e + f END",
            "SELECT a WHERE NOT b @= CASE WHEN c @= d THEN e @+ f END",
        ),
        ('SELECT a ORDER BY b COLLATE "C"', 'SELECT a ORDER BY b COLLATE @"C"'),
        ("SELECT 'f(a) = b' AS \"g(c)\" -- h(d)\n", "SELECT 'f(a) = b' AS \"g(c)\" -- h(d)\n"),
        (
            "UPDATE {schema}t SET a = b = c, d = f(e) WHERE g = h",
            "UPDATE {schema}t SET a = b @= c, d = @f(e) WHERE g @= h",
        ),
        ("UPDATE t SET (a, b) = (SELECT c = d, e) FROM f", "UPDATE t SET (a, b) = (SELECT c @= d, e) FROM f"),
        (
            "INSERT INTO {schema}t (a) VALUES ($1) ON CONFLICT (a) DO UPDATE SET b = EXCLUDED.b + c",
            "INSERT INTO {schema}t (a) VALUES ($1) ON CONFLICT (a) DO UPDATE SET b = EXCLUDED.b @+ c",
        ),
        (
            "WITH a (b) AS (VALUES (f(1))), c (d) AS (SELECT FROM a) SELECT FROM c",
            "WITH a (b) AS (VALUES (@f(1))), c (d) AS (SELECT FROM a) SELECT FROM c",
        ),
        (
            "SELECT b FROM ROWS FROM (unnest($1::text[])) WITH ORDINALITY AS a (b, c)",
            "SELECT b FROM ROWS FROM (@unnest($1::@text[])) WITH ORDINALITY AS a (b, c)",
        ),
        ("DELETE FROM a USING b WHERE c = d RETURNING e", "DELETE FROM a USING b WHERE c @= d RETURNING e"),
        ("SELECT max(a) OVER (PARTITION BY b) AS c", "SELECT @max(a) OVER (PARTITION BY b) AS c"),
        ("SELECT NULL = a, TRUE = b", "SELECT NULL @= a, TRUE @= b"),
    ],
)
def test_qualify_builtins_qualifies_functions_operators_types_and_collations(sql: str, expected: str) -> None:
    assert short(sql) == expected


@each_case(
    ("sql", "message"),
    [
        ("SELECT a BETWEEN b AND c", "BETWEEN: write a >= b AND a <= c"),
        ("SELECT a IN (1, 2)", r"IN: write = ANY \(ARRAY"),
        ("SELECT a IS DISTINCT FROM b", r"IS DISTINCT FROM: write \(a = b\) IS NOT TRUE"),
        ("SELECT CASE a WHEN b THEN c END", "CASE a WHEN b: write CASE WHEN a = b"),
        ("SELECT a LIKE 'b'", "LIKE: call starts_with"),
        ("SELECT a FROM b JOIN c USING (d)", "USING: write JOIN ... ON"),
        ("SELECT a ORDER BY b USING <", "USING: write JOIN ... ON"),
        ("SELECT NULLIF (a, b)", "NULLIF: write CASE"),
        ("SELECT a OPERATOR(pg_catalog.=) b", "OPERATOR: write the operator alone"),
        ("SELECT NOW()", "NOW before a parenthesis: write functions in lower case"),
        ("SELECT now ()", "now before a parenthesis: write no space after a function"),
        ("SELECT a b", "b after another name: write AS before an alias"),
        ("SELECT a FROM f() AS g (b text)", "text after another name"),
        ("SELECT a < b + c", r"operator \+: write parentheses around the operation that comes first"),
        ("SELECT a || b * c", r"operator \*: write parentheses"),
        ("SELECT a < b < c", "operator <: write parentheses"),
        ("SELECT a < CASE WHEN b THEN c END + d", r"operator \+: write parentheses"),
        ("SELECT -a", "prefix operator -"),
        ("SELECT a = -b", "operator -"),
        ("SELECT E'a'", "E before a string: write a standard string"),
        ("SELECT $a$b$a$", "unknown syntax"),
        ("SELECT\n    a BETWEEN b AND c", r"line 2: a BETWEEN b AND c"),
    ],
)
def test_qualify_builtins_rejects_syntax_that_follows_the_search_path(sql: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        qualify_builtins(sql)


def literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string but patterns and those that qualify_builtins() receives."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Call(ast.Name("qualify_builtins") | ast.Attribute(ast.Name("re"), "compile")):
                continue
            case ast.Call(ast.Name("execute")):  # a command of a remedy, for people
                continue
            case ast.JoinedStr():
                parts = [each.value if isinstance(each, ast.Constant) else "x" for each in node.values]
                yield node.lineno, "".join(map(str, parts))
            case ast.Constant(str() as text):
                yield node.lineno, text
            case _:
                yield from literals(node)


def statements() -> Iterator[tuple[str, str]]:
    """Yield the place and text of each statement in Python code."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.parent.name == "demo":  # its own database, in which nobody else can create functions
            continue
        name = file.relative_to(PACKAGE).as_posix()
        if name not in PINNED:
            for line, text in literals(parsed(file)):
                if STATEMENT.match(text):
                    yield f"{name}:{line}", text


def test_statements_in_python_code_qualify_built_in_names() -> None:
    found = dict(statements())
    assert {"database/migrations/apply.py", "worker/lease_connection.py", "database/session.py"} <= {
        place.partition(":")[0] for place in found
    }
    wrong = [place for place, text in found.items() if qualify_builtins(text) != text]
    assert wrong == [], "pass these statements to qualify_builtins()"


def test_no_statement_depends_on_standard_conforming_strings() -> None:
    assert [name for name, query in load_queries("public").items() if "\\" in query.text] == []
