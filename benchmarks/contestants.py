"""The contestants: this library, the bare loop and the peers, each with its tuned settings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

Kind = Literal["here", "python", "node"]


@dataclass(frozen=True)
class Contestant:
    """One scheduler.

    Attributes:
        driver: A Python module; for Node, a file in the folder of the Python drivers.
        kind: ``here`` for this environment, otherwise the kind of the one made from ``requirements``.
        tuned: Its tuned settings, for the report.
        unfinished: The query that counts unfinished jobs, to check a drain.
        drain: The jobs of the row drain; a slow contestant gets fewer, which is no disadvantage for it.
        drain_default: The jobs of the row drain_default; 0 to leave the contestant out.
        has_bulk: Whether it has a call that inserts many jobs.
        note: A remark for readers who compare its figures.
        checkout: Where the driver and the library are, if not in this checkout.
    """

    name: str
    driver: str
    kind: Kind
    tuned: str
    unfinished: str
    drain: int
    drain_default: int = 0
    requirements: tuple[str, ...] = ()
    has_bulk: bool = True
    note: str = field(default="")
    checkout: Path | None = None


OUR_UNFINISHED: Final = "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL"

OURS: Final = Contestant(
    "ours",
    "benchmarks.ours",
    "here",
    "max_concurrent_jobs 1000, batch_claim_limit 500",
    OUR_UNFINISHED,
    drain=200_000,
    drain_default=50_000,
    note="keeps finished jobs; leases, fencing, timeouts and events are on",
)

BARE: Final = Contestant(
    "bare loop",
    "benchmarks.bare",
    "here",
    "claims of 500, completion and claim in one statement, the next one in flight while jobs run",
    OUR_UNFINISHED,
    drain=200_000,
    note="an upper bound without a library",
)

BARE_LISTENER: Final = replace(
    BARE,
    driver="benchmarks.bare_listener",
    tuned="LISTEN, and one statement each for insert with NOTIFY, claim, completion and the next due time",
)
"""The bare loop of the rows about delays."""

PEERS: Final = (
    Contestant(
        "graphile-worker",
        "graphile_worker.mjs",
        "node",
        "concurrency 100, localQueue 1000, completeJobBatchDelay 0, pollInterval 100 ms",
        "SELECT count(*) FROM graphile_worker._private_jobs",
        drain=200_000,
        drain_default=5_000,
        requirements=("node@22", "graphile-worker@0.18.0"),
        note="Node; deletes finished jobs",
    ),
    Contestant(
        "pg-boss",
        "pg_boss.mjs",
        "node",
        "batchSize 500, burstWhenBatchFull, notify, both polling intervals 0.5 s",
        "SELECT count(*) FROM pgboss.job WHERE name = 'work' AND state < 'completed'",
        drain=200_000,
        requirements=("node@22", "pg-boss@12.35.0"),
        note="Node; a batch of jobs is one call",
    ),
    Contestant(
        "PgQueuer",
        "benchmarks.peers.pgqueuer",
        "python",
        "batch_size 500 on one asyncpg connection",
        "SELECT count(*) FROM pgqueuer",
        drain=100_000,
        drain_default=30_000,
        requirements=(
            "pgqueuer==1.6.0",
            "asyncpg==0.32.0",
            "psycopg[binary]==3.3.9",
            "uvloop==0.23.0",
        ),
    ),
    Contestant(
        "pg-scheduler 0.2.3",
        "benchmarks.peers.pg_scheduler_0_2",
        "python",
        "100 slots, claim 100, polling min 0, idle start 10 ms, max 50 ms, slots full 5 ms",
        "SELECT count(*) FROM scheduled_jobs WHERE status IN ('pending', 'running')",
        drain=10_000,
        drain_default=1_000,
        requirements=("pg-scheduler==0.2.3", "asyncpg==0.32.0", "uvloop==0.23.0"),
    ),
    Contestant(
        "procrastinate",
        "benchmarks.peers.procrastinate",
        "python",
        "concurrency 100",
        "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        drain=5_000,
        drain_default=2_000,
        requirements=(
            "procrastinate==3.10.0",
            "psycopg[binary]==3.3.9",
            "psycopg-pool==3.3.3",
            "uvloop==0.23.0",
        ),
    ),
    Contestant(
        "APScheduler",
        "benchmarks.peers.apscheduler",
        "python",
        "max_concurrent_jobs 100, max_running_jobs None",
        "SELECT count(*) FROM jobs",
        drain=3_000,
        drain_default=1_000,
        requirements=(
            "apscheduler==4.0.0a6",
            "anyio==4.9.0",
            "sniffio",
            "asyncpg==0.32.0",
            "sqlalchemy[asyncio]>=2,<3",
            "uvloop==0.23.0",
        ),
        has_bulk=False,
    ),
)

DURABLE_PEERS: Final = (
    Contestant(
        "DBOS",
        "benchmarks.peers.dbos",
        "python",
        "async workflows on a queue, polling_interval_sec 0.02",
        "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
        drain=0,
        requirements=("dbos==3.4.0", "psycopg[binary]==3.3.9", "sqlalchemy==2.1.9", "uvloop==0.23.0"),
        has_bulk=False,
    ),
    Contestant(
        "absurd",
        "benchmarks.peers.absurd",
        "python",
        "AsyncAbsurd, whose worker has one connection, poll_interval 0.02",
        "SELECT count(*) FROM absurd.t_work WHERE state NOT IN ('completed', 'failed', 'cancelled')",
        drain=0,
        requirements=(
            "absurd-sdk==0.5.1",
            "absurdctl==0.5.1",
            "psycopg[binary]==3.3.9",
            "uvloop==0.23.0",
        ),
        has_bulk=False,
    ),
)
"""The peers of the rows about durable steps, which take no part in the others."""

BEFORE: Final = "before"
"""The name of this library in another checkout."""


def before(checkout: Path) -> Contestant:
    """Return this library at another commit, driven by that checkout's own driver."""
    return replace(OURS, name=BEFORE, note="this library in the other checkout", checkout=checkout)


CONTESTANTS: Final = {each.name: each for each in (OURS, BARE, *PEERS, *DURABLE_PEERS)}
