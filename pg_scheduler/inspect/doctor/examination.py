"""Make the checks, one after the other, and collect their findings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

import asyncpg

from pg_scheduler.database.faults import LOST_STATEMENTS
from pg_scheduler.errors import ConfigurationError, DatabaseUnavailableError, SchemaError, SchemaMissingError
from pg_scheduler.inspect.doctor import (
    connections,
    database,
    jobs,
    retention,
    schedules,
    table,
    workers,
)
from pg_scheduler.inspect.doctor.check import Check, SharedFacts
from pg_scheduler.inspect.doctor.codes import FindingCode
from pg_scheduler.inspect.doctor.findings import Diagnosis, Finding, Thresholds, UnmadeCheck
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.texts import command

MODULES: Final = (table, workers, jobs, database, connections, schedules, retention)

CHECKS: Final[tuple[Check, ...]] = tuple(
    value for module in MODULES for value in vars(module).values() if isinstance(value, Check)
)
"""Every check. Each code belongs to one check."""


async def examine(store: InspectionStore, only: Iterable[str], thresholds: Thresholds) -> Diagnosis:
    """Make the checks of these codes, or all checks if none is given, and return the diagnosis.

    A check that the role may not make, or that the server cancels, is listed as not made. Other errors are
    raised.
    """
    codes = read_codes(only)
    # The checks share facts, so that each is read once.
    facts = SharedFacts(store)
    findings: list[Finding] = []
    not_made: list[UnmadeCheck] = []
    for check in CHECKS:
        if not codes & set(check.codes):
            continue
        try:
            results = [result async for result in check.run(facts, thresholds)]
        except SchemaMissingError as error:
            reason = await _describe_missing(store, error)
            not_made += [UnmadeCheck(code, reason) for code in check.codes]
        except SchemaError as error:
            not_made += [UnmadeCheck(code, str(error)) for code in check.codes]
        except ConfigurationError as error:
            # A pooler that loses prepared statements prevents the check. Any other cause is raised.
            if not isinstance(error.__cause__, LOST_STATEMENTS):
                raise
            not_made += [UnmadeCheck(code, str(error)) for code in check.codes]
        except DatabaseUnavailableError as error:
            # The server cancels statements that take too long. Any other cause is raised.
            if not isinstance(error.__cause__, asyncpg.QueryCanceledError):
                raise
            not_made += [UnmadeCheck(code, f"the server cancelled it: {error}") for code in check.codes]
        else:
            for result in results:
                if isinstance(result, Finding):
                    findings.append(result)
                else:
                    not_made.append(result)
    return Diagnosis.of(findings, codes, not_made)


async def _describe_missing(store: InspectionStore, error: SchemaMissingError) -> str:
    """Return why checks cannot be made on a schema that is not migrated, as one text for all checks."""
    try:
        schema = await store.schema()
    except SchemaMissingError:
        return str(error)
    return f"schema {schema!r} has no tables, or old ones; execute {command('migrate', '--schema', schema)}"


def read_codes(texts: Iterable[str]) -> set[FindingCode]:
    """Return the codes of these texts, such as ``late`` or ``WORKER_NONE``; all codes if there is no text.

    Raises:
        ValueError: A code is unknown.
    """
    codes = set[FindingCode]()
    for text in texts:
        name = text.strip().upper().replace("_", "-")
        if name not in list(FindingCode):
            near = difflib.get_close_matches(name, list(FindingCode), 1)
            hint = f"did you mean {near[0]}?" if near else f"codes: {', '.join(FindingCode)}"
            raise ValueError(f"unknown code {text!r}; {hint}")
        codes.add(FindingCode(name))
    return codes or set(FindingCode)
