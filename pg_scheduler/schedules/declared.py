"""Schedules as the code declares them, their catalogue, and the changes of the rows that follow from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final, NamedTuple

from pg_scheduler.base.public import public
from pg_scheduler.errors import ConfigurationError, NameConflictError
from pg_scheduler.jobs.model import UNSET, JobFunction, JobPriority
from pg_scheduler.jobs.naming import (
    check_function,
    former_job_name,
    module_name,
    qualified_name,
    required_parameters,
)
from pg_scheduler.jobs.registry import captures_same, catalogue
from pg_scheduler.jobs.task import check_schedulable
from pg_scheduler.jobs.validation import check_kind, check_text
from pg_scheduler.schedules.definition import Definition, check_trigger, to_seconds
from pg_scheduler.schedules.policies import LATEST, CatchUp, Overlap
from pg_scheduler.schedules.row import ScheduleRow, as_edit_of, blank_row
from pg_scheduler.schedules.timing import is_ahead, must_retime, retime
from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.cron import Cron
from pg_scheduler.triggers.interval import Every
from pg_scheduler.triggers.search import FIRST
from pg_scheduler.triggers.zones import parse_timezone

MAX_JOB_NAME_LENGTH: Final = 1000
MAX_DEDUP_KEY_LENGTH: Final = 200

SERVICE_MARK: Final = "#"
"""Separates the name of a module from the mark of a service: modules of two services may share a name."""

_NO_PAUSE: Final[Mapping[str, Any]] = {
    "paused_until": None,
    "keeps_fire_times": False,
    "note": None,
    "is_broken": False,
}


@public
@dataclass(frozen=True)
class PeriodicJobConfig:
    """A periodic function and its schedule, validated and with every default filled in.

    Attributes:
        func: The coroutine function.
        interval: The time between two fire times; None with ``cron``.
        cron: The cron expression; None with ``interval``.
        timezone: The time zone of the cron expression; None for an interval.
        use_advisory_lock: Whether an attempt is skipped while another one runs on any node.
        priority: The priority of its jobs; that of the task unless the decorator gives one.
        max_retries: The number of retries after a failed first attempt; that of the task unless the decorator
            gives one.
        job_name: The name of its task if ``@job`` or ``job_name=`` gives one. Otherwise that of 0.2, which
            its jobs have in the column ``job_name``: ``periodic_<function name>``.
        dedup_key: The key of the schedule, the same on every node.
        enabled: Whether the schedule fires.
        trigger: Computes the fire times.
        overlap: The behaviour at a fire time while the last job is unfinished.
        catch_up: The jobs for missed fire times.
        jitter: Each job is due up to this much later than its fire time; seconds or a timedelta.
        start: No fire time precedes it; None for no bound.
        end: No fire time follows it; None for no bound.
        pause_after_failures: The number of final failures in a row that pauses the schedule; None for never.
        options_of_task: The names of the options that the decorator leaves to the task.
        derived_key: Whether the dedup key was derived from the function and the schedule.
        named: Whether the job name was given.
    """

    func: JobFunction
    interval: timedelta | None = None
    cron: str | None = None
    timezone: tzinfo | str | None = None
    use_advisory_lock: bool = False
    priority: JobPriority = JobPriority.NORMAL
    max_retries: int = 0
    job_name: str = ""
    dedup_key: str = ""
    enabled: bool = True
    trigger: Trigger = field(default=None, repr=False, kw_only=True)  # type: ignore[assignment] # set below
    overlap: Overlap = field(default=Overlap.ALLOW, repr=False, kw_only=True)
    catch_up: CatchUp = field(default=LATEST, repr=False, kw_only=True)
    jitter: float | timedelta = field(default=0, repr=False, kw_only=True)
    start: datetime | None = field(default=None, repr=False, kw_only=True)
    end: datetime | None = field(default=None, repr=False, kw_only=True)
    pause_after_failures: int | None = field(default=None, repr=False, kw_only=True)
    options_of_task: frozenset[str] = field(default=frozenset(), repr=False, compare=False, kw_only=True)
    derived_key: bool = field(init=False, repr=False, compare=False)
    named: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Validate the values, and fill in the trigger, the time zone, the names and the dedup key."""
        check_function(self.func, allow_plain=True)
        required = required_parameters(self.func)
        if required:
            raise ConfigurationError(
                f"@periodic calls {self.function} without arguments, but it requires {', '.join(required)}; "
                "give them defaults, or decorate a function without parameters"
            )
        try:
            for flag in ("use_advisory_lock", "enabled"):
                check_kind(flag, getattr(self, flag), bool)
            self._set(trigger=trigger_for(self.interval, self.cron, self.timezone, self.trigger))
            # Making a row checks all values of the schedule. The row itself is not stored.
            checked_row = definition_of(self).new_row("", now=FIRST)
        # Callers get a TypeError for a wrong function only, so a TypeError about a value is converted.
        except TypeError as error:
            raise ConfigurationError(str(error)) from error
        self._set(
            timezone=parse_timezone(self.timezone) if self.cron is not None else None,
            start=checked_row.start_at,
            end=checked_row.end_at,
            derived_key=not self.dedup_key,
            named=bool(self.job_name),
        )
        # The derived key contains the time zone, so it is computed after the zone was set above.
        job_name = self.job_name or former_job_name(self.func)
        dedup_key = self.dedup_key or self._derive_key()
        self._set(
            job_name=check_label("job_name", job_name, MAX_JOB_NAME_LENGTH),
            dedup_key=check_label("dedup_key", dedup_key, MAX_DEDUP_KEY_LENGTH),
        )

    @property
    def function(self) -> str:
        """The name under which the function is registered."""
        return qualified_name(self.func)

    @property
    def task(self) -> str:
        """The name of the task, and so of its jobs: that of ``@job`` or ``job_name=``, else ``function``."""
        task = catalogue.task_of(self.func)
        return self.function if task is None else task.name

    def switched(self, *, enabled: bool, job_name: str | None = None) -> PeriodicJobConfig:
        """Return a copy that is enabled or disabled, and has the job name if one is given.

        Options that ``@periodic`` did not give are those that the task has now, since ``@job`` may have set
        them after ``@periodic``.
        """
        task = catalogue.task_of(self.func)
        inherited: dict[str, Any] = {}
        if task is not None:
            inherited = {name: getattr(task, name) for name in self.options_of_task}
        # replace() computes the two flags anew. It would take the name and the key, which are filled in by
        # now, for given ones. So the flags of the original are set afterwards.
        copy = replace(self, enabled=enabled, job_name=job_name or self.job_name, **inherited)
        PeriodicJobConfig._set(copy, derived_key=self.derived_key, named=self.named)
        return copy

    @property
    def declaration(self) -> Declaration:
        """What identifies the schedule besides its key: its function, its task and their names."""
        names = catalogue.lists.explicit.get(self.function, frozenset([self.function]))
        return Declaration(self.function, self.task, names, self.derived_key)

    @property
    def module(self) -> str:
        """The name of the module that has the function."""
        return module_name(self.func)

    @property
    def jitter_seconds(self) -> float:
        """The jitter in seconds."""
        return to_seconds("jitter", self.jitter)

    def _derive_key(self) -> str:
        """Return a key that follows from the function and the times at which it fires."""
        # pg-scheduler 0.2.x hashes the same text, so its keys stay valid.
        if self.interval:
            when = f"interval:{self.interval.total_seconds()}"
        elif self.cron is not None:
            when = f"cron:{self.cron}:tz:{self.timezone}"
        else:
            when = f"trigger:{json.dumps(self.trigger.to_json(), sort_keys=True)}"
        text = f"{module_name(self.func)}.{self.func.__qualname__}:{when}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _set(self, **values: object) -> None:
        """Set attributes of this instance, although the dataclass is frozen for others."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


class Declaration(NamedTuple):
    """What identifies a schedule that code declares, besides its key, which another release may change.

    Attributes:
        function: The ``module.qualname`` of its function.
        task: The name of its task.
        names: The names of its function: that of the task, ``module.qualname`` and the aliases.
        derived_key: Whether the key was derived from the function and the schedule.
    """

    function: str
    task: str
    names: frozenset[str]
    derived_key: bool

    def find_former_rows(
        self,
        declarations: Mapping[str, Declaration],
        rows: Mapping[str, ScheduleRow],
        service: str | None,
        taken_keys: Collection[str] = (),
    ) -> list[ScheduleRow]:
        """Return the rows that the schedule may have had under other keys; call this if its key has no row.

        A derived key changes with the times at which the schedule fires, and the row should move along. All
        code that assigns rows to declared schedules calls this: a process that writes its schedules, one that
        retires those of others, and the doctor, which looks for lost ones. The rules are:

        - Rows of other services belong to other functions.
        - A key that was given, and not derived, identifies one schedule. So of the key of the row and the key
          of this schedule, at least one must be derived.
        - Retired rows are from earlier deployments. They count only if there are no active ones, and if no
          other schedule of the function has a row.
        - Rows of the function itself precede rows of functions whose names are its aliases.

        Args:
            declarations: The schedules of the same code, by key: a row under such a key is theirs.
            rows: The rows of the database, by key.
            service: The mark of the service of this code; None if it has none yet.
            taken_keys: The keys of rows that were assigned to other schedules of this code.
        """
        former_rows = [
            row
            for row in rows.values()
            if row.owner == "code"
            and (self.derived_key or row.derived_key)
            and row.schedule_id not in declarations
            and row.schedule_id not in taken_keys
            and self._may_be(row, service)
        ]
        active_rows = [row for row in former_rows if row.retired_at is None]
        has_other_row = any(
            key in rows and declaration.function == self.function for key, declaration in declarations.items()
        )
        if not active_rows and has_other_row:
            return []
        candidates = active_rows or former_rows
        rows_of_function = [row for row in candidates if row.task in {self.task, self.function}]
        return rows_of_function or candidates

    def _may_be(self, row: ScheduleRow, service: str | None) -> bool:
        """Return whether the function of this declaration may have declared a row.

        A row that has no mark of a service must be one of the same task. A row with a mark must have the mark
        of this service, and share any name of the function.
        """
        row_service = service_of(row)
        if row_service is None:
            return row.task in self.names or self.task in names_of(row)
        return row_service == service and not self.names.isdisjoint(names_of(row))

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as the JSON object that a worker stores in its row."""
        return self._asdict() | {"names": sorted(self.names)}

    @classmethod
    def from_json(cls, value: object) -> Declaration | None:
        """Return the declaration in a JSON value that ``to_json()`` of this or a later release has written.

        Further keys, which a later release may write, are ignored. For any other value the result is None.
        """
        match value:
            case {
                "function": str(function),
                "task": str(task),
                "names": [*names],
                "derived_key": bool(is_derived),
            }:
                if all(isinstance(name, str) for name in names):
                    return cls(function, task, frozenset(names), is_derived)
        return None


