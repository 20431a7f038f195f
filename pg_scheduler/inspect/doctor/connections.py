"""Check whether pools are large enough, and whether notifications arrive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pg_scheduler.base.settings import JOB_ROLES
from pg_scheduler.base.text.remedies import AND, joined
from pg_scheduler.database.faults import LOST_STATEMENTS, is_timeout
from pg_scheduler.errors import ConfigurationError, DatabaseUnavailableError
from pg_scheduler.inspect.doctor.check import CheckResults, SharedFacts, check, error, finding, info, warning
from pg_scheduler.inspect.doctor.codes import FindingCode, Severity
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds, UnmadeCheck
from pg_scheduler.inspect.store.doctor import OFF, SettingRow
from pg_scheduler.inspect.store.server import ConnectionRow
from pg_scheduler.inspect.texts import counted, listed, on_host
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.worker_report import ReportedHealth

MIN_POOL_SIZE: Final = 4
MIN_LEFT: Final = 3
OUTSIDE_POOL: Final = 2
"""Connections that a worker may have outside of its pool: that of the lease keeper, and one for claims if
jobs use up the pool while the worker holds none of its connections for that."""

RESERVED: Final = ("superuser_reserved_connections", "reserved_connections")
POOLER_REMEDY: Final = (
    "use statement_cache_size=0, or PgBouncer 1.21 or newer with prepared statements",
    joined(AND, "direct_dsn="),
)
SINGLE_CONNECTION: Final = "the pool has a single connection; examine with a max_size of 2 or more"

NO_SECOND_SESSION: Final = (
    "a second connection got no response in time, as from a pooler in session mode that has a single session "
    "of the server; give that a larger pool, or examine with a DSN of the server itself"
)

STANDBY: Final = "the server is a standby, which sends no notifications; examine the primary"


@check(FindingCode.LISTEN_NO_DELIVERY)
async def _check_notifications(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether a notification arrives where a worker would listen."""
    settings = await facts.once(facts.store.doctor.settings)
    if settings.get("in_hot_standby", OFF).value == "on":
        yield UnmadeCheck(FindingCode.LISTEN_NO_DELIVERY, STANDBY)
        return
    try:
        arrives = await facts.store.server.receives_notification(thresholds.notification_s)
    except DatabaseUnavailableError as caught:
        # Only a timeout shows that there is no second session. Any other cause is raised.
        if not is_timeout(caught):
            raise
        yield UnmadeCheck(FindingCode.LISTEN_NO_DELIVERY, NO_SECOND_SESSION)
        return
    if arrives is None:
        yield UnmadeCheck(FindingCode.LISTEN_NO_DELIVERY, SINGLE_CONNECTION)
        return
    if arrives and await facts.store.server.has_own_session():
        return
    # A worker listens by a connection of the direct DSN if it has one, and else by one of the pool.
    if facts.store.statements.connections.has_direct_dsn:
        source = "direct_dsn="
        remedy = "it leads to a pooler: direct_dsn= must lead to the server itself"
    else:
        source = "the pool"
        remedy = "the pool leads to a pooler: pass direct_dsn= or --direct-dsn"
    evidence = (
        f"a notification to ourselves did not arrive within {thresholds.notification_s:g} s by {source}"
    )
    if arrives:
        evidence = f"{source} leads to a pooler in session mode, and no worker listens through a pooler"
    yield warning(
        FindingCode.LISTEN_NO_DELIVERY,
        "notifications",
        f"{evidence}, so workers with these connections poll",
        remedy,
    )


