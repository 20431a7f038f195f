"""What workers report in the JSON of their rows: the names of its values, and what readers get of them.

This is the one place that examines these values. A row may be that of another release, and people can write
rows. A value of another type, or one that no worker can have, counts as not reported, so readers meet only
what the attributes here promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from pg_scheduler.base.settings import VacuumTrigger
from pg_scheduler.jobs.history import instant_from
from pg_scheduler.jobs.limits import LimitNumbers
from pg_scheduler.jobs.metadata import NO_METADATA, check_metadata
from pg_scheduler.jobs.model import JobPriority
from pg_scheduler.jobs.naming import check_name
from pg_scheduler.jobs.task import CODE_OPTIONS, JOB_OPTIONS, as_argument

T = TypeVar("T")

ABANDONED: Final = "abandoned"
"""Where a worker reports the attempts that were to stop and run on."""

CODE: Final = "code"
"""Where a worker reports the fingerprints of its tasks; see ``shared_names``."""

DECLARED: Final = "schedules"
"""Where a worker reports the ids of the schedules that its code declares."""

EXACT_ALIASES: Final = "exact_aliases"
"""Where a worker reports which of its aliases are exact; the others are bare names of functions. Only SQL
reads it, when a task is paused."""

DECLARED_FUNCTIONS: Final = "schedule_functions"
"""Where a worker reports what besides its id identifies each schedule that its code declares, by the ids; see
``Declaration``."""

LEFT_OUT: Final = "schedules_left_out"
"""Where a worker reports that it declares more schedules than it lists, because they are too many."""

UNKNOWN_ZONES: Final = "unknown_zones"
"""Where a worker reports the time zones that it does not know, by the ids of due schedules."""

REFUSED_CLAIMS: Final = "refused_claims"
"""Where a worker reports why a trigger or a constraint prevents claims, by the ids of the jobs."""

REFUSED_NAMES: Final = "refused_names"
"""Where a worker reports the names of which it claims no job for some seconds, as too many are refused."""

TASK_METADATA: Final = "task_metadata"
"""Where a worker reports the metadata of its tasks, which not everyone may see, by their names."""

UNREPORTED: Final = ("metadata", *CODE_OPTIONS, "on_failure")
"""The options that a worker may name without their values. It names ``metadata`` only if they are too long
for a report, and ``on_failure`` only if it is of an earlier checkout."""

ZONE_DATA: Final = "tzdata"
"""Where a worker reports the version of its time zone data."""

MAX_SECONDS: Final = 1e11
"""Three thousand years: less than a timedelta can hold, and more than a clock can be wrong."""

OPTIONAL: Final = frozenset({"timeout", "misfire_grace_time", "keep_result", "deadline"})
"""The options of jobs whose value may be None instead of a number."""

MAX_COUNT: Final = 2**63 - 1
MAX_DAYS: Final = 100_000


def reported_names(names: Sequence[Any] | None) -> tuple[str, ...] | None:
    """Return the names that a worker claims; None if it does not report them.

    A row may have a nested array, so items that are no texts are left out.
    """
    return None if names is None else tuple(name for name in names if isinstance(name, str))


@dataclass(frozen=True, slots=True)
class LoopBlock:
    """A time for which the event loop of a worker was blocked."""

    seconds: float
    job_id: str | None
    """The job that blocked it; None if none or a chunk did, or if the worker does not report it."""
    job_name: str | None
    """The name of that job, or of the jobs of that chunk."""
    names_culprit: bool
    """Whether the worker reports what blocked the loop. If it does, and ``job_name`` is None, no job did."""


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The connections of the pool of a worker; None for a number that it does not report."""

    size: int | None
    idle: int | None
    max: int | None

    @property
    def in_use(self) -> int | None:
        """The connections that are in use."""
        return None if self.size is None or self.idle is None else self.size - self.idle


class AbandonedAttempt(NamedTuple):
    """An attempt that was to stop, and whose code runs on."""

    job_id: str
    job_name: str
    attempt: int
    reason: str
    """Why it was to stop: ``cancelled``, ``lost``, ``shutdown`` or ``timeout``."""
    since: datetime
    """When it was to stop."""
    in_thread: bool
    """Whether its code runs in a thread, which nothing can stop; otherwise it ignores its cancellation."""
    has_slot: bool = True
    """Whether it has a slot of its worker; otherwise the slot is free for another job."""


