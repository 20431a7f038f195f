"""The codes of findings, and how severe a finding is."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

__all__ = ["ADVICE", "Advice", "FindingCode", "Severity"]


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
    """What a code means, whatever the values of a finding are."""

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
        "migrations leave an index out on a large table; lists of unsuccessful jobs are slow without it",
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
        "autovacuum is off, or the storage settings that migrations give a table were reset",
        "execute the ALTER TABLE ... SET (...) of the finding as the owner of the table",
    ),
    FindingCode.WRAPAROUND: Advice(
        "a table was not frozen for so many transactions that the server will force it, and later stop",
        "VACUUM (FREEZE) the table, after the end of old transactions",
    ),
}
"""What each code means."""
