"""Build the jobs of schedules: options that a schedule does not set take the values of its task."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.metadata import with_metadata
from pg_scheduler.jobs.model import JobPriority
from pg_scheduler.jobs.payload import decode, encode, has_encoded_arguments
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.rows import ExtendedJob, Extras, PlainJob
from pg_scheduler.jobs.task import COMMON_CHECKS, Task, check_schedulable
from pg_scheduler.jobs.unique import Unique
from pg_scheduler.jobs.validation import MAX_INTEGER
from pg_scheduler.jobs.worker_report import ReportedOptions
from pg_scheduler.queue.headers import Sender
from pg_scheduler.queue.job_template import JobTemplate
from pg_scheduler.queue.prepare import new_job_id
from pg_scheduler.schedules.definition import Encode, to_seconds
from pg_scheduler.schedules.row import ScheduleRow, read_trigger
from pg_scheduler.schedules.timing import fire_time_job_id, job_id_prefix
from pg_scheduler.triggers.base import is_fixed_delay
from pg_scheduler.triggers.serialization import UnknownKindError
from pg_scheduler.triggers.zones import UnknownZoneError

NO_REPORT: Final = ReportedOptions({}, ())
"""The report of a task that has the defaults."""

MAX_BUILDERS: Final = 1000
"""Schedules whose builders are remembered."""

MAX_REMEMBERED_LENGTH: Final = 10_000
"""Characters of the values of a schedule whose builder is remembered."""

_source_of = attrgetter(
    "owner",
    "task",
    "job_name",
    "use_advisory_lock",
    "trigger",
    "task_data",
    "options",
    "metadata",
    "pause_after_failures",
)
"""Returns the values of a row from which its builder follows."""


@dataclass(frozen=True, slots=True)
class JobBuilder:
    """Builds the jobs of one schedule. It is kept between fire times while its row and task are unchanged.

    Attributes:
        schedule_id: The id of the schedule.
        owner: ``code`` if ``@periodic`` declares the schedule, ``api`` if a call added it.
        source: The values of the schedule's row from which this builder follows.
        template: What follows from the task and its options. It adds to each job what plain jobs lack.
        common_row: The columns that all jobs have in common. The misfire grace time is that of a job which is
            planned on time.
        manual_grace: The misfire grace time of a job that a call enqueues now: as for a job of ``enqueue()``,
            None unless the schedule or the task gives one.
        sender: Calls the middleware of the application for each job; None without any.
        arguments: The arguments of the jobs as JSON, before a codec encoded them; None if they could not be
            decoded.
        share: The text ``share:<name>:<tenant>`` of its jobs, by which tenants of a task take turns; None
            without a share, or if the arguments are unknown.
        sequence: The place of its jobs in a sequence; None without one, or if the arguments are unknown.
    """

    schedule_id: str
    owner: str
    source: tuple[object, ...]
    template: JobTemplate
    common_row: PlainJob
    manual_grace: int | None
    sender: Sender | None
    arguments: str | None
    share: str | None
    sequence: Mapping[str, Any] | None

    @property
    def is_unique(self) -> bool:
        """Whether a job is rejected while another one has its key."""
        return self.template.unique is not None

    @property
    def lacks_unique_key(self) -> bool:
        """Whether the unique key of its jobs is unknown here, since it follows from encoded arguments."""
        return self.arguments is None and isinstance(self.template.unique, Unique)

    @property
    def is_plain(self) -> bool:
        """Whether its jobs need only the columns of plain jobs, apart from the id of the schedule.

        This is about jobs without a fire time. Plain jobs have basic options only: no limits, for example,
        and no unique key.
        """
        only_schedule_id = Extras().with_options(schedule_id=self.schedule_id)
        is_held = self.is_unique or self.share is not None or self.sequence is not None
        return self.template.extras == only_schedule_id and not is_held

    def fire_time_job(self, fire_time: datetime, due: datetime, now: datetime) -> ExtendedJob:
        """Return the job of a fire time.

        Its misfire grace time and its deadline count from now, so a fire time that was missed while no node
        ran still runs.
        """
        job_id = fire_time_job_id(self.schedule_id, fire_time, owner=self.owner)
        grace, template = self.common_row.misfire_grace_time, self.template
        late_s = max((now - due).total_seconds(), 0.0)
        # Both times count from the due time, so the time since then is added. A grace time has whole seconds.
        if grace is not None:
            grace = min(grace + math.ceil(late_s), MAX_INTEGER)
        if isinstance(template.deadline, float):
            template = template._replace(deadline=template.deadline + late_s)
        row = self.common_row._replace(job_id=job_id, execution_time=due, misfire_grace_time=grace)
        return self._finish(row, template.with_options(fire_time=fire_time.isoformat()))

    def manual_job(self, now: datetime) -> ExtendedJob:
        """Return a job without a fire time that is due now."""
        job_id = f"{job_id_prefix(self.schedule_id, self.owner)}manual:{new_job_id()}"
        row = self.common_row._replace(
            job_id=job_id, execution_time=now, misfire_grace_time=self.manual_grace
        )
        return self._finish(row, self.template)

    def _finish(self, row: PlainJob, template: JobTemplate) -> ExtendedJob:
        """Return a job with the columns that plain jobs lack, and with what the middleware adds."""
        job = template.extend(
            row,
            arguments=self.arguments,
            unique=template.unique,
            share=self.share,
            sequence=self.sequence,
        )
        return job if self.sender is None else self.sender.add_to_planned(job, self.schedule_id)


class JobBuilders:
    """Makes and remembers the builder of each schedule's jobs, which has the options that they get now.

    Options that a schedule does not set are those of its task at the time when a job is enqueued.

    Attributes:
        codec: Encodes the arguments; None for none.
        sender: Calls the middleware of the application for each job; None without any.
    """

    def __init__(
        self, tasks: TaskRegistry, *, misfire_grace_time: int | None, codec: PayloadCodec | None = None
    ) -> None:
        self._tasks = tasks
        self._grace = misfire_grace_time
        self._builders: dict[str, JobBuilder] = {}
        self.codec: Final = codec
        self.sender: Sender | None = None

    def encoder_of(self, name: str) -> Encode:
        """Return the function that encodes the arguments of a task as JSON.

        If the task is registered here, the function also checks that the task accepts them.
        """
        task = self._tasks.resolve(name)
        return encode if task is None else task.encode

    def check_task(self, name: str) -> None:
        """Raise ConfigurationError if the calls of a task that is registered here are debounced."""
        check_schedulable(self._tasks.resolve(name))

    def has_task(self, row: ScheduleRow) -> bool:
        """Return whether the task of a schedule is registered here."""
        return self._tasks.resolve(row.task) is not None

    def reported_builder(self, row: ScheduleRow, reported: ReportedOptions) -> JobBuilder:
        """Return the builder of a schedule whose task is not registered here, with the options of a report.

        Raises:
            TypeError: An option in the row has the wrong type.
            ValueError: An option in the row is invalid.
        """
        return self._new_builder(row, None, _source_of(row), reported)

    def builder(self, row: ScheduleRow) -> JobBuilder:
        """Return the builder of a schedule's jobs; the same one as before if row and task are unchanged.

        Raises:
            TypeError: An option in the row has the wrong type.
            ValueError: An option in the row is invalid, or the key function of the share rejects the
                arguments.
        """
        task, source = self._tasks.resolve(row.task), _source_of(row)
        cached_builder = self._builders.get(row.schedule_id)
        if (
            cached_builder is not None
            and cached_builder.template.task is task
            and cached_builder.sender is self.sender
            and cached_builder.source == source
        ):
            return cached_builder
        builder = self._new_builder(row, task, source)
        # Validators of typed arguments are user code, whose results may change. A codec that cannot decode
        # now may do so later. In both cases a new builder is made each time.
        may_be_kept = (task is None or task.typed is None) and builder.arguments is not None
        length = sum(len(value) for value in source if isinstance(value, str))
        if may_be_kept and length <= MAX_REMEMBERED_LENGTH:
            # The builders of schedules that were removed are forgotten by that too.
            if len(self._builders) >= MAX_BUILDERS:
                self._builders.clear()
            self._builders[row.schedule_id] = builder
        return builder

    def _new_builder(
        self,
        row: ScheduleRow,
        task: Task | None,
        source: tuple[object, ...],
        reported: ReportedOptions = NO_REPORT,
    ) -> JobBuilder:
        """Return a new builder for the jobs of a row, whose JSON is checked.

        Args:
            row: The schedule.
            task: Its task; None if that is not registered here.
            source: The values of the row from which the builder follows.
            reported: The options that a worker reports for a task that is not registered here.
        """
        options = load_json(row.options)
        if not isinstance(options, dict):
            raise ValueError(f"options must be a JSON object, not {row.options[:80]}")  # noqa: TRY004
        # The options of the schedule replace those of the report.
        options = {**reported.values, **options}
        values = {name: read(options[name]) for name, read in _READ.items() if name in options}
        job_name, function = _names_of(row, task)
        template = JobTemplate.of(
            job_name,
            task,
            values,
            misfire_grace_time=self._grace,
            marks={"schedule_id": row.schedule_id},
            consequences=_consequences(row, reported),
        )
        inherited_metadata = reported.metadata if task is None else task.metadata
        arguments, task_data = self._task_data(row, task, job_name, inherited_metadata)
        # Each job gets an id and a due time of its own in place of these.
        common_row = PlainJob("", task_data, row.anchor, *template.columns)._replace(
            function=function,
            lock_key=advisory_lock_key(row.schedule_id) if row.use_advisory_lock else None,
        )
        # A job that a call enqueues now has the misfire grace time of the schedule or of the task, but never
        # that of the Scheduler.
        manual_template = JobTemplate.of(job_name, task, values, misfire_grace_time=None)
        manual_row = PlainJob("", task_data, row.anchor, *manual_template.columns)
        return JobBuilder(
            schedule_id=row.schedule_id,
            owner=row.owner,
            source=source,
            template=template,
            common_row=common_row,
            manual_grace=manual_row.misfire_grace_time,
            sender=self.sender,
            arguments=arguments,
            share=None if task is None else task.share_key(arguments),
            sequence=None if task is None else task.sequence_place(arguments),
        )

    def _task_data(
        self, row: ScheduleRow, task: Task | None, job_name: str, inherited_metadata: Mapping[str, Any]
    ) -> tuple[str | None, str]:
        """Return the arguments of the jobs as JSON, and the text of their column ``task_data``.

        That text has the arguments as they are stored, perhaps encoded by a codec, and the metadata. The
        arguments must still fit the task. If they cannot be decoded here, the first value is None. That is no
        error, because an error would pause the schedule, and other nodes may have the key.
        """
        metadata = load_json(row.metadata)
        if not isinstance(metadata, dict):
            raise ValueError(f"metadata must be a JSON object, not {row.metadata[:80]}")  # noqa: TRY004
        arguments = None
        try:
            args, kwargs = decode(row.task_data, self.codec, job_name)
        except PayloadError:
            # Arguments that no codec has encoded are invalid on every node.
            if not has_encoded_arguments(row.task_data):
                raise
        else:
            arguments = encode(args, kwargs) if task is None else task.encode(args, kwargs)
        stored_arguments = arguments
        # Arguments that a codec has encoded are stored as the row has them, instead of in plain text.
        if stored_arguments is None or (self.codec is not None and has_encoded_arguments(row.task_data)):
            stored_arguments = row.task_data
        return arguments, with_metadata(stored_arguments, inherited_metadata, metadata or None)


def _read_priority(number: object) -> JobPriority:
    """Return the priority that a number in the options of a row stands for."""
    for priority in JobPriority:
        if priority.db_value == number:
            return priority
    raise ValueError(f"options.priority must be 1, 3, 5 or 8, not {number!r}")


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    **COMMON_CHECKS,
    "priority": _read_priority,
    "keep_result": lambda seconds: None if seconds is None else to_seconds("keep_result", seconds),
}
"""The checks of the options in a row, where priorities are numbers and durations are seconds."""


def advisory_lock_key(schedule_id: str) -> int:
    """Return the key of a schedule's advisory lock, a signed 64-bit integer."""
    return int.from_bytes(hashlib.sha256(schedule_id.encode()).digest()[:8], signed=True)


