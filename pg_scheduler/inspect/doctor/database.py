"""Check whether the server, its clock and settings, and the rights of the role suit a worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from pg_scheduler.base.sqltext import quote_identifier
from pg_scheduler.base.text.remedies import RemedyStep, execute, execute_all, joined
from pg_scheduler.inspect.doctor.check import (
    CheckResults,
    SharedFacts,
    check,
    error,
    finding,
    info,
    warning,
)
from pg_scheduler.inspect.doctor.codes import FindingCode, Severity
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds, UnmadeCheck
from pg_scheduler.inspect.doctor.server_faults import SERVER_FAULTS
from pg_scheduler.inspect.store.doctor import SettingRow
from pg_scheduler.inspect.store.grants import Role, default_name, grant_statements, privileges_of
from pg_scheduler.inspect.store.server import PRIVILEGES, HolderRow, Ping, RightsRow, RoleRow
from pg_scheduler.inspect.texts import counted, length, on_host, short
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.worker_report import ReportedHealth
from pg_scheduler.migrate import TABLES

MIN_VERSION: Final = 140_000
MIN_TIMEOUT_MS: Final = 60_000
TIMEOUTS: Final = ("statement_timeout", "transaction_timeout")
ISOLATION: Final = "default_transaction_isolation"

HALF: Final = 0.5
"""The share of its queue of notifications in use from which on the server logs warnings."""


@check(FindingCode.DB_VERSION)
async def _check_version(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether the release of PostgreSQL is new enough and has no known faults."""
    settings = await facts.once(facts.store.doctor.settings)
    for problem in judge_version(settings["server_version_num"].value, settings["server_version"].value):
        yield problem