@check(FindingCode.POOLER)
async def _check_pooler(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether the pool leads to a pooler in transaction mode.

    Behind such a pooler, a connection may get another session of the server for each transaction.
    """
    try:
        changes = await facts.store.server.changes_session()
    except ConfigurationError as caught:
        if not isinstance(caught.__cause__, LOST_STATEMENTS):
            raise
        yield error(
            FindingCode.POOLER,
            "pool",
            "prepared statements fail: the pool leads to a pooler in transaction mode that loses them",
            *POOLER_REMEDY,
        )
        return
    except DatabaseUnavailableError as fault:
        if not is_timeout(fault):
            raise
        yield UnmadeCheck(FindingCode.POOLER, NO_SECOND_SESSION)
        return
    if changes is None:
        yield UnmadeCheck(FindingCode.POOLER, SINGLE_CONNECTION)
        return
    if not changes:
        return
    yield info(
        FindingCode.POOLER,
        "pool",
        "a connection of the pool gets another session of the server for each transaction: it leads to a "
        "pooler in transaction mode",
        *POOLER_REMEDY,
    )


@check(FindingCode.POOL_SMALL, FindingCode.CONNECTIONS)
async def _check_pools(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether the server has enough connections for the pools, and each worker's pool for its jobs."""
    workers = [worker for worker in await facts.once(facts.store.workers.list_workers) if worker.is_alive]
    settings = await facts.once(facts.store.doctor.settings)
    for problem in judge_server(workers, settings, await facts.store.server.connections()):
        yield problem
    # Each running job of a schedule with an advisory lock takes a connection of the pool for the lock.
    locking_schedules = await facts.store.server.locking_schedules()
    for worker in workers:
        size = ReportedHealth.of(worker.health).pool.max
        # A worker that only plans schedules runs no jobs, so it needs no connections for locks.
        locks = min(locking_schedules, worker.max_concurrent_jobs) if worker.role in JOB_ROLES else 0
        if size is None or size >= MIN_POOL_SIZE + locks:
            continue
        # Too few connections for the worker itself are worse than too few for all locks at once.
        is_too_small = size < MIN_POOL_SIZE
        lock_note = f", and up to {counted(locks, 'job')} may hold an advisory lock" if locks else ""
        yield finding(
            FindingCode.POOL_SMALL,
            Severity.WARNING if is_too_small else Severity.INFO,
            worker.worker_id,
            f"the pool of {on_host(worker)} has a max_size of {size}; "
            f"a worker needs {MIN_POOL_SIZE}{lock_note}",
            f"use max_size={MIN_POOL_SIZE + locks}, and more if jobs use the same pool",
        )


def judge_server(
    workers: Sequence[Worker], settings: Mapping[str, SettingRow], groups: Sequence[ConnectionRow]
) -> Iterator[Finding]:
    """Yield a finding if the pools may need more connections than the server has, or if it has few left.

    Args:
        workers: The live workers, which report the sizes of their pools.
        settings: The settings of the server, by name.
        groups: The connections in use, by role and application.
    """
    max_connections = int(settings["max_connections"].value)
    reserved = sum(int(settings[name].value) for name in RESERVED if name in settings)
    usable = max_connections - reserved
    pools = [ReportedHealth.of(worker.health).pool for worker in workers]
    sizes = [pool.max for pool in pools if pool.max is not None]
    demand = sum(sizes) + OUTSIDE_POOL * len(sizes)
    used = sum(group.connections for group in groups)
    holders = listed([f"{group.connections} of {group.role} {group.application}".strip() for group in groups])
    # The size of each pool with which all of them fit into the server.
    connections_per_worker = usable // max(len(sizes), 1)
    pool_share = max(connections_per_worker - OUTSIDE_POOL, 1)
    if demand > usable:
        yield warning(
            FindingCode.CONNECTIONS,
            "pools",
            f"the pools of {counted(len(sizes), 'live worker')} may open {demand} connections; the server "
            f"has {usable} for ordinary roles, {max(usable - used, 0)} of them free; in use: {holders}",
            f"use max_size={pool_share} for each pool at most, a pooler, or "
            f"max_connections = {demand + reserved}",
        )
    elif usable - used < MIN_LEFT:
        yield warning(
            FindingCode.CONNECTIONS,
            "server",
            f"{max(usable - used, 0)} of {usable} connections for ordinary roles free; in use: {holders}",
            "close connections of the largest group, use a pooler, or raise max_connections",
        )