def _names_of(row: ScheduleRow, task: Task | None) -> tuple[str, str | None]:
    """Return the columns ``job_name`` and ``function`` of the jobs of a schedule.

    ``function`` is None if the name of the jobs is the name under which the function is registered.
    """
    # ``@job`` gives the task a name, without which a node of an earlier release may have written the row.
    if row.owner == "code" and task is not None and task.name != task.identity:
        return task.name, None
    if row.job_name is None:
        return row.task, None
    return row.job_name, row.task


def _may_follow_jobs(row: ScheduleRow) -> bool:
    """Return whether a schedule may have a fixed delay; True if its trigger cannot be interpreted here.

    With a fixed delay, the next fire time follows the end of a job.
    """
    try:
        return is_fixed_delay(read_trigger(row.trigger))
    except (UnknownKindError, UnknownZoneError):
        return True


def _consequences(row: ScheduleRow, reported: ReportedOptions) -> dict[str, Any]:
    """Return the consequences of the end of a job, as the column ``on_end`` of its row lists them.

    They concern the schedule. For a task that is not registered here, the reported alert of a failure and the
    reported clean-up of a cancellation are added.
    """
    consequences: dict[str, Any] = {}
    follows_jobs = _may_follow_jobs(row)
    if row.pause_after_failures is not None or follows_jobs:
        consequences["schedule"] = True
    # If another job replaces this one, the fixed delay begins at the end of that job. It is no job of the
    # schedule, so the id of the schedule is stored here.
    if follows_jobs:
        consequences["fixed_delay"] = row.schedule_id
    if reported.on_failure is not None:
        consequences["on_failure"] = reported.on_failure
    if reported.on_cancel is not None:
        consequences["on_cancel"] = reported.on_cancel
    return consequences
