"""The codes of findings, what each means, and how severe a finding is."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class FindingCode(StrEnum):
    """The codes of the findings of the doctor. Each code has an entry in the runbook."""

    SCHEMA_BEHIND = "SCHEMA-BEHIND"
    """Tables or migrations of this release are missing."""
    SCHEMA_NEWER = "SCHEMA-NEWER"
    """A newer release has changed the tables so that this one cannot use them."""
    SCHEMA_DRIFT = "SCHEMA-DRIFT"
    """A table differs from the one that the migrations make."""
    INDEX_MISSING = "INDEX-MISSING"
    """An index of this library is missing."""
    INDEX_INVALID = "INDEX-INVALID"
    """An index is invalid, because its build failed."""
    HOT_LOST = "HOT-LOST"
    """An index contains a column that claims change, so no claim is a HOT update."""
    BLOAT = "BLOAT"
    """A table has many dead rows."""
    AUTOVACUUM = "AUTOVACUUM"
    """Autovacuum is off or begins late, or a table lacks the storage settings of the migrations."""
    WRAPAROUND = "WRAPAROUND"
    """A table has not been frozen for many transactions."""
    WORKER_NONE = "WORKER-NONE"
    """No live worker runs jobs."""
    WORKER_DEAD = "WORKER-DEAD"
    """The lease of a worker expired without a shutdown."""
    WORKER_MIXED = "WORKER-MIXED"
    """Live workers have different versions, releases or settings, or one name has two functions."""
    WORKER_NO_LISTEN = "WORKER-NO-LISTEN"
    """A worker receives no notifications, so it polls."""
    WORKER_NO_LOCK = "WORKER-NO-LOCK"
    """A worker holds no liveness lock, so its jobs wait for its lease if it dies."""
    WORKER_DRAINING = "WORKER-DRAINING"
    """A worker has drained for an hour, or late jobs wait because every worker of their name drains."""
    LOOP_BLOCKED = "LOOP-BLOCKED"
    """The event loop of a worker is blocked, or was within the last 15 minutes."""
    LOGGER_DISABLED = "LOGGER-DISABLED"
    """A worker writes no records, because a configuration of logging has disabled its logger."""
    LATE = "LATE"
    """Due jobs of a name wait although workers claim it."""
    NAME_UNKNOWN = "NAME-UNKNOWN"
    """Due jobs have a name that no live worker claims."""
    NAME_SHARED = "NAME-SHARED"
    QUARANTINE = "QUARANTINE"
    """Jobs reached max_crashes in the last seven days."""
    FAILING = "FAILING"
    """Attempts of a name fail more often than in up to a week before, or half of them do."""
    JOBS_EXPIRED = "JOBS-EXPIRED"
    """Jobs of a name expired."""
    STUCK = "STUCK"
    """A job runs far longer than others of its name, or beyond its lease."""
    PAYLOAD = "PAYLOAD"
    """Jobs have large arguments."""
    TZDATA = "TZDATA"
    """Live workers have different time zone data."""
    DB_VERSION = "DB-VERSION"
    """PostgreSQL is too old."""
    DB_COPY = "DB-COPY"
    """The database is a copy, in which no worker starts."""
    DB_RTT = "DB-RTT"
    """The server is far away."""
    CLOCK = "CLOCK"
    """The clocks of this machine and of the server differ, or a heartbeat lies in the future."""
    NOTIFY_QUEUE = "NOTIFY-QUEUE"
    """The server's queue of notifications fills up."""
    XMIN_HELD = "XMIN-HELD"
    """A transaction, a slot or a standby has kept dead rows for long."""
    RIGHTS = "RIGHTS"
    """The role lacks privileges of a worker, or has further ones."""
    TIMEOUTS = "TIMEOUTS"
    """The server cancels long statements of the role."""
    ISOLATION = "ISOLATION"
    """Transactions of the role are not READ COMMITTED by default."""
    LISTEN_NO_DELIVERY = "LISTEN-NO-DELIVERY"
    """A notification to ourselves did not arrive."""
    POOLER = "POOLER"
    """The pool leads to a pooler in transaction mode."""
    POOL_SMALL = "POOL-SMALL"
    """The pool of a worker is too small."""
    CONNECTIONS = "CONNECTIONS"
    """The pools of the workers exceed the connections of the server, or few are left."""
    SCHED_OVERDUE = "SCHED-OVERDUE"
    """A schedule should have fired."""
    SCHED_UNKNOWN = "SCHED-UNKNOWN"
    """No live worker has the task of a schedule."""
    SCHED_LOST = "SCHED-LOST"
    """A schedule that the code of a live worker declares has no row."""
    SCHED_RETIRED = "SCHED-RETIRED"
    """The code declares a schedule no longer."""
    SCHED_BROKEN = "SCHED-BROKEN"
    """The planner paused a schedule because of an error."""
    SCHED_ZONE = "SCHED-ZONE"
    SCHED_AHEAD = "SCHED-AHEAD"
    """The next fire time of a schedule comes from a clock that was set back, so it does not fire."""
    SCHED_DST = "SCHED-DST"
    """A clock change in the next seven days skips or repeats a fire time."""
    SCHED_HERD = "SCHED-HERD"
    """Many schedules fire in the same second."""
    RETENTION = "RETENTION"
    """Finished jobs are older than their retention allows, or a table is large or will be soon."""
    STEPS_ORPHANED = "STEPS-ORPHANED"
    """Stored steps belong to no job."""


