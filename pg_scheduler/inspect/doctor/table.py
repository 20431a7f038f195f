"""Check whether the tables and indexes are those of this release, and whether claims from them are cheap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from pg_scheduler.base.sqltext import quote_identifier
from pg_scheduler.base.text.numbers import two_digits
from pg_scheduler.base.text.remedies import execute, then
from pg_scheduler.database.migrations.shape import LATER_INDEXES, shipped_storage
from pg_scheduler.errors import SchemaMissingError, SchemaTooNewError
from pg_scheduler.inspect.doctor.check import CheckResults, SharedFacts, check, error, finding, warning
from pg_scheduler.inspect.doctor.codes import FindingCode, Severity
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds
from pg_scheduler.inspect.store.doctor import IndexRow, SettingRow, TableRow
from pg_scheduler.inspect.texts import command, instant, listed

BUILD: Final = execute("pg-scheduler migrate indexes")


@check(FindingCode.SCHEMA_BEHIND, FindingCode.SCHEMA_NEWER, FindingCode.SCHEMA_DRIFT)
async def _check_schema(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether the tables are those of this release."""
    schema = await facts.store.schema()
    problem = await facts.once(facts.store.doctor.schema_problem)
    if problem is None:
        return
    # Any error but the two below counts as a table that differs from its migrations.
    code = FindingCode.SCHEMA_DRIFT
    steps = problem.steps
    if isinstance(problem, SchemaMissingError):
        code = FindingCode.SCHEMA_BEHIND
        steps = (execute(command("migrate", "--schema", schema)),)
    elif isinstance(problem, SchemaTooNewError):
        code = FindingCode.SCHEMA_NEWER
    yield finding(code, Severity.ERROR, schema, problem.problem, *steps)