NO_POOL: Final = PoolUse(None, None, None)


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """What a worker reports with its heartbeats; the default of an attribute if it does not report it."""

    pool: PoolUse = NO_POOL
    loop_lag_s: float | None = None
    """Seconds for which its event loop kept a callback waiting."""
    is_listening: bool | None = None
    has_liveness_lock: bool | None = None
    is_logger_disabled: bool = False
    clock_offset_s: float | None = None
    """Seconds by which the clock of its host is ahead of that of the server."""
    block: LoopBlock | None = None
    """What blocks its event loop now."""
    last_block: LoopBlock | None = None
    """What blocked its event loop in the last 15 minutes."""
    missing_executors: Mapping[str, str] = field(default_factory=dict)
    """The executors that it lacks, by the names of the tasks that need them."""
    unknown_zones: Mapping[str, str] = field(default_factory=dict)
    """The time zones that it does not know, by the ids of due schedules."""
    refused_claims: Mapping[str, str] = field(default_factory=dict)
    """Why a trigger or a constraint of the application prevents the claims of jobs, by their ids."""
    refused_names: Sequence[str] = ()
    """The names of which it claims no job for some seconds, because too many are refused."""

    abandoned: Sequence[AbandonedAttempt] = ()
    """The attempts that were to stop and run on, those that have run on for the longest time first."""

    @property
    def replaced_threads(self) -> int:
        """How many of these attempts run on in threads without a slot."""
        return sum(not attempt.has_slot for attempt in self.abandoned)

    @classmethod
    def of(cls, health: Mapping[str, Any]) -> ReportedHealth:
        """Return what the health in the row of a worker states."""
        pool = _object(health.get("pool"))
        last_block = _object(health.get("last_blocked"))
        return cls(
            pool=PoolUse(_count(pool.get("size")), _count(pool.get("idle")), _count(pool.get("max"))),
            loop_lag_s=_seconds(health.get("loop_lag_s")),
            is_listening=_truth(health.get("is_listening")),
            has_liveness_lock=_truth(health.get("has_liveness_lock")),
            is_logger_disabled=health.get("is_logger_disabled") is True,
            clock_offset_s=_number(health.get("clock_offset_s")),
            block=_block(health, "loop_blocked_s", "blocking_job_id", "blocking_job_name"),
            last_block=_block(last_block, "seconds", "job_id", "job_name"),
            missing_executors=_texts(health.get("missing_executors")),
            unknown_zones=_texts(health.get(UNKNOWN_ZONES)),
            refused_claims=_texts(health.get(REFUSED_CLAIMS)),
            refused_names=_text_list(health.get(REFUSED_NAMES)),
            abandoned=tuple(_abandoned(health.get(ABANDONED))),
        )

    def without_names(self) -> ReportedHealth:
        """Return what is reported without the names and ids of jobs, tasks and schedules.

        Only the attributes that are listed here are copied. So a new attribute is hidden until it is listed.
        """
        return ReportedHealth(
            pool=self.pool,
            loop_lag_s=self.loop_lag_s,
            is_listening=self.is_listening,
            has_liveness_lock=self.has_liveness_lock,
            is_logger_disabled=self.is_logger_disabled,
            clock_offset_s=self.clock_offset_s,
            block=_without_culprit(self.block),
            last_block=_without_culprit(self.last_block),
        )


class ReportedLimit(NamedTuple):
    """A limit of a task."""

    name: str
    task: str
    by_key: bool
    numbers: LimitNumbers
    spread: bool


class ReportedShare(NamedTuple):
    """A share of a task."""

    name: str
    task: str


class ReportedRetention(NamedTuple):
    """For how long a worker keeps the jobs of a status; ``days`` is None if their age does not decide it."""

    days: float | None
    deletes: bool
    """Whether it deletes such jobs at all."""


class ReportedOptions(NamedTuple):
    """The options that a task gives its jobs."""

    values: Mapping[str, Any]
    """The values, as rows of jobs store them; an option that is left out has the default of the Scheduler."""
    in_code: Sequence[str]
    """The options that only the code can apply."""
    on_failure: str | None = None
    metadata: Mapping[str, Any] = NO_METADATA
    on_cancel: str | None = None


