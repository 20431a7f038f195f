"""The codes of findings, the title, the meaning and the remedy of each, and how severe a finding is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pg_scheduler.base.text.remedies import (
    AFTERWARDS,
    RemedyStep,
    as_steps,
    execute,
    joined,
    sentence_of,
    then,
)


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
    THREAD_STUCK = "THREAD-STUCK"
    """Threads of a worker run on although their jobs were to stop."""
    LATE = "LATE"
    """Due jobs of a name wait although workers claim it."""
    NAME_UNKNOWN = "NAME-UNKNOWN"
    """Due jobs have a name that no live worker claims."""
    NAME_SHARED = "NAME-SHARED"
    """Live workers have different code for one name of a task."""
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
    """The role lacks privileges of a worker, or has more privileges than a worker needs."""
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
    """A node does not know the time zone of a schedule."""
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
    """It costs performance, or will become an error."""
    ERROR = "error"
    """Jobs do not run, or will not run."""

    @property
    def rank(self) -> int:
        """Its place in the order of severity: 0 for ``ok``, 3 for ``error``."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Advice:
    """The title, the meaning and the remedy of a code, for any values of a finding."""

    title: str
    """What a finding is about. If the text has ``{}``, the subject of the finding takes its place."""
    meaning: str
    """What the code means, in one sentence."""
    steps: tuple[RemedyStep, ...]
    """The steps of the remedy."""

    @property
    def remedy(self) -> str:
        """The remedy as a sentence."""
        return sentence_of(self.steps) or ""


def _advice(title: str, meaning: str, *steps: str | RemedyStep) -> Advice:
    """Return the advice with these steps. A text is a step without a command."""
    return Advice(title, meaning, as_steps(steps))