@check(FindingCode.DB_COPY)
async def _check_copy(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether this database is a copy of the one in which workers used these tables."""
    database, recorded = await facts.store.identity.read()
    if recorded is not None and not database.is_same(recorded):
        yield error(
            FindingCode.DB_COPY,
            database.name,
            f"workers used these tables in another database, {recorded.name!r}; none starts here",
            execute("pg-scheduler adopt", "if this database replaces that one"),
            execute("pg-scheduler adopt --hold", "to pause all tasks and schedules"),
        )


@check(FindingCode.DB_RTT, FindingCode.CLOCK)
async def _check_clocks(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check how long a round trip to the server takes, and whether clocks differ."""
    ping = await facts.store.server.ping()
    if ping.seconds >= thresholds.round_trip_s:
        yield warning(
            FindingCode.DB_RTT,
            "server",
            f"a statement takes {ping.seconds * 1000:.1f} ms at least, and each claim takes one",
            "run the workers closer to the server, in its region and zone",
        )
    workers = await facts.once(facts.store.workers.list_workers)
    for problem in judge_clocks(ping, workers, await facts.store.statements.read_clock(), thresholds.clock_s):
        yield problem


@check(FindingCode.XMIN_HELD)
async def _check_holders(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether transactions, slots or standbys have kept dead rows for long."""
    holders = await facts.store.server.holders()
    for problem in judge_holders(holders, thresholds.held_s, thresholds.held_transactions):
        yield problem
    role = await facts.once(facts.store.server.role)
    if not role.sees_all:
        reason = (
            f"the role {role.name!r} may not see the transactions of other roles; as a superuser: "
            f"GRANT pg_read_all_stats TO {quote_identifier(role.name)}"
        )
        yield UnmadeCheck(FindingCode.XMIN_HELD, reason)


@check(FindingCode.NOTIFY_QUEUE)
async def _check_notifications(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether the server's queue of notifications fills up."""
    used = await facts.store.server.notification_queue()
    for problem in judge_notifications(used, thresholds.notify_queue):
        yield problem


@check(FindingCode.TIMEOUTS, FindingCode.ISOLATION)
async def _check_settings(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether settings of the role interrupt or disturb the statements of a worker."""
    role = await facts.once(facts.store.server.role)
    settings = await facts.once(facts.store.doctor.settings)
    for name in TIMEOUTS:
        setting = settings.get(name)
        # The value is in milliseconds. A timeout of 0 is none.
        if setting is not None and 0 < int(setting.value) < MIN_TIMEOUT_MS:
            yield warning(
                FindingCode.TIMEOUTS,
                name,
                f"{name} is {int(setting.value) / 1000:g} s for the role {role.name!r} (from: "
                f"{setting.source}); the vacuum and migrations have longer statements",
                _step_to_set(role, setting, name, "60s"),
            )
    isolation = settings.get(ISOLATION)
    if isolation is not None and isolation.value != "read committed":
        yield warning(
            FindingCode.ISOLATION,
            ISOLATION,
            f"{ISOLATION} is {isolation.value!r} for the role {role.name!r} (from: {isolation.source}); "
            "single statements of concurrent calls would conflict",
            _step_to_set(role, isolation, ISOLATION, "read committed"),
        )


def judge_version(number: str, version: str) -> Iterator[Finding]:
    """Yield a finding if PostgreSQL is too old, or if its minor release has known faults.

    ``number`` is the version as a number, such as 160004 for PostgreSQL 16.4, and ``version`` is its text.
    """
    major, minor = divmod(int(number), 10_000)
    if int(number) < MIN_VERSION:
        evidence = f"the server is PostgreSQL {version}; the library needs 14"
        yield error(FindingCode.DB_VERSION, "server", evidence, "upgrade PostgreSQL to 14 or newer")
    for fault in SERVER_FAULTS:
        # The correction is a release, such as 14.4. It is None if the server does not have the fault.
        if correction := fault.correction(major, minor):
            yield warning(
                FindingCode.DB_VERSION,
                f"before {correction}",
                f"the server is PostgreSQL {version}; before {correction}, {fault.effect}",
                f"upgrade PostgreSQL to the newest release of {major}, {correction} at least",
                *fault.repair,
            )


def judge_clocks(
    ping: Ping | None, workers: Sequence[Worker], now: datetime | None, max_offset_s: float
) -> Iterator[Finding]:
    """Yield findings about clocks that are apart by this many seconds or more.

    The clock of this machine or of a worker's host differs from that of the server, or the server's clock was
    set back after a heartbeat. Without a ping or without ``now``, the checks that need it are left out.

    Args:
        ping: The clocks of this machine and of the server, read in one round trip.
        workers: All workers. A live one reports how far its clock is ahead of that of the server.
        now: The time of the server.
        max_offset_s: The difference in seconds from which on there is a finding.
    """
    # The server read its clock at an unknown moment of the round trip, so up to half of it may be an error.
    if ping is not None and abs(ping.ahead_s) >= max_offset_s + ping.seconds / 2:
        direction = "ahead of" if ping.ahead_s > 0 else "behind"
        yield warning(
            FindingCode.CLOCK,
            "this machine",
            f"the clock of this machine is {length(abs(ping.ahead_s))} {direction} that of the server",
            "synchronize both clocks by NTP",
        )
    for worker in workers:
        health = ReportedHealth.of(worker.health)
        offset_s = health.clock_offset_s if worker.is_alive else None
        # The server wrote the time of the heartbeat by its own clock.
        beat_ahead_s = 0.0 if now is None else (worker.last_beat - now).total_seconds()
        if now is not None and beat_ahead_s > max_offset_s:
            yield warning(
                FindingCode.CLOCK,
                worker.worker_id,
                f"the last heartbeat of {on_host(worker)} lies {length(beat_ahead_s)} in the "
                "future: the clock of the server was set back",
                "synchronize the server's clock by NTP",
                "the worker corrects its lease by itself",
            )
        elif offset_s is not None and abs(offset_s) >= max_offset_s:
            direction = "ahead of" if offset_s > 0 else "behind"
            yield warning(
                FindingCode.CLOCK,
                worker.worker_id,
                f"the clock of {on_host(worker)} is {length(abs(offset_s))} {direction} that of the server; "
                "due times that jobs and callers compute there are wrong by that",
                "synchronize the clock of that host by NTP",
            )


def judge_holders(holders: Sequence[HolderRow], seconds: float, transactions: int) -> Iterator[Finding]:
    """Yield a finding for each holder (a transaction, a slot or a standby) that has kept dead rows for long.

    A holder is old from the age ``seconds`` on. Slots and standbys have no age in seconds, so for them the
    age ``transactions`` counts: how many transactions have begun since then.
    """
    for holder in holders:
        if holder.seconds is None:
            is_old = holder.transactions >= transactions
            age = counted(holder.transactions, "transaction")
        else:
            is_old = holder.seconds >= seconds
            age = length(holder.seconds)
        if not is_old:
            continue
        application = f" ({holder.application})" if holder.application else ""
        statement = f", last statement: {short(holder.statement)}" if holder.statement else ""
        yield warning(
            FindingCode.XMIN_HELD,
            f"{holder.kind} {holder.subject}",
            f"{holder.kind} {holder.subject}{application} has kept dead rows for {age}{statement}",
            *_release(holder),
        )


def judge_notifications(used: float, most: float) -> Iterator[Finding]:
    """Yield a finding if the share ``used`` of the queue of notifications is more than ``most``."""
    if used > most:
        yield finding(
            FindingCode.NOTIFY_QUEUE,
            Severity.ERROR if used >= HALF else Severity.WARNING,
            "server",
            f"{used:.2%} of the queue of notifications is in use: a session that listens, in any database of "
            "the server, does not end its transaction or does not read",
            "end the oldest transactions in pg_stat_activity",
            "when half is in use, the log of the server has the process",
        )


def _release(holder: HolderRow) -> Iterator[str | RemedyStep]:
    """Yield the steps after which the server can remove the dead rows that this holder keeps."""
    literal = "'" + holder.subject.replace("'", "''") + "'"
    # The subject of a transaction is the process id of its session.
    if holder.kind == "transaction":
        yield execute(f"SELECT pg_catalog.pg_terminate_backend({holder.subject})")
    elif holder.kind == "prepared":
        yield execute(f"COMMIT PREPARED {literal}")
        yield joined(" ", execute(f"ROLLBACK PREPARED {literal}", before="or"))
    elif holder.kind == "inactive slot":
        yield execute(
            f"SELECT pg_drop_replication_slot({literal})", before="if its consumer does not return:"
        )
    else:
        yield "end the long query on the standby, or set hot_standby_feedback = off there"


def _step_to_set(role: RoleRow, setting: SettingRow, name: str, value: str) -> str | RemedyStep:
    """Return the step of a remedy that changes the value of a setting for the sessions of the role."""
    # A value that the client sends when it connects takes precedence over that of the role.
    if setting.source == "client":
        return f"remove {name} from server_settings= of the pool, or from the options of its DSN"
    role_in_database = f"{quote_identifier(role.name)} IN DATABASE {quote_identifier(role.database)}"
    return execute(f"ALTER ROLE {role_in_database} SET {name} = '{value}'")


OTHER_ROLES: Final = (Role.EXPORTER, Role.VIEWER, Role.OPERATOR, Role.ADMIN)
"""The roles whose connections run the doctor too."""


@check(FindingCode.RIGHTS)
async def _check_rights(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether the role has the privileges of a worker, and no others."""
    rights = await facts.store.server.rights(TABLES)
    schema, role = await facts.store.schema(), await facts.once(facts.store.server.role)
    missing = missing_privileges(rights)
    # Only a role that lacks nothing is examined for privileges that a worker does not need.
    if not any(missing.values()):
        for problem in _judge_excess(schema, role, rights):
            yield problem
        return
    unreadable = sum("SELECT" in privileges for privileges in missing.values())
    severity = Severity.ERROR if unreadable else Severity.WARNING
    evidence = describe_missing(schema, role, missing)
    if unreadable:
        evidence += f" and may not read {unreadable} of them, so checks are not made"
    # The role may be one for people or for metrics, which lacks privileges of a worker on purpose.
    granted = {right.table: set(right.privileges) for right in rights}
    matching_roles = [other_role for other_role in OTHER_ROLES if _is_exactly(other_role, granted)]
    if matching_roles:
        severity = Severity.INFO
        evidence += f"; it has those of the role {matching_roles[0].value}, and no others"
    grants = execute_all(missing_grants(schema, role, missing))
    yield finding(FindingCode.RIGHTS, severity, role.name, evidence, *grants)


def missing_privileges(rights: Sequence[RightsRow]) -> dict[str, set[str]]:
    """Return for each table the privileges of a worker that the role lacks; an empty set if it lacks none."""
    needed = privileges_of(Role.WORKER)
    return {right.table: needed[right.table] - set(right.privileges) for right in rights}


def describe_missing(schema: str, role: RoleRow, missing: Mapping[str, set[str]]) -> str:
    """Return a text that states on how many tables a role lacks privileges of a worker."""
    tables = counted(sum(map(bool, missing.values())), "table")
    return f"the role {role.name!r} lacks privileges of a worker on {tables} of schema {schema!r}"


def missing_grants(schema: str, role: RoleRow, missing: Mapping[str, set[str]]) -> list[str]:
    """Return the statements that give a role the privileges that it lacks."""
    quoted_schema = quote_identifier(schema)
    grantee = quote_identifier(role.name)
    grants = [f"GRANT USAGE ON SCHEMA {quoted_schema} TO {grantee}"]
    grants += [
        f"GRANT {privileges} ON {tables} TO {grantee}"
        for privileges, tables in _grouped(quoted_schema, missing)
    ]
    return grants


def _judge_excess(schema: str, role: RoleRow, rights: Sequence[RightsRow]) -> Iterator[Finding]:
    """Yield a finding if the role may do more than a worker needs.

    Further privileges can be revoked. An owner or a superuser needs no privileges, so for it the remedy is
    another role for the workers.
    """
    quoted_schema = quote_identifier(schema)
    needed = privileges_of(Role.WORKER)
    excess_by_table = {right.table: set(right.privileges) - needed[right.table] for right in rights}
    may_create = any(right.may_create for right in rights)
    owned = sum(right.is_owned for right in rights)
    if role.is_superuser or owned:
        excess = "is a superuser" if role.is_superuser else f"owns {counted(owned, 'table')}"
        separate_role = default_name(Role.WORKER, schema)
        statements = [f"CREATE ROLE {quote_identifier(separate_role)} LOGIN"]
        statements += grant_statements(Role.WORKER, schema, separate_role)
        steps = execute_all(
            statements, before="migrate with this role, and connect the workers with one of their own:"
        )
    elif may_create or any(excess_by_table.values()):
        names = sorted({privilege for privileges in excess_by_table.values() for privilege in privileges})
        # The role may have the privileges because everyone (PUBLIC) has them.
        grantees = f"{quote_identifier(role.name)}, PUBLIC"
        statements = [
            f"REVOKE {privileges} ON {tables} FROM {grantees}"
            for privileges, tables in _grouped(quoted_schema, excess_by_table)
        ]
        if may_create:
            names.append("CREATE ON SCHEMA")
            statements.append(f"REVOKE CREATE ON SCHEMA {quoted_schema} FROM {grantees}")
        excess = f"has further privileges: {', '.join(names)}"
        steps = execute_all(statements)
    else:
        return
    yield info(
        FindingCode.RIGHTS,
        role.name,
        f"the role {role.name!r} {excess}; a worker needs to read and write rows only",
        *steps,
    )


def _is_exactly(role: Role, granted: Mapping[str, set[str]]) -> bool:
    """Return whether the granted privileges are those that a role needs, and no others."""
    needed = privileges_of(role)
    return all(privileges == needed.get(table, set()) for table, privileges in granted.items())


def _grouped(quoted_schema: str, rights: Mapping[str, Iterable[str]]) -> list[tuple[str, str]]:
    """Group tables that have the same privileges in ``rights``, so that one statement can name them.

    Each pair has the list of privileges and the list of tables as SQL. Tables without privileges are left
    out.
    """
    groups: dict[str, list[str]] = {}
    for table, privileges in rights.items():
        names = ", ".join(privilege for privilege in PRIVILEGES if privilege in privileges)
        if names:
            groups.setdefault(names, []).append(f"{quoted_schema}.{table}")
    return [(names, ", ".join(tables)) for names, tables in groups.items()]