class Parameter(NamedTuple):
    """A parameter that a job can be given by name."""

    name: str
    is_required: bool


@dataclass(frozen=True, slots=True)
class ReportedSettings:
    """What a worker reports when it starts. Each value is examined when it is read, as some are large."""

    _values: Mapping[str, Any]

    @property
    def aliases(self) -> dict[str, str]:
        """The names of its tasks, by the other names of these tasks."""
        return _texts(self._values.get("aliases"))

    @property
    def limits(self) -> Iterator[ReportedLimit]:
        """The limits of its tasks."""
        for limit in _objects(self._values.get("limits")):
            name = _text(limit.get("name"))
            task = _text(limit.get("task"))
            if name is not None and task is not None:
                by_key = limit.get("by_key") is True
                spread = limit.get("spread") is True
                yield ReportedLimit(name, task, by_key, _limit_numbers(limit), spread)

    @property
    def shares(self) -> Iterator[ReportedShare]:
        """The shares of its tasks."""
        for share in _objects(self._values.get("shares")):
            name = _text(share.get("name"))
            task = _text(share.get("task"))
            if name is not None and task is not None:
                yield ReportedShare(name, task)

    @property
    def counts_attempts(self) -> bool:
        """Whether it counts attempts; True if it reports nothing about that."""
        return self._values.get("statistics") is not False

    @property
    def zone_data(self) -> str | None:
        """The version of its time zone data; not all machines state one."""
        return _text(self._values.get(ZONE_DATA)) or None

    @property
    def fingerprints(self) -> dict[str, dict[str, str]]:
        """Hashes of the code of its tasks, by the interpreter that has compiled them, and by their names."""
        return {compiler: _texts(names) for compiler, names in _object(self._values.get(CODE)).items()}

    @property
    def declared_ids(self) -> list[str]:
        """The ids of the schedules that its code declares."""
        return list(_text_list(self._values.get(DECLARED)))

    @property
    def declared_functions(self) -> Mapping[str, Any]:
        """What identifies the schedules that its code declares, besides their ids; see ``Declaration``."""
        return _object(self._values.get(DECLARED_FUNCTIONS))

    @property
    def retention(self) -> Mapping[str, Any] | None:
        """Its policies of retention as the row has them, even if it does not apply them; None without any."""
        vacuum = self._values.get("vacuum")
        return vacuum if isinstance(vacuum, Mapping) else None

    def retention_of(self, status: str) -> ReportedRetention:
        """Return for how long it keeps the jobs of a status. It deletes none if its vacuum is disabled."""
        is_enabled = self._values.get("vacuum_enabled") is True
        policies = _object(self.retention) if is_enabled else {}
        policy = _object(policies.get(status))
        days = _number(policy.get("days"))
        has_valid_days = days is not None and 0 <= days <= MAX_DAYS
        deletes = bool(policy) and policy.get("trigger") != VacuumTrigger.NEVER.value
        return ReportedRetention(days if has_valid_days else None, deletes)

    def options_of(self, task: str) -> ReportedOptions | None:
        """Return the options of a task; None if it does not report them."""
        options = _object(self._values.get("options")).get(task)
        if not isinstance(options, Mapping):
            return None
        values = {
            name: options[name] for name in JOB_OPTIONS if name in options and _is_option(name, options[name])
        }
        # A worker reports the names of the options that only its code can apply.
        in_code = _text_list(options.get("code"))
        metadata = _object(self._values.get(TASK_METADATA)).get(task)
        return ReportedOptions(
            values,
            [name for name in UNREPORTED if name in in_code],
            _checked(check_name, options.get("on_failure")),
            _checked(check_metadata, metadata) or NO_METADATA,
            _checked(check_name, options.get("on_cancel")),
        )

    def parameters_of(self, task: str) -> list[Parameter] | None:
        """Return the parameters of a task in their order; None if it does not report them."""
        pairs = _object(self._values.get("parameters")).get(task)
        if not isinstance(pairs, list):
            return None
        # A valid pair is the name of a parameter, and whether it is required.
        valid_pairs = [pair for pair in pairs if isinstance(pair, list) and [*map(type, pair)] == [str, bool]]
        return [Parameter(*pair) for pair in valid_pairs]

    def positional_of(self, task: str) -> int:
        """Return how many of the parameters of a task take positional arguments; these come first."""
        return _count(_object(self._values.get("positional")).get(task)) or 0