def reported_declarations(report: Mapping[str, Any]) -> dict[str, Declaration]:
    """Return by dedup key the declarations of schedules that a worker has stored in its row.

    Values that are no declarations are left out.
    """
    declarations = {key: Declaration.from_json(value) for key, value in report.items()}
    return {key: declaration for key, declaration in declarations.items() if declaration is not None}


def names_of(row: ScheduleRow) -> Collection[str]:
    """Return the names of the function that declared a schedule: its task, then its aliases and others."""
    return row.task, *(row.names or ())


def check_label(name: str, value: object, max_length: int) -> str:
    """Return the value if it is a non-empty text that PostgreSQL can store.

    Raises:
        ValueError: It is not.
    """
    if isinstance(value, str) and 0 < len(value) <= max_length:
        with suppress(ValueError):
            return check_text(name, value)
    raise ValueError(
        f"{name} must be a str of 1 to {max_length} characters without NUL or lone surrogates, not {value!r}"
    )


def trigger_for(
    every: timedelta | None,
    cron: str | None,
    timezone: tzinfo | str | None,
    trigger: Trigger | None = None,
) -> Trigger:
    """Return the trigger of a schedule.

    Raises:
        ValueError: None or several of ``every``, ``cron`` and ``trigger`` are given, the interval is not
            positive, the cron expression or the time zone is invalid, a time zone is given without ``cron``,
            or the class of the trigger has no kind.
        TypeError: A parameter has the wrong type.
    """
    if every is None and cron is None:
        if trigger is None:
            raise ValueError("Either every= or cron= must be given; both are None, as is trigger=")
        if timezone is not None:
            raise ValueError(f"timezone={timezone!r} requires cron=; pass the time zone to the trigger")
        # to_json() raises ValueError if the class has no kind.
        check_trigger(trigger).to_json()
        return trigger
    if every is not None and cron is not None:
        raise ValueError(f"Either every= or cron= must be given, not both: every={every!r} and cron={cron!r}")
    built_trigger: Trigger
    if cron is not None:
        built_trigger = Cron(cron, parse_timezone(timezone))
    elif timezone is not None:
        raise ValueError(f"timezone={timezone!r} requires cron=; an interval is the same in every time zone")
    elif not isinstance(every, timedelta):
        raise TypeError(f"every must be a timedelta, not {type(every).__name__}: {every!r}")
    else:
        built_trigger = Every(every)
    # A copy of a config passes ``every`` or ``cron``, together with the trigger that its original computed
    # from it. Both are equal then, which is no error.
    if trigger is not None and trigger != built_trigger:
        raise ValueError(
            f"Either trigger= or every= or cron= must be given, not '{trigger}' and '{built_trigger}'"
        )
    return built_trigger