class Severity(StrEnum):
    """How severe a finding is."""

    OK = "ok"
    """There is no finding."""
    INFO = "info"
    """Worth knowing; nothing has to be done."""
    WARNING = "warning"
    """It costs performance, or becomes an error."""
    ERROR = "error"
    """Jobs do not run, or will not."""

    @property
    def rank(self) -> int:
        """Its place in the order of severity: 0 for ``ok``, 3 for ``error``."""
        return list(Severity).index(self)


class Advice(NamedTuple):
    """The meaning and the remedy of a code, for any values of a finding."""

    meaning: str
    remedy: str


ADVICE: Final[dict[FindingCode, Advice]] = {
    FindingCode.SCHEMA_BEHIND: Advice(
        "tables or migrations of this release are missing, so its workers do not start",
        "pg-scheduler migrate, before the release is deployed",
    ),
    FindingCode.SCHEMA_NEWER: Advice(
        "a newer release has removed something from the tables that this one uses",
        "deploy the newer release on this machine",
    ),
    FindingCode.SCHEMA_DRIFT: Advice(
        "a table differs from the one that the migrations make, so statements fail or read whole tables",
        "execute the statements of the finding as the owner of the table",
    ),
    FindingCode.INDEX_MISSING: Advice(
        "migrations left an index out on a large table, or it was dropped; without some, no worker starts",
        "pg-scheduler migrate indexes",
    ),
    FindingCode.INDEX_INVALID: Advice(
        "the build of an index failed: it costs writes, and no statement uses it",
        "pg-scheduler migrate indexes for an index of this library, REINDEX INDEX CONCURRENTLY for yours",
    ),
    FindingCode.HOT_LOST: Advice(
        "an index of yours contains a column that every claim changes, so each claim writes to every index",
        "DROP INDEX CONCURRENTLY; search by name, status or id with pg-scheduler jobs list instead",
    ),
    FindingCode.BLOAT: Advice(
        "a table has more dead rows than autovacuum should leave, so claims become slower",
        "resolve XMIN-HELD and AUTOVACUUM findings, then VACUUM the table",
    ),
    FindingCode.AUTOVACUUM: Advice(
        "autovacuum is off, or storage settings were reset or let dead rows grow with the finished jobs",
        "execute the ALTER TABLE ... SET (...) of the finding as the owner of the table",
    ),
    FindingCode.WRAPAROUND: Advice(
        "rows were not frozen for so many transactions or multixacts that the server will force it, or stop",
        "VACUUM (FREEZE) the table, after the end of old transactions",
    ),
    FindingCode.WORKER_NONE: Advice(
        "no worker with a valid lease runs jobs, so none starts",
        "start a worker",
    ),
    FindingCode.WORKER_DEAD: Advice(
        "a worker was killed, lost the database or was suspended; its row remains until it is reclaimed",
        "wait for a live worker to reclaim its jobs, or start one; then read the log of the dead one",
    ),
    FindingCode.WORKER_MIXED: Advice(
        "live workers differ in version, release, settings or parameters, as during a deployment",
        "finish the deployment, or give the workers the same settings",
    ),
    FindingCode.WORKER_NO_LISTEN: Advice(
        "a worker has no LISTEN connection, so jobs start by polling, later than by notification",
        "a pool with max_size of 4 or more, or direct_dsn= behind a pooler",
    ),
    FindingCode.WORKER_NO_LOCK: Advice(
        "a worker holds no liveness lock: if its process is killed, its jobs wait until its lease expires",
        "a pool with max_size of 4 or more, or keeper_dsn= or direct_dsn=",
    ),
    FindingCode.WORKER_DRAINING: Advice(
        "a worker was requested to drain an hour ago, or late jobs wait because every worker drains",
        "pg-scheduler workers drain --wait, then stop its process; or pg-scheduler workers resume",
    ),
    FindingCode.LOOP_BLOCKED: Advice(
        "synchronous code in a coroutine blocked the event loop, so the worker claimed and renewed nothing",
        "declare the function as a plain one, which runs in a thread",
    ),
    FindingCode.LOGGER_DISABLED: Advice(
        "logging.config.dictConfig() after the import of the library disabled its logger",
        "pass disable_existing_loggers=False to dictConfig() or fileConfig(), and restart the worker",
    ),
    FindingCode.LATE: Advice(
        "due jobs wait although live workers claim their name",
        "more workers or slots; with free slots, pg-scheduler jobs explain for one of the jobs",
    ),
    FindingCode.NAME_UNKNOWN: Advice(
        "due jobs wait for a function that no live worker has registered",
        "import its module in a worker, or declare the former name with aliases= after a rename",
    ),
    FindingCode.NAME_SHARED: Advice(
        "live workers have different code for one name of a task, so each runs jobs of the other",
        "different names, @job(name=...), or a schema= for each service; or finish the deployment",
    ),
    FindingCode.QUARANTINE: Advice(
        "so many workers died while they ran a job that it is not started again",
        "read the logs of those workers, correct the function, then pg-scheduler jobs retry",
    ),
    FindingCode.FAILING: Advice(
        "a tenth of the attempts of a name failed in 15 minutes, twice that of up to a week, or half",
        "pg-scheduler jobs errors --since 15m, then correct the cause",
    ),
    FindingCode.JOBS_EXPIRED: Advice(
        "jobs of a name did not start within their misfire grace time, and will not run",
        "pg-scheduler jobs explain, then add workers, or give the jobs a longer misfire_grace_time=",
    ),
    FindingCode.STUCK: Advice(
        "a job runs ten times as long as 99 % of the attempts of its name, or its lease has expired",
        "pg-scheduler jobs explain; give the job a timeout=",
    ),
    FindingCode.PAYLOAD: Advice(
        "large arguments make claims slow, since each claim transfers them",
        "store the data elsewhere and pass its id",
    ),
    FindingCode.TZDATA: Advice(
        "the fire times of a schedule depend on which worker plans them, since their time zone data differs",
        "install the same version of tzdata on every host",
    ),
    FindingCode.DB_VERSION: Advice(
        "the server is older than PostgreSQL 14, or its minor release has a fault that a later one corrects",
        "upgrade it",
    ),
    FindingCode.DB_COPY: Advice(
        "the database is a copy: its jobs and schedules are those of another one, so no worker starts",
        "pg-scheduler adopt if it replaces the original; pg-scheduler adopt --hold to pause all first",
    ),
    FindingCode.DB_RTT: Advice(
        "a round trip to the server takes more than 5 ms, which limits how fast a worker claims jobs",
        "run the workers closer to the server",
    ),
    FindingCode.CLOCK: Advice(
        "the clock of this machine or of a worker's host differs from that of the server, which may be wrong",
        "synchronize both by NTP",
    ),
    FindingCode.NOTIFY_QUEUE: Advice(
        "a session that listens does not end its transaction; once the queue is full, each NOTIFY fails",
        "end the oldest transactions of sessions that LISTEN, in all databases of the server",
    ),
    FindingCode.XMIN_HELD: Advice(
        "a transaction, prepared transaction, slot or standby keeps dead rows, so no vacuum removes them",
        "run the statement of the finding: it ends the transaction, or drops the slot",
    ),
    FindingCode.RIGHTS: Advice(
        "the role of this connection lacks privileges that a worker needs, or has further ones",
        "execute the GRANT or REVOKE statements of the finding as the owner of the tables",
    ),
    FindingCode.TIMEOUTS: Advice(
        "statement_timeout or transaction_timeout of the role is shorter than the longest statement",
        "ALTER ROLE ... SET statement_timeout = '60s', or 0",
    ),
    FindingCode.ISOLATION: Advice(
        "transactions are not READ COMMITTED by default, so concurrent claims fail and are repeated",
        "ALTER ROLE ... SET default_transaction_isolation = 'read committed'",
    ),
    FindingCode.LISTEN_NO_DELIVERY: Advice(
        "a notification to ourselves did not arrive, so workers with these connections poll",
        "direct_dsn= to the server itself",
    ),
    FindingCode.POOLER: Advice(
        "the pool leads to a pooler in transaction mode, which shares sessions",
        "statement_cache_size=0 or PgBouncer 1.21 with prepared statements, and direct_dsn=",
    ),
    FindingCode.POOL_SMALL: Advice(
        "a worker needs 4 connections, and one for each running job that holds an advisory lock",
        "a larger max_size of its pool",
    ),
    FindingCode.CONNECTIONS: Advice(
        "the pools of the workers may open more connections than the server has, or few are left",
        "smaller pools, a pooler, or a larger max_connections",
    ),
    FindingCode.SCHED_OVERDUE: Advice(
        "a schedule that is not paused should have fired: no node plans it",
        "start a worker that has its task and the kind of its trigger, or pause the schedule",
    ),
    FindingCode.SCHED_UNKNOWN: Advice(
        "no live worker has registered the task of a schedule, so nothing runs its jobs",
        "import the module of the task in a worker, or remove the schedule",
    ),
    FindingCode.SCHED_LOST: Advice(
        "the code of a live worker declares a schedule that has no row, so it never fires",
        "restart a worker that declares it; every start writes the schedules of its code",
    ),
    FindingCode.SCHED_RETIRED: Advice(
        "the function of a schedule was removed from its module, so the schedule fires no more",
        "pg-scheduler schedules remove ID deletes it; code that declares it again continues it",
    ),
    FindingCode.SCHED_BROKEN: Advice(
        "the planner paused a schedule because its row or its trigger is invalid",
        "update the schedule with a valid trigger and resume it, or remove it",
    ),
    FindingCode.SCHED_ZONE: Advice(
        "a node does not know the time zone of a schedule, and leaves it to other nodes",
        "install the package tzdata there, of Debian also tzdata-legacy, or change the zone of the schedule",
    ),
    FindingCode.SCHED_AHEAD: Advice(
        "the server's clock was set back since a schedule fired, whose next fire time is of the clock before",
        "start a worker that has its task; it computes the time again within two minutes",
    ),
    FindingCode.SCHED_DST: Advice(
        "a clock change in the next seven days skips or repeats a fire time of a schedule",
        "pg-scheduler schedules preview shows when it fires; choose another time or UTC",
    ),
    FindingCode.SCHED_HERD: Advice(
        "many schedules fire in the same second, so their jobs are late and the database has a peak",
        "jitter= for these schedules",
    ),
    FindingCode.RETENTION: Advice(
        "unsuccessful jobs are twice as old as the workers keep them, or a table has 10 GB now or soon",
        "vacuum_enabled=True on a worker; read its log for errors of the vacuum; a shorter retention",
    ),
    FindingCode.STEPS_ORPHANED: Advice(
        "SQL has deleted jobs without their stored steps, or jobs without steps have replaced them",
        "vacuum_enabled=True on a worker, or pg-scheduler vacuum: each pass deletes such steps after an hour",
    ),
}
"""The meaning and the remedy of each code."""
