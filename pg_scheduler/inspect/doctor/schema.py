"""Whether the tables are those of this release, with all indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pg_scheduler.errors import SchemaError, SchemaMissingError, SchemaTooNewError
from pg_scheduler.inspect.doctor.check import Found, SharedFacts, check
from pg_scheduler.inspect.doctor.codes import FindingCode, Severity
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds
from pg_scheduler.inspect.store.doctor import IndexRow
from pg_scheduler.inspect.texts import command
from pg_scheduler.migrate.shape import LATER_INDEXES
from pg_scheduler.sqltext import quote_identifier

BUILD: Final = "pg-scheduler migrate indexes"


@check(FindingCode.SCHEMA_BEHIND, FindingCode.SCHEMA_NEWER, FindingCode.SCHEMA_DRIFT)
async def _check_schema(facts: SharedFacts, _: Thresholds) -> Found:
    return judge_schema(await facts.store.schema(), await facts.store.doctor.schema_problem())


@check(FindingCode.INDEX_MISSING, FindingCode.INDEX_INVALID)
async def _check_indexes(facts: SharedFacts, _: Thresholds) -> Found:
    schema = await facts.store.schema()
    missing = await facts.missing_indexes()
    return judge_indexes(schema, missing, await facts.indexes())


def judge_schema(schema: str, problem: SchemaError | None) -> Iterator[Finding]:
    """Yield a finding if the tables differ from those of this release."""
    if problem is None:
        return
    evidence, _, remedy = str(problem).partition("; ")
    code = FindingCode.SCHEMA_DRIFT
    if isinstance(problem, SchemaMissingError):
        code, remedy = FindingCode.SCHEMA_BEHIND, command("migrate", "--schema", schema)
    elif isinstance(problem, SchemaTooNewError):
        code = FindingCode.SCHEMA_NEWER
    yield Finding(code, Severity.ERROR, schema, evidence, remedy or None)


def judge_indexes(schema: str, missing: Sequence[str], indexes: Sequence[IndexRow]) -> Iterator[Finding]:
    """Yield invalid indexes, and the missing ones: those of this release that no valid index replaces."""
    invalid = [each for each in indexes if not each.is_valid]
    names = {each.name for each in invalid}
    for name in missing:
        if name not in names:
            severity, effect = _effect_without(name)
            evidence = f"the index {name} does not exist: {effect}"
            yield Finding(FindingCode.INDEX_MISSING, severity, name, evidence, BUILD)
    for index in invalid:
        severity = Severity.WARNING
        evidence = (
            f"the index {index.name} of {index.table} is invalid: no query uses it, but writes maintain it"
        )
        remedy = f"REINDEX INDEX CONCURRENTLY {quote_identifier(schema)}.{quote_identifier(index.name)}"
        if index.name in missing:
            severity, effect = _effect_without(index.name)
            evidence, remedy = f"{evidence}; {effect}", BUILD
        yield Finding(FindingCode.INDEX_INVALID, severity, index.name, evidence, remedy)


def _effect_without(name: str) -> tuple[Severity, str]:
    if name in LATER_INDEXES:
        return Severity.WARNING, "lists of unsuccessful jobs read more rows"
    return Severity.ERROR, "statements read whole tables, and no worker starts"