def _abandoned(attempts: object) -> Iterator[AbandonedAttempt]:
    """Yield the reported attempts, without those that lack a valid value."""
    for attempt in _objects(attempts):
        job_id = _text(attempt.get("job_id"))
        name = _text(attempt.get("job_name"))
        number = _count(attempt.get("attempt"))
        since = instant_from(attempt.get("since"))
        if job_id and name is not None and number is not None and since is not None:
            reason = _text(attempt.get("reason")) or ""
            yield AbandonedAttempt(
                job_id,
                name,
                number,
                reason,
                since,
                in_thread=attempt.get("in_thread") is True,
                has_slot=attempt.get("has_slot") is not False,
            )


def _limit_numbers(limit: Mapping[str, Any]) -> LimitNumbers:
    """Return the numbers that are reported of a limit."""
    max_starts = _count(limit.get("max_starts"))
    per_s = _seconds(limit.get("per_s"))
    # One of them means nothing without the other.
    if max_starts is None or per_s is None:
        max_starts = per_s = None
    return LimitNumbers(_count(limit.get("max_running")), max_starts, per_s)


def _is_option(name: str, value: object) -> bool:
    """Return whether a task can give its jobs this value of an option."""
    if name == "priority":
        return _count(value) in {priority.db_value for priority in JobPriority}
    if value is None:
        return name in OPTIONAL
    # as_argument() makes a timedelta of this number, for which a number beyond these bounds is too large.
    if name == "keep_result" and _seconds(value) is None:
        return False
    return _checked(JOB_OPTIONS[name].check, as_argument(name, value)) is not None


def _checked(check: Callable[[Any], T], value: object) -> T | None:
    """Return what a check makes of a value; None if the check rejects it."""
    try:
        return check(value)
    except (TypeError, ValueError):
        return None


def _block(values: Mapping[str, Any], seconds_key: str, id_key: str, name_key: str) -> LoopBlock | None:
    """Return the block that values under these keys describe; None if there is none."""
    seconds = _seconds(values.get(seconds_key))
    if seconds is None:
        return None
    job_id = _text(values.get(id_key))
    job_name = _text(values.get(name_key))
    # None under the key of the id states that no job blocked the event loop. Without the key, it is unknown.
    return LoopBlock(seconds, job_id, job_name, names_culprit=id_key in values)


def _without_culprit(block: LoopBlock | None) -> LoopBlock | None:
    """Return a time for which the event loop was blocked, without the job that blocked it."""
    return None if block is None else LoopBlock(block.seconds, None, None, names_culprit=False)


def _number(value: object) -> float | None:
    """Return a number within the bounds of clocks and timedeltas; None for any other value."""
    # The comparison is negated, because any comparison with NaN is false. It precedes float(), because an int
    # may have more digits than a float can hold.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_SECONDS:
        return None
    return float(value)


def _seconds(value: object) -> float | None:
    """Return a number that is not negative; None for any other value."""
    number = _number(value)
    return None if number is None or number < 0 else number


def _count(value: object) -> int | None:
    """Return an int that is not negative and that PostgreSQL can hold; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        return None
    return value


def _text(value: object) -> str | None:
    """Return a text; None for any other value."""
    return value if isinstance(value, str) else None


def _truth(value: object) -> bool | None:
    """Return a bool; None for any other value."""
    return value if isinstance(value, bool) else None


def _object(value: object) -> Mapping[str, Any]:
    """Return an object of JSON; an empty one for any other value."""
    return value if isinstance(value, Mapping) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    """Return the objects in a list of JSON; none for any other value."""
    if not isinstance(value, list):
        return []
    return [member for member in value if isinstance(member, Mapping)]


def _text_list(value: object) -> tuple[str, ...]:
    """Return the texts in a list of JSON; none for any other value."""
    if not isinstance(value, list):
        return ()
    return tuple(text for text in value if isinstance(text, str))


def _texts(value: object) -> dict[str, str]:
    """Return the members of an object of JSON that are texts; none for any other value."""
    return {name: text for name, text in _object(value).items() if isinstance(text, str)}
