"""A schedule as its row stores it, and the trigger and the policy that the row contains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal

from pg_scheduler.schedules.policies import CatchUp
from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.search import FIRST
from pg_scheduler.triggers.serialization import is_built_in

Owner = Literal["code", "api"]

MAX_VERSION: Final = 2**62
"""More edits than there can be; a row written by hand may have more."""

FIRST_FIRE: Final = FIRST
"""No schedule fires before this instant, which is the first one of all triggers."""

LAST_FIRE: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""No schedule fires after this instant. The SQL fragment ``last_fire_day``, by which rows are read, is the
same one. The last thousand years of Python's calendar are room to calculate with times."""

NO_ARGUMENTS: Final = '{"args": [], "kwargs": {}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A schedule as stored in ``scheduler_schedules``. JSON is text, since not every node can interpret it.

    Statements that write a row have its fields as parameters, in this order.

    Attributes:
        owner: ``code`` for one that is declared in code, ``api`` for one of a caller.
        task: The name of the function.
        job_name: The name of its jobs; None for that of the task.
        derived_key: Whether the id was derived from the function and the trigger, by ``@periodic``.
        enabled_in_code: Whether ``@periodic`` enables it.
        resume_from: If it is given, the next fire time has to be computed: the first one after this instant.
        paused_until: When its pause ends by itself.
        keeps_fire_times: Whether the fire times of the pause count as missed when it ends by itself.
        is_broken: Whether the planner paused it because of an error.
        searched_from: The next fire time was computed as the first one after this instant.
        tzdata: The version of the time zone data by which it was computed; None if the trigger has no time
            zone but UTC, or the version is unknown.
        module: The module of the function that declares it; None for one of a caller.
        retired_at: When workers found that their code declares it no longer.
        names: The names of the function that declares it, its aliases among them; None for one of a caller.
    """

    schedule_id: str
    owner: str
    task: str
    job_name: str | None = None
    derived_key: bool = False
    enabled_in_code: bool = True
    use_advisory_lock: bool = False
    trigger: str
    described: str
    task_data: str = NO_ARGUMENTS
    options: str = "{}"
    metadata: str = "{}"
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None
    jitter_seconds: float = 0.0
    overlap: str
    catch_up: str
    catch_up_limit: int | None = None
    catch_up_seconds: float | None = None
    pause_after_failures: int | None = None
    anchor: datetime
    next_fire_at: datetime | None = None
    resume_from: datetime | None = None
    last_fire_at: datetime | None = None
    last_job_id: str | None = None
    paused_at: datetime | None = None
    paused_until: datetime | None = None
    keeps_fire_times: bool = False
    note: str | None = None
    is_broken: bool = False
    runs: int = 0
    skipped: int = 0
    missed: int = 0
    failures: int = 0
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    version: int = 1
    searched_from: datetime | None = None
    tzdata: str | None = None
    module: str | None = None
    retired_at: datetime | None = None
    names: tuple[str, ...] | None = None

    @property
    def last_fire(self) -> datetime:
        """The instant after which it does not fire: its end, or that of all schedules."""
        return LAST_FIRE if self.end_at is None else self.end_at

    @property
    def enabled(self) -> bool:
        """Whether it is not paused."""
        return self.paused_at is None


def blank_row(schedule_id: str, now: datetime) -> ScheduleRow:
    """Return the row to which the definition of a new schedule is applied.

    It has placeholders, such as an empty trigger, and the values that every new schedule has.
    """
    return ScheduleRow(
        schedule_id=schedule_id,
        owner="api",
        task="",
        trigger="",
        described="",
        overlap="allow",
        catch_up="latest",
        anchor=now,
        created_at=now,
        updated_at=now,
    )


def as_edit_of(old: ScheduleRow, row: ScheduleRow, now: datetime) -> ScheduleRow:
    """Return an edited row with the version that follows that of the old row, written now."""
    return replace(row, version=min(old.version, MAX_VERSION) + 1, updated_at=now)


@lru_cache(maxsize=1024)
def read_trigger(text: str) -> Trigger:
    """Return the trigger of a row.

    Raises:
        UnknownKindError: This process has not registered a kind in it.
        ValueError: It is invalid.
    """
    return Trigger.from_json(text)


@lru_cache(maxsize=1024)
def has_built_in_trigger(text: str) -> bool:
    """Return whether all parts of the trigger of a row are those of this package.

    Raises:
        ValueError: It is invalid, or this process has not registered a kind in it.
    """
    return is_built_in(read_trigger(text))


def catch_up_of(row: ScheduleRow) -> CatchUp:
    """Return the policy of a row about missed fire times. Constraints of the table check its values."""
    within = None if row.catch_up_seconds is None else timedelta(seconds=row.catch_up_seconds)
    # The limit of a row that was written by hand may be larger than CatchUp accepts.
    limit = None if row.catch_up_limit is None else min(row.catch_up_limit, 10_000)
    return CatchUp(row.catch_up, limit, within)  # type: ignore[arg-type] # a constraint checks it