ADVICE: Final[dict[FindingCode, Advice]] = {
    FindingCode.SCHEMA_BEHIND: _advice(
        "The tables are older than this release",
        "tables or migrations of this release are missing, so its workers do not start",
        execute("pg-scheduler migrate", "before the release is deployed", command_end=", "),
    ),
    FindingCode.SCHEMA_NEWER: _advice(
        "The tables are newer than this release",
        "a newer release has removed something from the tables that this one uses",
        "deploy the newer release on this machine",
    ),
    FindingCode.SCHEMA_DRIFT: _advice(
        "Table {} differs from its migrations",
        "a table differs from the one that the migrations make, so statements fail or read whole tables",
        "execute the statements of the finding as the owner of the table",
    ),
    FindingCode.INDEX_MISSING: _advice(
        "Index {} is missing",
        "migrations left an index out on a large table, or it was dropped; without some, no worker starts",
        execute("pg-scheduler migrate indexes"),
    ),
    FindingCode.INDEX_INVALID: _advice(
        "Index {} is invalid",
        "the build of an index failed: it costs writes, and no statement uses it",
        execute("pg-scheduler migrate indexes", "for an index of this library"),
        joined(", ", execute("REINDEX INDEX CONCURRENTLY", "for yours")),
    ),
    FindingCode.HOT_LOST: _advice(
        "Index {} slows every claim",
        "an index of yours contains a column that every claim changes, so each claim writes to every index",
        execute("DROP INDEX CONCURRENTLY"),
        execute("pg-scheduler jobs list", "instead", before="search by name, status or id with"),
    ),
    FindingCode.BLOAT: _advice(
        "Table {} has many dead rows",
        "a table has more dead rows than autovacuum should leave, so claims become slower",
        "resolve XMIN-HELD and AUTOVACUUM findings",
        then(execute("VACUUM", "the table")),
    ),
    FindingCode.AUTOVACUUM: _advice(
        "Autovacuum cannot keep up: {}",
        "autovacuum is off, or storage settings were reset or let dead rows grow with the finished jobs",
        execute(
            "ALTER TABLE ... SET (...)", "of the finding as the owner of the table", before="execute the"
        ),
    ),
    FindingCode.WRAPAROUND: _advice(
        "Table {} must be frozen",
        "rows were not frozen for so many transactions or multixacts that the server will force it, or stop",
        execute("VACUUM (FREEZE)", "the table, after the end of old transactions"),
    ),
    FindingCode.WORKER_NONE: _advice(
        "No live worker runs jobs",
        "no worker with a valid lease runs jobs, so none starts",
        "start a worker",
    ),
    FindingCode.WORKER_DEAD: _advice(
        "Worker {} died",
        "a worker was killed, lost the database or was suspended; its row remains until it is reclaimed",
        "wait for a live worker to reclaim its jobs, or start one",
        joined(AFTERWARDS, "read the log of the dead one"),
    ),
    FindingCode.WORKER_MIXED: _advice(
        "Live workers differ: {}",
        "live workers differ in version, release, settings or parameters, as during a deployment",
        "finish the deployment, or give the workers the same settings",
    ),
    FindingCode.WORKER_NO_LISTEN: _advice(
        "Worker {} receives no notifications",
        "a worker has no LISTEN connection, so jobs start by polling, later than by notification",
        "use a pool with max_size of 4 or more, or direct_dsn= behind a pooler",
    ),
    FindingCode.WORKER_NO_LOCK: _advice(
        "Worker {} holds no liveness lock",
        "a worker holds no liveness lock: if its process is killed, its jobs wait until its lease expires",
        "use a pool with max_size of 4 or more, or keeper_dsn= or direct_dsn=",
    ),
    FindingCode.WORKER_DRAINING: _advice(
        "Draining has not ended: {}",
        "a worker was requested to drain an hour ago, or late jobs wait because every worker drains",
        execute("pg-scheduler workers drain --wait"),
        then("stop its process"),
        execute("pg-scheduler workers resume", before="or"),
    ),
    FindingCode.LOOP_BLOCKED: _advice(
        "The event loop of worker {} is blocked",
        "synchronous code in a coroutine blocked the event loop, so the worker claimed and renewed nothing",
        "declare the function as a plain one, which runs in a thread",
    ),
    FindingCode.LOGGER_DISABLED: _advice(
        "Worker {} writes no log records",
        "logging.config.dictConfig() after the import of the library disabled its logger",
        "pass disable_existing_loggers=False to dictConfig() or fileConfig(), and restart the worker",
    ),
    FindingCode.THREAD_STUCK: _advice(
        "Threads of worker {} run on",
        "a thread cannot be stopped: it holds its job, and its slot unless max_stuck_threads= releases that",
        "give the blocking call a timeout",
        then("restart the worker"),
    ),
    FindingCode.LATE: _advice(
        "Jobs of {} are late",
        "due jobs wait although live workers claim their name",
        "add workers or slots",
        execute("pg-scheduler jobs explain", "for one of the jobs", before="with free slots", text_end=", "),
    ),
    FindingCode.NAME_UNKNOWN: _advice(
        "Jobs of {} cannot start: no live worker has this task",
        "due jobs wait for a function that no live worker has registered",
        "import its module in a worker, or declare the former name with aliases= after a rename",
    ),
    FindingCode.NAME_SHARED: _advice(
        "Two services run jobs of the same names: {}",
        "live workers have different code for one name of a task, so each runs jobs of the other",
        execute(
            "@job(name=...)",
            "or a schema= for each service",
            before="different names",
            text_end=", ",
            command_end=", ",
        ),
        "or finish the deployment",
    ),
    FindingCode.QUARANTINE: _advice(
        "Workers died while they ran {}",
        "so many workers died while they ran a job that it is not started again",
        "read the logs of those workers, correct the function",
        then(execute("pg-scheduler jobs retry")),
    ),
    FindingCode.FAILING: _advice(
        "Attempts of {} fail more often than usual",
        "a tenth of the attempts of a name failed in 15 minutes, twice that of up to a week, or half",
        execute("pg-scheduler jobs errors --since 15m"),
        then("correct the cause"),
    ),
    FindingCode.JOBS_EXPIRED: _advice(
        "Jobs of {} expire before they start",
        "jobs of a name did not start within their misfire grace time, and will not run",
        execute("pg-scheduler jobs explain"),
        then("add workers, or give the jobs a longer misfire_grace_time="),
    ),
    FindingCode.STUCK: _advice(
        "Job {} runs for far too long",
        "a job runs ten times as long as 99 % of the attempts of its name, or its lease has expired",
        execute("pg-scheduler jobs explain"),
        "give the job a timeout=",
    ),
    FindingCode.PAYLOAD: _advice(
        "Jobs of {} have large arguments",
        "large arguments make claims slow, since each claim transfers them",
        "store the data elsewhere and pass its id",
    ),
    FindingCode.TZDATA: _advice(
        "Live workers have different time zone data",
        "the fire times of a schedule depend on which worker plans them, since their time zone data differs",
        "install the same version of tzdata on every host",
    ),
    FindingCode.DB_VERSION: _advice(
        "PostgreSQL is too old",
        "the server is older than PostgreSQL 14, or its minor release has a fault that a later one corrects",
        "upgrade it",
    ),
    FindingCode.DB_COPY: _advice(
        "The database {} is a copy, in which no worker starts",
        "the database is a copy: its jobs and schedules are those of another one, so no worker starts",
        execute("pg-scheduler adopt", "if it replaces the original"),
        execute("pg-scheduler adopt --hold", "to pause all first"),
    ),
    FindingCode.DB_RTT: _advice(
        "The database is far away",
        "a round trip to the server takes more than 5 ms, which limits how fast a worker claims jobs",
        "run the workers closer to the server",
    ),
    FindingCode.CLOCK: _advice(
        "Clocks differ: {}",
        "the clock of this machine or of a worker's host differs from that of the server, which may be wrong",
        "synchronize both by NTP",
    ),
    FindingCode.NOTIFY_QUEUE: _advice(
        "The queue of notifications fills up",
        "a session that listens does not end its transaction; once the queue is full, each NOTIFY fails",
        "end the oldest transactions of sessions that LISTEN, in all databases of the server",
    ),
    FindingCode.XMIN_HELD: _advice(
        "Dead rows cannot be removed: {}",
        "a transaction, prepared transaction, slot or standby keeps dead rows, so no vacuum removes them",
        "run the statement of the finding: it ends the transaction, or drops the slot",
    ),
    FindingCode.RIGHTS: _advice(
        "The privileges of the role {} are not those of a worker",
        "the role of this connection lacks privileges that a worker needs, or has further ones",
        "execute the GRANT or REVOKE statements of the finding as the owner of the tables",
    ),
    FindingCode.TIMEOUTS: _advice(
        "The server cancels long statements: {}",
        "statement_timeout or transaction_timeout of the role is shorter than the longest statement",
        execute("ALTER ROLE ... SET statement_timeout = '60s'", "or 0", command_end=", "),
    ),
    FindingCode.ISOLATION: _advice(
        "Transactions are not READ COMMITTED",
        "transactions are not READ COMMITTED by default, so statements fail where others change the same row",
        execute("ALTER ROLE ... SET default_transaction_isolation = 'read committed'"),
    ),
    FindingCode.LISTEN_NO_DELIVERY: _advice(
        "Notifications do not arrive",
        "a notification to ourselves did not arrive, or came through a pooler, so workers there poll",
        "use direct_dsn= to the server itself",
    ),
    FindingCode.POOLER: _advice(
        "The pool leads to a pooler in transaction mode",
        "the pool leads to a pooler in transaction mode, which shares sessions",
        "use statement_cache_size=0 or PgBouncer 1.21 with prepared statements, and direct_dsn=",
    ),
    FindingCode.POOL_SMALL: _advice(
        "The pool of worker {} is small",
        "a worker needs 4 connections, and one for each running job that holds an advisory lock",
        "use a larger max_size of its pool",
    ),
    FindingCode.CONNECTIONS: _advice(
        "Connections may run out: {}",
        "the pools of the workers may open more connections than the server has, or few are left",
        "use smaller pools, a pooler, or a larger max_connections",
    ),
    FindingCode.SCHED_OVERDUE: _advice(
        "Schedule {} is overdue",
        "a schedule that is not paused should have fired: no node plans it",
        "start a worker that has its task and the kind of its trigger, or pause the schedule",
    ),
    FindingCode.SCHED_UNKNOWN: _advice(
        "Scheduled jobs of {} will not start: no live worker has this task",
        "no live worker has registered the task of a schedule, so nothing runs its jobs",
        "import the module of the task in a worker, or remove the schedule",
    ),
    FindingCode.SCHED_LOST: _advice(
        "Schedule {} of the code has no row, so it never fires",
        "the code of a live worker declares a schedule that has no row, so it never fires",
        "restart a worker that declares it",
        "every start writes the schedules of its code",
    ),
    FindingCode.SCHED_RETIRED: _advice(
        "The code declares schedule {} no longer",
        "the function of a schedule was removed from its module, so the schedule fires no more",
        execute("pg-scheduler schedules remove ID", "deletes it"),
        "code that declares it again continues it",
    ),
    FindingCode.SCHED_BROKEN: _advice(
        "Schedule {} was paused because of an error",
        "the planner paused a schedule because its row or its trigger is invalid",
        "update the schedule with a valid trigger and resume it, or remove it",
    ),
    FindingCode.SCHED_ZONE: _advice(
        "A node does not know the time zone of schedule {}",
        "a node does not know the time zone of a schedule, and leaves it to other nodes",
        "install the package tzdata there, of Debian also tzdata-legacy, or change the zone of the schedule",
    ),
    FindingCode.SCHED_AHEAD: _advice(
        "Schedule {} waits for a time that the clock has left",
        "a schedule fired while the server's clock was ahead, and its next fire time is still of that clock",
        "start a worker that has its task",
        "it computes the time again within two minutes",
    ),
    FindingCode.SCHED_DST: _advice(
        "A clock change affects schedule {}",
        "a clock change in the next seven days skips or repeats a fire time of a schedule",
        execute("pg-scheduler schedules preview", "shows when it fires"),
        "choose another time or UTC",
    ),
    FindingCode.SCHED_HERD: _advice(
        "Many schedules fire at {}",
        "many schedules fire in the same second, so their jobs are late and the database has a peak",
        "jitter= for these schedules",
    ),
    FindingCode.RETENTION: _advice(
        "Finished jobs are kept for long: {}",
        "unsuccessful jobs are twice as old as the workers keep them, or a table has 10 GB now or soon",
        "vacuum_enabled=True on a worker",
        "read its log for errors of the vacuum",
        "a shorter retention",
    ),
    FindingCode.STEPS_ORPHANED: _advice(
        "Stored steps belong to no job: {}",
        "SQL has deleted jobs without their stored steps, or jobs without steps have replaced them",
        execute(
            "pg-scheduler vacuum",
            "each pass deletes such steps after an hour",
            before="vacuum_enabled=True on a worker, or",
            command_end=": ",
        ),
    ),
}
"""The title, the meaning and the remedy of each code."""

ABOUT_NAMES: Final = frozenset(
    {
        FindingCode.LATE,
        FindingCode.NAME_UNKNOWN,
        FindingCode.QUARANTINE,
        FindingCode.FAILING,
        FindingCode.JOBS_EXPIRED,
        FindingCode.SCHED_UNKNOWN,
    }
)
"""Codes whose findings have the name of a task as their subject."""
