"""The codes of findings, and how severe a finding is."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["FindingCode", "Severity"]


class FindingCode(StrEnum):
    """What the doctor can find. Each code has an entry in the runbook."""

    SCHEMA_BEHIND = "SCHEMA-BEHIND"
    """Tables or migrations of this release are missing."""
    SCHEMA_NEWER = "SCHEMA-NEWER"
    """A newer release has changed the tables so that this one cannot use them."""
    SCHEMA_DRIFT = "SCHEMA-DRIFT"
    """A table differs from the one that the migrations make."""
    INDEX_MISSING = "INDEX-MISSING"
    """An index is missing that migrations leave out on large tables."""
    INDEX_INVALID = "INDEX-INVALID"
    """An index is invalid, because its build failed."""
    HOT_LOST = "HOT-LOST"
    """An index contains a column that claims change, so no claim is a HOT update."""
    BLOAT = "BLOAT"
    """A table has many dead rows."""
    AUTOVACUUM = "AUTOVACUUM"
    """Autovacuum is off, or a table lacks the storage settings of the migrations."""
    WRAPAROUND = "WRAPAROUND"
    """A table has not been frozen for many transactions."""
    WORKER_NONE = "WORKER-NONE"
    """No live worker runs jobs."""
    WORKER_DEAD = "WORKER-DEAD"
    """The lease of a worker expired without a shutdown."""
    WORKER_MIXED = "WORKER-MIXED"
    """Live workers have different versions, releases or settings."""
    WORKER_NO_LISTEN = "WORKER-NO-LISTEN"
    """A worker receives no notifications, so it polls."""
    WORKER_NO_LOCK = "WORKER-NO-LOCK"
    """A worker holds no liveness lock, so its jobs wait for its lease if it dies."""
    WORKER_DRAINING = "WORKER-DRAINING"
    """A worker drains and has no job left."""
    LOOP_BLOCKED = "LOOP-BLOCKED"
    """The event loop of a worker was blocked."""
    LATE = "LATE"
    """Due jobs of a name wait although workers claim it."""
    NAME_UNKNOWN = "NAME-UNKNOWN"
    """Due jobs have a name that no live worker claims."""
    QUARANTINE = "QUARANTINE"
    """Jobs reached max_crashes in the last seven days."""
    FAILING = "FAILING"
    """Attempts of a name fail more often than before."""
    STUCK = "STUCK"
    """A job runs far longer than others of its name, or beyond its lease."""
    PAYLOAD = "PAYLOAD"
    """Jobs have large arguments."""


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
