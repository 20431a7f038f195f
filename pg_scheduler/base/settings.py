"""Settings. Each one validates itself when it is made; unknown names and wrong types are rejected."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeAlias

from pg_scheduler.base.dsn import check_dsn
from pg_scheduler.base.public import public
from pg_scheduler.base.setting_rules import at_least, at_most, more_than, not_empty, validated
from pg_scheduler.base.sqltext import MAX_IDENTIFIER_BYTES, NOT_RESERVED, RESERVED_PREFIX, is_storable

Notify: TypeAlias = Literal["commit", "hint", "never"]
"""Who notifies workers of a job in a transaction of the caller; see ``Scheduler(notify=)``."""

SECRETS: Final = frozenset({"direct_dsn", "keeper_dsn"})
"""Settings that may contain a password; messages do not show their values."""

PARAMETERS: Final = {
    "vacuum": "vacuum_config",
    "polling": "polling_config",
    "lease_seconds": "LEASE_DURATION",
    "heartbeat_threshold": "HEARTBEAT_THRESHOLD",
}
"""Fields of SchedulerConfig that users set under another name."""

JOB_ROLES: Final = frozenset({"both", "worker"})
"""The roles that claim and run jobs."""

MAX_INTERVAL_MINUTES: Final = 366 * 24 * 60
MAX_LABEL_LENGTH: Final = 200
MAX_METADATA_LENGTH: Final = 10_000

Seconds = Annotated[float, at_least(0)]
Patterns = tuple[Annotated[str, not_empty], ...]

_checked: Final = validated(names=PARAMETERS, secrets=SECRETS)


@public
@_checked
@dataclass(frozen=True)
class PollingConfig:
    """Bounds of the fallback polling, which finds jobs whose notification was lost or cannot be received.

    Args:
        min_interval: Shortest sleep in seconds between two polls that found nothing.
        max_interval: Longest sleep in seconds. A lost notification delays a job by at most this.
        backoff_multiplier: Factor by which the sleep grows with each poll that found nothing, at least 1.
        idle_start_interval: First sleep in seconds after a job was found.
        semaphore_full_interval: Seconds between two polls while every slot is taken. A slot that becomes free
            is used at once in any case.
        jitter: Whether each sleep varies by up to 10 %, so that nodes do not poll at the same time.

    Raises:
        ConfigurationError: A value is out of range or has the wrong type; a ValueError.
    """

    min_interval: Seconds = 0.05
    max_interval: Annotated[float, more_than(0)] = 2.0
    backoff_multiplier: Annotated[float, at_least(1)] = 1.5
    idle_start_interval: Seconds = 0.5
    semaphore_full_interval: Seconds = 1.0
    jitter: bool = True

    def __post_init__(self) -> None:
        """Check that the longest sleep is not shorter than the shortest one."""
        if self.max_interval < self.min_interval:
            raise ValueError(
                f"max_interval must be at least min_interval = {self.min_interval}, not {self.max_interval}"
            )


@public
class VacuumTrigger(Enum):
    """The condition under which a finished job is deleted."""

    IMMEDIATE = "immediate"
    """The job has finished."""
    TIME_BASED = "time_based"
    """The job finished more than ``days`` days ago."""
    COUNT_BASED = "count_based"
    """At least ``keep_count`` jobs of its name and status finished later."""
    NEVER = "never"
    """Never."""


@public
@_checked
@dataclass(frozen=True)
class VacuumPolicy:
    """Retention of the finished jobs of one status. Ages count from the moment a job finished.

    Args:
        trigger: The kind of policy.
        days: Days for which jobs are kept; required with TIME_BASED and invalid without it.
        keep_count: Newest jobs of each name that are kept; required with COUNT_BASED and invalid without it.

    Raises:
        ConfigurationError: A value is out of range or has the wrong type; a ValueError.
    """

    trigger: VacuumTrigger
    days: Annotated[float, at_least(0), at_most(100_000)] | None = None
    keep_count: Annotated[int, at_least(0)] | None = None

    def __post_init__(self) -> None:
        """Check that the policy has the value that its trigger needs, and no other one."""
        for trigger, name in ((VacuumTrigger.TIME_BASED, "days"), (VacuumTrigger.COUNT_BASED, "keep_count")):
            value = getattr(self, name)
            if self.trigger is trigger and value is None:
                raise ValueError(f"{name} must be given with VacuumTrigger.{trigger.name}, not None")
            if self.trigger is not trigger and value is not None:
                raise ValueError(f"{name} must be None with VacuumTrigger.{self.trigger.name}, not {value!r}")

    @classmethod
    def immediate(cls) -> VacuumPolicy:
        """Return a policy that deletes jobs at the next vacuum.

        A Scheduler with ``vacuum_enabled=True`` deletes completed jobs in the transaction that ends them.
        """
        return cls(VacuumTrigger.IMMEDIATE)

    @classmethod
    def after_days(cls, days: float) -> VacuumPolicy:
        """Return a policy that deletes a job ``days`` days after it finished."""
        return cls(VacuumTrigger.TIME_BASED, days=days)

    @classmethod
    def keep_last(cls, count: int) -> VacuumPolicy:
        """Return a policy that keeps the ``count`` jobs of each name and status that finished last."""
        return cls(VacuumTrigger.COUNT_BASED, keep_count=count)

    @classmethod
    def never(cls) -> VacuumPolicy:
        """Return a policy that deletes nothing."""
        return cls(VacuumTrigger.NEVER)


@public
@validated(names=PARAMETERS, none_is_default=True)
@dataclass(frozen=True)
class VacuumConfig:
    """Retention of finished jobs. A policy of None means its default.

    Args:
        completed: Policy for completed jobs; one day by default.
        failed: Policy for failed jobs; seven days by default.
        cancelled: Policy for cancelled jobs; three days by default.
        interval_minutes: Minutes from the end of a vacuum pass to the next one, varied by up to 10 %; at most
            527,040, which is 366 days. One node makes it for all that have the same policies.
        track_metrics: Whether deletions are counted per day in UTC, in the table ``vacuum_stats``.
        expired: Policy for expired jobs; seven days by default.
        schedules: Policy for schedules of callers that have finished; seven days by default. Not
            ``keep_last()``.
        audit: Policy for the records of changes; 90 days by default. Not ``keep_last()``.

    Raises:
        ConfigurationError: A value is out of range or has the wrong type; a ValueError.
    """

    completed: VacuumPolicy = field(default_factory=lambda: VacuumPolicy.after_days(1))
    failed: VacuumPolicy = field(default_factory=lambda: VacuumPolicy.after_days(7))
    cancelled: VacuumPolicy = field(default_factory=lambda: VacuumPolicy.after_days(3))
    interval_minutes: Annotated[float, more_than(0), at_most(MAX_INTERVAL_MINUTES)] = 60
    track_metrics: bool = False
    expired: VacuumPolicy = field(default_factory=lambda: VacuumPolicy.after_days(7), kw_only=True)
    schedules: VacuumPolicy = field(default_factory=lambda: VacuumPolicy.after_days(7), kw_only=True)
    audit: VacuumPolicy = field(default_factory=lambda: VacuumPolicy.after_days(90), kw_only=True)

    def __post_init__(self) -> None:
        """Refuse ``keep_last()`` where there is no name whose newest rows could be kept."""
        for name in ("schedules", "audit"):
            if getattr(self, name).trigger is VacuumTrigger.COUNT_BASED:
                raise ValueError(
                    f"{name} must not be VacuumPolicy.keep_last(): each has a row of its own; "
                    "pass after_days()"
                )


def check_identifier(name: str) -> str:
    """Return the name of a schema."""
    size = len(name.encode())
    if not 0 < size <= MAX_IDENTIFIER_BYTES or "\x00" in name:
        raise ValueError(f"must have 1 to {MAX_IDENTIFIER_BYTES} bytes in UTF-8 and no NUL character")
    if name.startswith(RESERVED_PREFIX):
        raise ValueError(f"must {NOT_RESERVED}")
    return name


def _check_label(label: str) -> str:
    """Return a label that PostgreSQL can store."""
    if not 0 < len(label) <= MAX_LABEL_LENGTH or not is_storable(label):
        raise ValueError(f"must have 1 to {MAX_LABEL_LENGTH} characters, no NUL and no lone surrogate")
    return label


def _check_json(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata that PostgreSQL can store."""
    try:
        text = json.dumps(metadata, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"must be values of JSON: {error}") from error
    # In JSON, a NUL is written as an escape.
    if "\\u0000" in text or not is_storable(text) or len(text) > MAX_METADATA_LENGTH:
        raise ValueError(
            f"must be at most {MAX_METADATA_LENGTH} characters of JSON without NUL and lone surrogates"
        )
    return metadata


