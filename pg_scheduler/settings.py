"""Settings, checked where they are made. Unknown keys and wrong types are refused.

Positional use is allowed where pg-scheduler 0.2.x allowed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from pg_scheduler.errors import ConfigurationError

__all__ = ["PollingConfig", "SchedulerConfig", "VacuumConfig", "VacuumPolicy", "VacuumTrigger", "checked"]

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_DISCREET = ConfigDict(**_STRICT, hide_input_in_errors=True)

SECRET = frozenset({"direct_dsn", "keeper_dsn"})
"""Settings that may hold a password: never shown."""

Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, config=_STRICT)
class PollingConfig:
    """Bounds of the fallback polling.

    Notifications and the next due time wake a worker earlier, so these matter only when a notification
    was lost or cannot be had.

    Args:
        min_interval: Seconds; the shortest sleep between two polls that found nothing.
        max_interval: Seconds; the longest. A lost notification delays a job by at most this.
        backoff_multiplier: Growth of the sleep with each poll that found nothing; at least 1.
        idle_start_interval: Seconds; the first sleep after work.
        semaphore_full_interval: Seconds between two looks at the slots while all are taken; a slot that
            becomes free is noticed at once in any case.
        jitter: Move each sleep by up to 10 % so that nodes do not poll in step.
    """

    min_interval: Seconds = 0.05
    max_interval: Annotated[float, Field(gt=0)] = 2.0
    backoff_multiplier: Annotated[float, Field(ge=1)] = 1.5
    idle_start_interval: Seconds = 0.5
    semaphore_full_interval: Seconds = 1.0
    jitter: bool = True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_interval < self.min_interval:
            raise ValueError(
                f"max_interval must be at least min_interval, not {self.max_interval} < {self.min_interval}"
            )
        return self


class VacuumTrigger(Enum):
    """What makes a finished job deletable."""

    IMMEDIATE = "immediate"
    TIME_BASED = "time_based"
    COUNT_BASED = "count_based"
    NEVER = "never"


@dataclass(frozen=True, config=_STRICT)
class VacuumPolicy:
    """How long finished jobs of one status are kept. Ages count from the moment a job ended.

    Args:
        trigger: The kind of policy.
        days: With TIME_BASED: keep for so many days.
        keep_count: With COUNT_BASED: keep the newest so many per job name.
    """

    trigger: VacuumTrigger
    days: Annotated[float, Field(ge=0, le=100_000)] | None = None
    keep_count: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for trigger, name in ((VacuumTrigger.TIME_BASED, "days"), (VacuumTrigger.COUNT_BASED, "keep_count")):
            if (self.trigger is trigger) != (getattr(self, name) is not None):
                raise ValueError(f"{name} goes with VacuumTrigger.{trigger.name} and only with it")
        return self

    @classmethod
    def immediate(cls) -> VacuumPolicy:
        """Delete at the next vacuum."""
        return cls(VacuumTrigger.IMMEDIATE)

    @classmethod
    def after_days(cls, days: float) -> VacuumPolicy:
        """Delete ``days`` days after the job ended."""
        return cls(VacuumTrigger.TIME_BASED, days=days)

    @classmethod
    def keep_last(cls, count: int) -> VacuumPolicy:
        """Keep the ``count`` jobs of each job name that ended last."""
        return cls(VacuumTrigger.COUNT_BASED, keep_count=count)

    @classmethod
    def never(cls) -> VacuumPolicy:
        """Keep for ever."""
        return cls(VacuumTrigger.NEVER)


@dataclass(frozen=True, config=_STRICT)
class VacuumConfig:
    """What the vacuum deletes and when.

    Args:
        completed: Policy for completed jobs.
        failed: Policy for failed jobs.
        cancelled: Policy for cancelled jobs.
        interval_minutes: Minutes between two passes.
        track_metrics: Count what is deleted, per day, in the table ``vacuum_stats``.
        expired: Policy for expired jobs.
    """

    completed: VacuumPolicy = Field(default_factory=lambda: VacuumPolicy.after_days(1))
    failed: VacuumPolicy = Field(default_factory=lambda: VacuumPolicy.after_days(7))
    cancelled: VacuumPolicy = Field(default_factory=lambda: VacuumPolicy.after_days(3))
    interval_minutes: Annotated[float, Field(gt=0)] = 60
    track_metrics: bool = False
    expired: VacuumPolicy = Field(default_factory=lambda: VacuumPolicy.after_days(7), kw_only=True)


def _check_identifier(name: str) -> str:
    if not 0 < len(name.encode()) <= 63 or "\x00" in name:
        raise ValueError("the name of a schema has 1 to 63 bytes in UTF-8 and no NUL character")
    return name


@dataclass(frozen=True, config=_DISCREET)
class SchedulerConfig:
    """All settings of one Scheduler, as its constructor was given them."""

    max_concurrent_jobs: Annotated[int, Field(ge=1, le=1_000_000)]
    batch_claim_limit: Annotated[int, Field(ge=1, le=100_000)]
    misfire_grace_time: Annotated[int, Field(ge=0, le=2**31 - 1)] | None
    vacuum_enabled: bool
    vacuum: VacuumConfig
    polling: PollingConfig
    schema: Annotated[str, AfterValidator(_check_identifier)] | None
    direct_dsn: str | None = field(repr=False)
    max_payload_bytes: Annotated[int, Field(ge=64)] | None
    shutdown_timeout: Seconds
    lease_seconds: Annotated[float, Field(gt=0)]
    heartbeat_threshold: Annotated[float, Field(gt=0)]
    keeper_dsn: str | None = field(repr=False)
    max_crashes: Annotated[int, Field(ge=1, le=2**31 - 1)] | None
    max_loop_block: Annotated[float, Field(gt=0)]


def checked(kind: type, **values: Any) -> Any:
    """Build a settings value; what pydantic refuses becomes a ConfigurationError that names each setting."""
    try:
        return kind(**values)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or kind.__name__} = {_shown(fault)}: {fault['msg']}"
            for fault in error.errors()
        )
        raise ConfigurationError(f"bad setting: {faults}") from error


def _shown(fault: Mapping[str, Any]) -> str:
    return "***" if SECRET & set(fault["loc"]) else repr(fault["input"])