def definition_of(config: PeriodicJobConfig) -> Definition:
    """Return the definition of a declared schedule; options that the decorator does not give are left out."""
    # These options follow the task at each fire time, so the row must not fix their values.
    inherited = config.options_of_task
    return Definition(
        task=config.task,
        trigger=config.trigger,
        args=(),
        kwargs={},
        start=config.start,
        end=config.end,
        max_runs=None,
        jitter=config.jitter,
        overlap=config.overlap,
        catch_up=config.catch_up,
        pause_after_failures=config.pause_after_failures,
        priority=UNSET if "priority" in inherited else config.priority,
        max_retries=UNSET if "max_retries" in inherited else config.max_retries,
        metadata=None,
    )


def new_row(
    config: PeriodicJobConfig, now: datetime, chain_due_at: datetime | None = None, service: str | None = None
) -> ScheduleRow:
    """Return the row that a declared schedule has when it is new.

    Args:
        config: The schedule, as the code declares it.
        now: The time of the database.
        chain_due_at: The due time of the pending job of a chain, which counts as the first fire time; None
            without a chain. In pg-scheduler 0.2, each job of a schedule enqueued the next one.
        service: The mark of the service; None for no mark.
    """
    row = _with_declaration(config, blank_row(config.dedup_key, now), service)
    row = replace(
        row,
        anchor=chain_due_at or now,
        # The job of a chain exists already, so the planner continues after its fire time.
        last_fire_at=chain_due_at,
        paused_at=None if config.enabled else now,
    )
    return retime(row, config.trigger, now, is_new=True, may_end=True)


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The changes that bring the rows of the database to the schedules that the code declares.

    Attributes:
        write: The rows to insert or to overwrite.
        moved: For each schedule whose dedup key has changed, the former key by the new one. The row of the
            former key is deleted.
    """

    write: tuple[ScheduleRow, ...] = ()
    moved: Mapping[str, str] = field(default_factory=dict)

    @property
    def delete(self) -> tuple[str, ...]:
        """The keys of the rows to delete."""
        return tuple(self.moved.values())


def plan_sync(
    configs: Mapping[str, PeriodicJobConfig],
    rows: Mapping[str, ScheduleRow],
    *,
    now: datetime,
    chain_due_times: Mapping[str, datetime],
    service: str | None = None,
    creates: bool = True,
    left_ids: Collection[str] = (),
) -> SyncPlan:
    """Return the changes that bring the rows to the schedules declared in code.

    A new schedule is anchored at its start or at ``now``. An edited schedule fires next at its first new
    fire time after both ``now`` and its last fire time, so no fire time is enqueued twice. If an edit changes
    a derived dedup key, and ``find_former_rows()`` returns exactly one row, that row moves to the new key.
    Whether a schedule is paused follows from the latest change, in the code or by a call.

    Args:
        configs: The periodic functions of this process, by dedup key.
        rows: The rows of the database, by dedup key.
        now: The time of the database.
        chain_due_times: By key, the ``chain_due_at`` of new rows; see `new_row()`.
        service: The mark of the service if none of its schedules has a row; None for no mark.
        creates: Whether a schedule without a row gets a new one. It gets one in any case if several rows
            under other keys may be its own.
        left_ids: The dedup keys of rows to leave, because the code of another worker decides about them.
    """
    declarations = declarations_of(configs)
    # The mark in the rows counts. The given one is for a service that has written no row yet.
    service = service_among(declarations, rows) or service
    write: list[ScheduleRow] = []
    moved: dict[str, str] = {}
    for key, old_rows in find_moves(declarations, rows, service, left_ids).items():
        if len(old_rows) == 1:
            old = old_rows[0]
            if old.schedule_id != key:
                moved[key] = old.schedule_id
            row = _edited(configs[key], old, now, service)
            if row != old:
                write.append(as_edit_of(old, row, now))
        # With several rows that may be its own, it is unknown which one to move, so it gets a new one.
        elif creates or old_rows:
            write.append(new_row(configs[key], now, chain_due_times.get(key), service))
    return SyncPlan(tuple(write), moved)


def find_moves(
    declarations: Mapping[str, Declaration],
    rows: Mapping[str, ScheduleRow],
    service: str | None,
    left_ids: Collection[str],
) -> dict[str, list[ScheduleRow]]:
    """Return by dedup key, for each declared schedule, its row in a list.

    If its key has no row, the list has the rows that it may have had under other keys. If that is a single
    row, it moves to the key, and is assigned to no other schedule. A schedule is left out of the result if
    one of its rows is in ``left_ids``.
    """
    moves: dict[str, list[ScheduleRow]] = {}
    taken_keys: set[str] = set()
    for key, declaration in declarations.items():
        if key in rows:
            old_rows = [rows[key]]
        else:
            old_rows = declaration.find_former_rows(declarations, rows, service, taken_keys)
        if any(row.schedule_id in left_ids for row in old_rows):
            continue
        if len(old_rows) == 1:
            taken_keys.add(old_rows[0].schedule_id)
        moves[key] = old_rows
    return moves


def is_as_declared(config: PeriodicJobConfig, row: ScheduleRow) -> bool:
    """Return whether a row has all values that the code declares for its schedule."""
    return _with_declaration(config, row, None) == row


def service_of(row: ScheduleRow) -> str | None:
    """Return the mark of the service that declares a schedule; None if the row has none.

    Services may declare functions of the same names in one database, and the mark distinguishes their rows.
    In the column ``module`` it follows the name of the module, after ``SERVICE_MARK``. The first process that
    writes the schedules of a service invents it, and later ones inherit it.
    """
    if row.module is None:
        return None
    _, service = split_module(row.module)
    return service


def declarations_of(configs: Mapping[str, PeriodicJobConfig]) -> dict[str, Declaration]:
    """Return the declaration of each config, by dedup key."""
    return {key: config.declaration for key, config in configs.items()}


def service_among(declarations: Mapping[str, Declaration], rows: Mapping[str, ScheduleRow]) -> str | None:
    """Return the mark of the service whose code has these declarations; None if no row shows it.

    The mark is found in a row under the key of a declaration, else in a row of the same task. A row is of the
    same task if the declared function has the task's name of the row as one of its names, or if the row has
    the name of the declared task among its names. It does not suffice that both functions have the same
    module and name: another service may have that function as a task of another name.
    """
    marked_rows = [row for row in rows.values() if row.owner == "code" and service_of(row) is not None]
    for row in marked_rows:
        if row.schedule_id in declarations:
            return service_of(row)
    tasks = {declaration.task for declaration in declarations.values()}
    declared_names = frozenset[str]().union(*(declaration.names for declaration in declarations.values()))
    for row in marked_rows:
        if row.task in declared_names or not tasks.isdisjoint(names_of(row)):
            return service_of(row)
    return None


def split_module(text: str) -> tuple[str, str | None]:
    """Return the two parts of a text of the column ``module``: the module, and the mark of the service.

    The mark is None if the text has none.
    """
    module, _, service = text.partition(SERVICE_MARK)
    return module, service or None


def _marked(module: str, service: str | None) -> str:
    """Return a module and the mark of a service as a text of the column ``module``."""
    return module if service is None else f"{module}{SERVICE_MARK}{service}"


def _with_declaration(config: PeriodicJobConfig, old: ScheduleRow, service: str | None) -> ScheduleRow:
    """Return a row with all values that the code declares for its schedule.

    A row that has the mark of a service keeps it. ``service`` is the mark for any other row; None for none.
    """
    return replace(
        definition_of(config).applied_to(old, resets_options=True),
        schedule_id=config.dedup_key,
        owner="code",
        # The jobs of a function that @job gives no name keep the job_name of pg-scheduler 0.2, by which
        # queries of its users find them.
        job_name=config.job_name if config.task == config.function else None,
        derived_key=config.derived_key,
        enabled_in_code=config.enabled,
        use_advisory_lock=config.use_advisory_lock,
        module=_marked(config.module, service_of(old) or service),
        retired_at=None,
        names=tuple(sorted(config.declaration.names)),
    )


def _edited(
    config: PeriodicJobConfig, old: ScheduleRow, now: datetime, service: str | None = None
) -> ScheduleRow:
    """Return the row with the values that the code declares; the unchanged row if it has these already.

    It is not only given the new values: an edit may also resume or pause it, and change its next fire time.
    """
    row = _with_declaration(config, old, service)
    # If the clock was set back since the row was written, its next fire time has to be computed again.
    if row == old and not is_ahead(old, now):
        return old
    # A change of ``enabled`` in the code replaces what a call has set before.
    if old.enabled_in_code != config.enabled:
        row = replace(row, paused_at=None if config.enabled else now, **_NO_PAUSE)
    # The planner has paused it because of an error, which the edit may have corrected.
    elif old.is_broken:
        row = replace(row, paused_at=None, **_NO_PAUSE)
    # If this edit resumes it, the fire times of the pause are discarded: the planner searches from now on.
    is_resumed = old.paused_at is not None and row.paused_at is None
    if is_resumed and row.next_fire_at and row.next_fire_at <= now:
        row = replace(row, resume_from=now)
    if not must_retime(row, old, config.trigger, now):
        return row
    return retime(row, config.trigger, now, may_end=True)


class PeriodicCatalogue:
    """The periodic functions by dedup key. Every Scheduler of the process reads it."""

    def __init__(self) -> None:
        self._configs: dict[str, PeriodicJobConfig] = {}
        self.version = 0
        """The number of changes, by which a Scheduler notices that there are new schedules to write."""

    def add(self, config: PeriodicJobConfig) -> None:
        """Add a config, or replace the one of the same function and key.

        Raises:
            ValueError: Another function has the key, or its given job name, or this function has the key with
                other options, or its calls are debounced.
            NameConflictError: The function has another key with other captured values or another object.
        """
        previous_config = self._configs.get(config.dedup_key)
        if previous_config and previous_config.function != config.function:
            raise ValueError(
                f"dedup_key {config.dedup_key!r} already belongs to {previous_config.function}; "
                f"pass another dedup_key= for {config.function}"
            )
        # A module that is loaded again defines another function, whose options replace the earlier ones.
        if previous_config and previous_config.func is config.func and previous_config != config:
            raise ValueError(
                f"{config.function} already has a schedule of this trigger, with other options; "
                "pass another dedup_key= for one of the two"
            )
        for key, other_config in self._configs.items():
            if key != config.dedup_key and not _may_share_name(config, other_config):
                raise NameConflictError(
                    f"{config.function} already has the schedule {key!r} as a method of another object or "
                    "with other captured values, and a row stores the name only; "
                    "decorate a function of another name"
                )
        # A given job name becomes the name of the task, unless @job has named the task. In any case pending
        # jobs of that name find the function. They also find it by the default job name, which 0.2.x stored
        # in the rows of jobs. That is a loose name: functions of different modules may share it.
        task = catalogue.task_of(config.func)
        check_schedulable(task)
        is_unnamed = task is None or task.name == config.function
        catalogue.register(
            config.func,
            name=config.job_name if config.named and is_unnamed else None,
            aliases=[config.job_name] if config.named else [],
            loose=[former_job_name(config.func)],
        )
        self._configs[config.dedup_key] = config
        self.version += 1

    def configs(self) -> dict[str, PeriodicJobConfig]:
        """Return a copy of the configs by dedup key."""
        return dict(self._configs)

    def clear(self) -> None:
        """Remove every config, for tests."""
        self.restore({})

    def restore(self, configs: Mapping[str, PeriodicJobConfig]) -> None:
        """Replace every config by those of a copy, for tests."""
        self._configs = dict(configs)
        self.version += 1


def _may_share_name(config: PeriodicJobConfig, other_config: PeriodicJobConfig) -> bool:
    """Return whether two schedules may exist together, although rows of jobs store names of functions only.

    They may if their functions have different names, or are bound to the same object and captured values.
    """
    return config.function != other_config.function or captures_same(config.func, other_config.func)


periodic_catalogue: Final = PeriodicCatalogue()