@_checked
@dataclass(frozen=True)
class SchedulerConfig:
    """All settings of one Scheduler; its constructor documents them."""

    max_concurrent_jobs: Annotated[int, at_least(1), at_most(1_000_000)]
    batch_claim_limit: Annotated[int, at_least(1), at_most(100_000)] | None
    misfire_grace_time: Annotated[int, at_least(0), at_most(2**31 - 1)] | None
    vacuum_enabled: bool
    vacuum: VacuumConfig
    polling: PollingConfig
    schema: Annotated[str, check_identifier] | None
    direct_dsn: str | None = field(repr=False)
    max_payload_bytes: Annotated[int, at_least(64)] | None
    max_result_bytes: Annotated[int, at_least(64)] | None
    shutdown_timeout: Seconds
    lease_seconds: Annotated[float, at_least(0.1), at_most(31_536_000)]
    heartbeat_threshold: Annotated[float, more_than(0)]
    keeper_dsn: str | None = field(repr=False)
    max_crashes: Annotated[int, at_least(1), at_most(2**31 - 1)] | None
    max_loop_block: Annotated[float, more_than(0)]
    stop_grace: Annotated[float, at_least(0), at_most(86_400)] = 10.0
    max_stuck_threads: Annotated[int, at_least(0), at_most(10_000)] = 0
    role: Literal["both", "scheduler", "worker", "observer"] = "both"
    identity: Annotated[str, _check_label] | None = None
    only: Patterns = ()
    skip: Patterns = ()
    metadata: Annotated[dict[str, Any], _check_json] | None = None
    statistics: bool = True
    migrations: Literal["apply", "verify"] = "apply"
    on_copy: Literal["refuse", "adopt", "hold"] = "refuse"
    notify: Notify = "hint"

    def __post_init__(self) -> None:
        """Check the connection strings, whose errors name the setting."""
        for name in SECRETS:
            dsn = getattr(self, name)
            if dsn is not None:
                check_dsn(dsn, name)

    @property
    def runs_jobs(self) -> bool:
        """Whether the role claims and runs jobs."""
        return self.role in JOB_ROLES

    @property
    def deletes_completed(self) -> bool:
        """Whether the transaction that completes a job deletes its row."""
        return self.vacuum_enabled and self.vacuum.completed.trigger is VacuumTrigger.IMMEDIATE

    @property
    def plans(self) -> bool:
        """Whether the role enqueues the jobs of schedules."""
        return self.role in {"both", "scheduler"}
