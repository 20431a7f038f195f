"""Timeouts and settings of the connections. Tests pass shorter ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

Settings: TypeAlias = tuple[tuple[str, str], ...]
"""Names of settings of a session, with their values."""

MIN_FREE_CONNECTIONS: Final = 2
"""Connections that stay in the pool when the scheduler holds one for long."""

LOCK_TIMEOUT_MS: Final = 100
"""Longest wait of a hot statement for a locked row."""

DIVIDED_LOCK_TIMEOUT_MS: Final = 20
"""Longest wait for a lock when work that has met a lock is repeated, or divided into parts."""

SHARED_LOCK_TIMEOUT_MS: Final = 1000
"""Longest wait on the shared connection for a locked row."""

IDLE_TRANSACTION_TIMEOUT_MS: Final = 10_000
"""Idle time after which the server ends a transaction, for a process that is suspended in it."""

PROBES: Final = 3
"""TCP keepalive probes that the peer of a session may leave unanswered."""

PROBE_INTERVAL_S: Final = 5
"""Seconds without a packet before the first probe, and between two. A lost peer is noticed after four times
this."""


def probe_settings(interval_s: int) -> dict[str, str]:
    """Return the settings with which the server ends a session whose peer is gone, after four intervals.

    Without them the server keeps that session, with its locks, for the two hours of the operating system.
    ``tcp_user_timeout`` is for a response that the peer does not acknowledge, after which no probe is sent.
    Linux also uses it in place of the number of probes.
    """
    return {
        "tcp_keepalives_idle": str(interval_s),
        "tcp_keepalives_interval": str(interval_s),
        "tcp_keepalives_count": str(PROBES),
        # This setting has milliseconds, and those above have seconds.
        "tcp_user_timeout": str(interval_s * (PROBES + 1) * 1000),
    }


def as_statements(settings: Settings) -> str:
    """Return the statements that make these settings of a session."""
    return "; ".join(f"SET {name} = '{value}'" for name, value in settings)


def held_settings(interval_s: int = PROBE_INTERVAL_S) -> dict[str, str]:
    """Return the settings of a session that is held for long: it ends with its process, and not before."""
    return {"idle_session_timeout": "0", **probe_settings(interval_s)}


HELD_RESET: Final = "; ".join(f"RESET {name}" for name in held_settings())

PROBED_TRANSACTION: Final = "; ".join(
    f"SET LOCAL {name} = {value}" for name, value in probe_settings(PROBE_INTERVAL_S).items()
)
"""Begins a transaction that code of others keeps open, such as that of a job. It may be idle for long."""

BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Begins a transaction. The default of the role may be another level, at which statements do not see what
others have committed since the first one."""

PLANNER_SETTINGS: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""Planner settings of a held session: one generic plan that suits a table of any size."""

DEDICATED_SETTINGS: Final[Settings] = (
    *PLANNER_SETTINGS.items(),
    ("lock_timeout", str(LOCK_TIMEOUT_MS)),
    # Each statement is a transaction of its own.
    ("default_transaction_isolation", "read committed"),
)
"""The settings of the session for claims and completions."""

DEDICATED_RESET: Final = "; ".join(
    f"RESET {name}"
    for name in (*PLANNER_SETTINGS, *held_settings(), "lock_timeout", "default_transaction_isolation")
)
SHARED_SETTINGS: Final[Settings] = tuple(
    {**dict(DEDICATED_SETTINGS), "lock_timeout": str(SHARED_LOCK_TIMEOUT_MS)}.items()
)
"""The settings of the session that listens and runs statements of idle workers."""

TRANSACTION_SETTINGS: Final = (
    f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_TRANSACTION_TIMEOUT_MS};"
    # A session keeps the plan that it made while the table was small. These settings make it suit any size.
    # Before PostgreSQL 18 a disabled scan adds 1e10 to the cost of a plan, so jit would compile it.
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off"
)
HOT_TRANSACTION_SETTINGS: Final = f"{TRANSACTION_SETTINGS}; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"

ADMISSION_LOCK_TIMEOUT_MS: Final = 1000
"""Longest wait of an admission for the locks of its limits, which other workers hold for milliseconds."""

IDLE_ADMISSION_TIMEOUT_MS: Final = 2000
"""Idle time after which the server ends an admission and frees its locks."""

ADMISSION_SETTINGS: Final = "; ".join(
    [
        f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_ADMISSION_TIMEOUT_MS}",
        f"SET LOCAL lock_timeout = {ADMISSION_LOCK_TIMEOUT_MS}",
        *(f"SET LOCAL {name} = {value}" for name, value in PLANNER_SETTINGS.items()),
        "SET LOCAL enable_hashjoin = on",  # it joins the attempts of a batch; tables are read by laterals
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Timeouts in seconds, and the settings of held sessions.

    Attributes:
        call_timeout_s: Limit for one call, and for the wait for a connection.
        hot_timeout_s: The same for claims and completions, which take milliseconds. A worker whose connection
            is half-open stands still for this long. Rows claimed without an answer return to pending when
            their lease expires.
        answer_timeout_s: Time after which the shared connection counts as dead.
        close_timeout_s: Limit for closing a connection, or for resetting it before its release.
        lease_timeout_s: Limit for opening the lease connection, and for one heartbeat on it.
        lease_close_timeout_s: Limit for closing the lease connection.
        sticky_idle_s: Idle time after which the sticky connection returns to the pool.
        dedicated_settings: The settings of the dedicated session.
        shared_settings: The settings of the shared session. The lock timeout is shorter than
            ``answer_timeout_s``, so that a statement that waits for a lock does not look like a dead
            connection.
    """

    call_timeout_s: float = 30.0
    hot_timeout_s: float = 10.0
    answer_timeout_s: float = 5.0
    close_timeout_s: float = 5.0
    lease_timeout_s: float = 5.0
    lease_close_timeout_s: float = 1.0
    sticky_idle_s: float = 0.1
    dedicated_settings: Settings = DEDICATED_SETTINGS
    shared_settings: Settings = SHARED_SETTINGS
