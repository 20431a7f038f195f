"""Whether the server, its clock, its settings and old transactions suit the Scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from pg_scheduler.inspect.doctor.check import Found, SharedFacts, check
from pg_scheduler.inspect.doctor.codes import FindingCode, Severity
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds, UnmadeCheck
from pg_scheduler.inspect.store.doctor import SettingRow
from pg_scheduler.inspect.store.server import HolderRow, Ping, RoleRow
from pg_scheduler.inspect.texts import length, short
from pg_scheduler.jobs.model import Worker
from pg_scheduler.sqltext import quote_identifier

MIN_VERSION: Final = 140_000
MIN_TIMEOUT_MS: Final = 60_000
TIMEOUTS: Final = ("statement_timeout", "transaction_timeout")
ISOLATION: Final = "default_transaction_isolation"
SETTINGS: Final = (*TIMEOUTS, ISOLATION)

HALF: Final = 0.5
"""The share of its queue of notifications from which on the server logs warnings."""


@check(FindingCode.DB_VERSION)
async def _check_version(facts: SharedFacts, _: Thresholds) -> Found:
    settings = await facts.store.doctor.settings(["server_version_num", "server_version"])
    return judge_version(settings["server_version_num"].value, settings["server_version"].value)


@check(FindingCode.DB_RTT, FindingCode.CLOCK)
async def _check_clocks(facts: SharedFacts, thresholds: Thresholds) -> Found:
    ping = await facts.store.server.ping()
    found = [
        *judge_round_trip(ping, thresholds.round_trip_s),
        *judge_clocks(ping, [], None, thresholds.clock_s),
    ]
    workers = await facts.workers()
    return [*found, *judge_clocks(None, workers, await facts.store.schedules.now(), thresholds.clock_s)]


@check(FindingCode.XMIN_HELD)
async def _check_holders(facts: SharedFacts, thresholds: Thresholds) -> Found:
    holders = await facts.store.server.holders()
    found: list[Finding | UnmadeCheck] = [
        *judge_holders(holders, thresholds.held_s, thresholds.held_transactions)
    ]
    role = await facts.role()
    if not role.sees_all:
        reason = (
            f"the role {role.name!r} may not see the transactions of other roles; as a superuser: "
            f"GRANT pg_read_all_stats TO {quote_identifier(role.name)}"
        )
        found.append(UnmadeCheck(FindingCode.XMIN_HELD, reason))
    return found


@check(FindingCode.NOTIFY_QUEUE)
async def _check_notifications(facts: SharedFacts, thresholds: Thresholds) -> Found:
    return judge_notifications(await facts.store.server.notification_queue(), thresholds.notify_queue)


@check(FindingCode.TIMEOUTS, FindingCode.ISOLATION)
async def _check_settings(facts: SharedFacts, _: Thresholds) -> Found:
    return judge_settings(await facts.role(), await facts.store.doctor.settings(SETTINGS))


def judge_version(number: str, version: str) -> Iterator[Finding]:
    """Yield a finding if PostgreSQL is too old."""
    if int(number) < MIN_VERSION:
        evidence = f"the server is PostgreSQL {version}; the library needs 14"
        yield Finding(
            FindingCode.DB_VERSION, Severity.ERROR, "server", evidence, "upgrade PostgreSQL to 14 or newer"
        )


def judge_round_trip(ping: Ping, most_s: float) -> Iterator[Finding]:
    """Yield a finding if a round trip to the server takes ``most_s`` seconds or longer."""
    if ping.seconds >= most_s:
        yield Finding(
            FindingCode.DB_RTT,
            Severity.WARNING,
            "server",
            f"a statement takes {ping.seconds * 1000:.1f} ms at least, and each claim takes one",
            "run the workers closer to the server, in its region and zone",
        )


def judge_clocks(
    ping: Ping | None, workers: Sequence[Worker], now: datetime | None, most_s: float
) -> Iterator[Finding]:
    """Yield clocks that differ: of this machine, or of the server since a heartbeat."""
    if ping is not None and abs(ping.ahead_s) >= most_s + ping.seconds / 2:
        direction = "ahead of" if ping.ahead_s > 0 else "behind"
        yield Finding(
            FindingCode.CLOCK,
            Severity.WARNING,
            "this machine",
            f"the clock of this machine is {length(abs(ping.ahead_s))} {direction} that of the server",
            "synchronize both clocks by NTP",
        )
    for worker in workers:
        if now is not None and (ahead := (worker.last_beat - now).total_seconds()) > most_s:
            yield Finding(
                FindingCode.CLOCK,
                Severity.WARNING,
                worker.worker_id,
                f"the last heartbeat of {worker.worker_id} on {worker.hostname} lies {length(ahead)} in the "
                "future: the clock of the server was set back",
                "synchronize the server's clock by NTP; the worker corrects its lease by itself",
            )


def judge_holders(holders: Sequence[HolderRow], seconds: float, transactions: int) -> Iterator[Finding]:
    """Yield holders that keep dead rows for long. Slots and standbys have an age in transactions only."""
    for holder in holders:
        is_old = holder.transactions >= transactions if holder.seconds is None else holder.seconds >= seconds
        if not is_old:
            continue
        age = f"{holder.transactions:,} transactions" if holder.seconds is None else length(holder.seconds)
        application = f" ({holder.application})" if holder.application else ""
        statement = f", last statement: {short(holder.statement)}" if holder.statement else ""
        yield Finding(
            FindingCode.XMIN_HELD,
            Severity.WARNING,
            f"{holder.kind} {holder.subject}",
            f"{holder.kind} {holder.subject}{application} has kept dead rows for {age}{statement}",
            _release(holder),
        )


def judge_notifications(used: float, most: float) -> Iterator[Finding]:
    """Yield a finding if more than this share of the queue of notifications is in use."""
    if used > most:
        yield Finding(
            FindingCode.NOTIFY_QUEUE,
            Severity.ERROR if used >= HALF else Severity.WARNING,
            "server",
            f"{used:.2%} of the queue of notifications is in use: a session that listens, in any database of "
            "the server, does not end its transaction or does not read",
            "end the oldest transactions in pg_stat_activity; when half is in use, the log of the server has "
            "the process",
        )


def _release(holder: HolderRow) -> str:
    literal = "'" + holder.subject.replace("'", "''") + "'"
    if holder.kind == "transaction":
        return f"SELECT pg_catalog.pg_terminate_backend({holder.subject})"
    if holder.kind == "prepared":
        return f"COMMIT PREPARED {literal} or ROLLBACK PREPARED {literal}"
    if holder.kind == "inactive slot":
        return f"if its consumer does not return: SELECT pg_drop_replication_slot({literal})"
    return "end the long query on the standby, or set hot_standby_feedback = off there"


def judge_settings(role: RoleRow, settings: Mapping[str, SettingRow]) -> Iterator[Finding]:
    """Yield settings of the session that end statements early or change their isolation."""
    for name in TIMEOUTS:
        setting = settings.get(name)
        if setting is not None and 0 < int(setting.value) < MIN_TIMEOUT_MS:
            yield Finding(
                FindingCode.TIMEOUTS,
                Severity.WARNING,
                name,
                f"{name} is {int(setting.value) / 1000:g} s for the role {role.name!r} (from: "
                f"{setting.source}); the vacuum and migrations have longer statements",
                _set(role, setting, name, "60s"),
            )
    isolation = settings.get(ISOLATION)
    if isolation is not None and isolation.value != "read committed":
        yield Finding(
            FindingCode.ISOLATION,
            Severity.WARNING,
            ISOLATION,
            f"{ISOLATION} is {isolation.value!r} for the role {role.name!r} (from: {isolation.source}); "
            "claims of several workers would conflict",
            _set(role, isolation, ISOLATION, "read committed"),
        )


def _set(role: RoleRow, setting: SettingRow, name: str, value: str) -> str:
    if setting.source == "client":
        return f"remove {name} from server_settings= of the pool, or from the options of its DSN"
    names = f"{quote_identifier(role.name)} IN DATABASE {quote_identifier(role.database)}"
    return f"ALTER ROLE {names} SET {name} = '{value}'"