@check(FindingCode.INDEX_MISSING, FindingCode.INDEX_INVALID)
async def _check_indexes(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether the indexes of this release exist, and whether every index is valid."""
    await facts.require_own_tables()
    schema = await facts.store.schema()
    missing = await facts.once(facts.store.doctor.find_missing_indexes)
    indexes = await facts.once(facts.store.doctor.indexes)
    invalid = [index for index in indexes if not index.is_valid]
    # find_missing_indexes() also returns the invalid ones, which have a finding of their own.
    invalid_names = {index.name for index in invalid}
    for name in missing:
        if name not in invalid_names:
            severity, effect = _effect_without(name)
            evidence = f"the index {name} does not exist: {effect}"
            yield finding(FindingCode.INDEX_MISSING, severity, name, evidence, BUILD)
    for index in invalid:
        severity = Severity.WARNING
        evidence = (
            f"the index {index.name} of {index.table} is invalid: no query uses it, but writes maintain it"
        )
        name = f"{quote_identifier(schema)}.{quote_identifier(index.name)}"
        step = execute(f"REINDEX INDEX CONCURRENTLY {name}")
        # An index of this release is built by its own command. Others are indexes of the application.
        if index.name in missing:
            severity, effect = _effect_without(index.name)
            evidence = f"{evidence}; {effect}"
            step = BUILD
        yield finding(FindingCode.INDEX_INVALID, severity, index.name, evidence, step)


def _effect_without(name: str) -> tuple[Severity, str]:
    """Return how severe it is that an index is missing or invalid, and the effect of that."""
    if name in LATER_INDEXES:
        return Severity.WARNING, "lists of unsuccessful jobs read more rows"
    return Severity.ERROR, "statements read whole tables, and no worker starts"


CHANGED_BY_CLAIMS: Final = frozenset(
    {"status", "attempt", "worker_id", "started_at", "last_heartbeat", "lease_until"}
)
"""Columns of ``scheduled_jobs`` that claims and heartbeats change."""

SUMMARIZING_IS_HOT: Final = 160_000
"""The version of PostgreSQL from which a BRIN index does not prevent HOT updates."""

FREEZE_MARGIN: Final = 1.2
"""Multiple of the ``..._freeze_max_age`` settings from which on autovacuum obviously cannot keep up."""

WRAPAROUND_AGE: Final = 1_500_000_000
"""Transactions or multixacts that are an error: at 2,100,000,000 the server rejects further ones."""

FACTOR: Final = "autovacuum_vacuum_scale_factor"
THRESHOLD: Final = "autovacuum_vacuum_threshold"

FREEZE_AGE: Final = "autovacuum_freeze_max_age"
MULTIXACT_AGE: Final = "autovacuum_multixact_freeze_max_age"


@check(FindingCode.HOT_LOST)
async def _check_hot(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether indexes prevent that claims are HOT updates, which write to no index."""
    await facts.require_own_tables()
    schema = await facts.store.schema()
    settings = await facts.once(facts.store.doctor.settings)
    tables = await facts.once(facts.store.doctor.tables)
    indexes = await facts.once(facts.store.doctor.indexes)
    for problem in judge_hot(schema, indexes, tables, int(settings["server_version_num"].value)):
        yield problem


@check(FindingCode.AUTOVACUUM)
async def _check_autovacuum(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether autovacuum has the settings of this release."""
    await facts.require_own_tables()
    schema = await facts.store.schema()
    settings = await facts.once(facts.store.doctor.settings)
    tables = await facts.once(facts.store.doctor.tables)
    for problem in judge_autovacuum(schema, tables, settings):
        yield problem
    for problem in _judge_factors(schema, tables, thresholds.dead_rows):
        yield problem


@check(FindingCode.BLOAT, FindingCode.WRAPAROUND)
async def _check_tables(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether autovacuum keeps up: with dead rows, and with rows that are old and not frozen."""
    schema = await facts.store.schema()
    settings = await facts.once(facts.store.doctor.settings)
    tables = await facts.once(facts.store.doctor.tables)
    # Unless the caller gives an age, it follows from that at which autovacuum freezes a table.
    max_transactions = thresholds.freeze_age
    if max_transactions is None:
        max_transactions = int(int(settings[FREEZE_AGE].value) * FREEZE_MARGIN)
    max_multixacts = thresholds.multixact_age
    if max_multixacts is None:
        max_multixacts = int(int(settings[MULTIXACT_AGE].value) * FREEZE_MARGIN)
    for table in tables:
        # Many dead rows are normal in a table that has even more live ones.
        if table.dead <= thresholds.dead_rows or table.dead <= table.live:
            continue
        yield warning(
            FindingCode.BLOAT,
            table.name,
            f"about {table.dead:,} dead rows and {table.live:,} live ones in {table.bytes / 1e6:,.0f} MB; "
            f"last vacuum: {_describe_vacuum(table.vacuumed_at)}",
            "resolve XMIN-HELD and AUTOVACUUM first",
            then(execute(f"VACUUM (ANALYZE) {_quoted(schema, table.name)}")),
        )
    for table in tables:
        for age, max_age, unit in (
            (table.freeze_age, max_transactions, "transactions"),
            (table.multixact_age, max_multixacts, "multixacts"),
        ):
            if age > max_age:
                yield finding(
                    FindingCode.WRAPAROUND,
                    Severity.ERROR if age > WRAPAROUND_AGE else Severity.WARNING,
                    table.name,
                    f"{table.name} has rows that are {age:,} {unit} old and not frozen; the server stops at "
                    "2,100,000,000",
                    "resolve XMIN-HELD first",
                    then(execute(f"VACUUM (FREEZE) {_quoted(schema, table.name)}")),
                )


def judge_hot(
    schema: str, indexes: Sequence[IndexRow], tables: Sequence[TableRow], server_version: int
) -> Iterator[Finding]:
    """Yield a finding for each index that contains a column which claims change.

    Because of such an index, a claim is no HOT update: it writes to every index of the table.
    """
    jobs = next((table for table in tables if table.name == "scheduled_jobs"), None)
    ratio = ""
    if jobs is not None and jobs.updates:
        ratio = f"; {jobs.hot_updates / jobs.updates:.0%} of the table's updates were HOT"
    for index in indexes:
        changed_columns = sorted(CHANGED_BY_CLAIMS.intersection(index.columns))
        allows_hot = index.method == "brin" and server_version >= SUMMARIZING_IS_HOT
        if index.table != "scheduled_jobs" or not changed_columns or allows_hot:
            continue
        statement = f"DROP INDEX CONCURRENTLY {quote_identifier(schema)}.{quote_identifier(index.name)}"
        # The index of a constraint cannot be dropped without the constraint.
        if index.constraint is not None:
            table = _quoted(schema, index.table)
            statement = f"ALTER TABLE {table} DROP CONSTRAINT {quote_identifier(index.constraint)}"
        yield warning(
            FindingCode.HOT_LOST,
            index.name,
            f"the index {index.name} uses {listed(changed_columns)}, which each claim and heartbeat changes, "
            f"so each writes to every index{ratio}",
            execute(statement),
        )


def judge_autovacuum(
    schema: str, tables: Sequence[TableRow], settings: Mapping[str, SettingRow]
) -> Iterator[Finding]:
    """Yield a finding for each setting of the server that turns autovacuum off.

    Also yield one for each table that turns it off, or that lacks storage settings of this release.
    """
    for name in ("autovacuum", "track_counts"):
        if name in settings and settings[name].value == "off":
            yield error(
                FindingCode.AUTOVACUUM,
                name,
                f"the server has {name} = off, so it never removes dead rows",
                execute(f"ALTER SYSTEM SET {name} = on"),
                execute("SELECT pg_reload_conf()"),
            )
    for table in tables:
        # The storage settings that migrations give to the table. A setting may have another value now, so
        # only missing ones are a finding.
        shipped = shipped_storage().get(table.name, {})
        to_set = {name: value for name, value in shipped.items() if name not in table.options}
        if table.options.get("autovacuum_enabled", "on") not in {"on", "true", "yes", "1"}:
            to_set["autovacuum_enabled"] = "on"
        if to_set:
            values = ", ".join(f"{name} = {value}" for name, value in sorted(to_set.items()))
            yield warning(
                FindingCode.AUTOVACUUM,
                table.name,
                f"{table.name} lacks the storage settings {values}",
                execute(f"ALTER TABLE {_quoted(schema, table.name)} SET ({values})"),
            )


def _judge_factors(schema: str, tables: Sequence[TableRow], dead_rows: int) -> Iterator[Finding]:
    """Yield a finding for each table that is vacuumed only if it has more dead rows than ``dead_rows``.

    The scale factor of a table multiplies the number of all its rows. Many of them may be finished jobs.
    """
    for table in tables:
        storage = shipped_storage().get(table.name, {})
        shipped = {name: storage.get(name) for name in (FACTOR, THRESHOLD)}
        # judge_autovacuum() reports an option that the table lacks. Here it counts as 0.
        factor = float(table.options.get(FACTOR, "0"))
        threshold = float(table.options.get(THRESHOLD, "0"))
        # Autovacuum begins when a table has this number of dead rows.
        vacuumed_from = round(threshold + factor * table.live)
        # If migrations do not set both options for a table, there are no values to set again.
        if None in shipped.values() or vacuumed_from <= dead_rows:
            continue
        values = ", ".join(f"{name} = {value}" for name, value in shipped.items())
        yield finding(
            FindingCode.AUTOVACUUM,
            Severity.WARNING,
            table.name,
            f"{table.name} has about {table.live:,} rows in {two_digits(table.bytes / 1e9)} GB, "
            "finished ones too: "
            f"{FACTOR} = {factor:g} and {THRESHOLD} = {threshold:g} mean a vacuum at {vacuumed_from:,} dead "
            "rows",
            execute(f"ALTER TABLE {_quoted(schema, table.name)} SET ({values})"),
        )


def _quoted(schema: str, table: str) -> str:
    """Return a table of this library with its schema, as SQL. Its name needs no quotes."""
    return f"{quote_identifier(schema)}.{table}"


def _describe_vacuum(at: datetime | None) -> str:
    """Return when a table was last vacuumed, as a text; ``at`` is None if that is unknown."""
    return "none since the statistics were reset" if at is None else instant(at)
