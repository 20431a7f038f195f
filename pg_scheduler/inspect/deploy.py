"""Compare code that is about to be deployed with the jobs and schedules in the database.

The comparison reads the unfinished jobs and the schedules. It calls no function of a job. It calls only what
an attempt or a planner calls before that function: validators of typed arguments, key functions and the
codec.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from pydantic import ValidationError

from pg_scheduler.base.foreign import is_ctrl_c, message_of
from pg_scheduler.base.text.remedies import SCHEDULER_REMEDY, as_steps, sentence_of
from pg_scheduler.errors import PayloadError, SchedulerError
from pg_scheduler.inspect.deploy_steps import kinds_of, steps_of
from pg_scheduler.inspect.doctor.check import hint_at_new_name
from pg_scheduler.inspect.doctor.codes import Severity
from pg_scheduler.inspect.doctor.findings import count_severities, worst_of
from pg_scheduler.inspect.store.deploy import CheckedJob, CheckedStep
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.texts import counted, extent_of, short
from pg_scheduler.jobs.limits import limits_of_job
from pg_scheduler.jobs.outcome import describe
from pg_scheduler.jobs.payload import decode, encode, has_encoded_arguments
from pg_scheduler.jobs.retry import Abort
from pg_scheduler.jobs.step_values import STEP, ReturnType, step_value
from pg_scheduler.jobs.task import Task
from pg_scheduler.jobs.typed import problems
from pg_scheduler.jobs.validation import check_count, check_instance, check_text
from pg_scheduler.queue.clean_ups import EXAMPLE_STEPS, clean_up_arguments
from pg_scheduler.queue.failure_alerts import alert_arguments
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.scheduler.parts import Parts, parts_of
from pg_scheduler.schedules.declared import plan_sync
from pg_scheduler.schedules.row import ScheduleRow, read_trigger

MAX_IDS: Final = 3
"""The maximum number of ids that a finding has."""

MAX_GROUPS: Final = 1000
"""The maximum number of findings by name and reason. Further findings of a code are counted together."""

MAX_PROBLEMS: Final = 3
"""The maximum number of invalid values of a job that a reason names."""

MAX_HINTS: Final = 20
"""The maximum number of unknown names for which a similar registered name is searched."""

SCHEDULE_ROWS: Final = 500

UNKNOWN: Final = "no function is registered under this name"

GONE: Final = "no function declares this schedule any longer, so it fires no more"

INDEXES: Final = ("scheduled_jobs_claim", "scheduled_jobs_blocked")
"""The indexes that together contain all unfinished jobs."""

STEPS: Final = "scheduler_steps"
"""The table of steps. A database that the migration of this table has not reached lacks it."""

UNVERSIONED: Final = "0"
"""The version of a job that has stored nothing itself, while others stored something for it, such as a
signal."""

_DIGITS: Final = re.compile(r"\d+")
# The places of items in lists, except the place of a positional argument.
_INDEX: Final = re.compile(r"(?<!^args)\[\d+\]")


class DeployCode(StrEnum):
    """The codes of the findings of `check()`."""

    NAME_UNKNOWN = "NAME-UNKNOWN"
    """No function is registered under the name of the jobs, so no worker with this code runs them."""
    ARGUMENTS = "ARGUMENTS"
    """The function cannot be called with the arguments of the jobs, so their attempts fail."""
    ALERT = "ALERT"
    """The task of ``on_failure=`` or ``on_cancel=`` is not registered, or does not fit a failed or cancelled
    job, so no alert is sent, or no clean-up runs."""
    KEY = "KEY"
    """The key function of a limit raises, or returns an invalid key, so the jobs fail."""
    SCHEDULE = "SCHEDULE"
    """The schedules cannot fire: their task, trigger, options or arguments do not fit the code."""
    SCHEDULE_GONE = "SCHEDULE-GONE"
    """The code does not declare the schedules that ``@periodic`` has declared, so they fire no more."""
    STEP_TYPE = "STEP-TYPE"
    """Stored values of a step do not fit the return annotation of its function, so the jobs fail."""
    STEP_KIND = "STEP-KIND"
    """The function has another kind of step under the name of a stored one, so the jobs fail at it."""
    STEP_GONE = "STEP-GONE"
    """The module of the function names no such step, so the jobs ignore the stored one."""
    NOT_EXAMINED = "NOT-EXAMINED"
    """Something was not examined: encrypted arguments that cannot be read here, or too many jobs."""
    VERSION = "VERSION"
    """Unfinished jobs have stored steps under a version of their task. The finding has their number."""


class Judgement(NamedTuple):
    """The severity of the findings of a code, and their remedy."""

    severity: Severity
    remedy: str


JUDGEMENTS: Final[Mapping[DeployCode, Judgement]] = {
    DeployCode.NAME_UNKNOWN: Judgement(
        Severity.ERROR,
        "import the module of the function, or keep its old name in aliases=; or cancel the jobs",
    ),
    DeployCode.ARGUMENTS: Judgement(
        Severity.ERROR, "accept the old arguments too, until these jobs have ended; or cancel the jobs"
    ),
    DeployCode.ALERT: Judgement(
        Severity.WARNING,
        "register the task, or keep its old name in aliases=, and let it accept job_id, job_name, error and "
        "attempts; if another service has the task, check the code of that service",
    ),
    DeployCode.KEY: Judgement(Severity.ERROR, "let key= accept the old arguments too; or cancel the jobs"),
    DeployCode.SCHEDULE: Judgement(
        Severity.ERROR, "accept the old task, trigger and arguments too; or update or remove the schedules"
    ),
    DeployCode.SCHEDULE_GONE: Judgement(
        Severity.WARNING,
        "import the module that declares it; if it is to go, pg-scheduler schedules remove ID deletes it "
        "after the deployment; if another service declares it, select the tasks of this one with name=",
    ),
    DeployCode.STEP_TYPE: Judgement(
        Severity.ERROR, "let the annotation accept former values too, or give the step another name"
    ),
    DeployCode.STEP_KIND: Judgement(
        Severity.ERROR, "give the new step another name, and keep the old one for jobs that have stored it"
    ),
    DeployCode.STEP_GONE: Judgement(
        Severity.WARNING,
        "keep the step for old versions, unless the jobs may leave it out",
    ),
    DeployCode.NOT_EXAMINED: Judgement(
        Severity.WARNING, "run the check with the codec and the keys of the workers, or with a higher most="
    ),
    DeployCode.VERSION: Judgement(Severity.INFO, "keep what the code does for this version"),
}


@dataclass(frozen=True, slots=True)
class DeployFinding:
    """Jobs or schedules of one name that do not fit the code for one reason."""

    code: DeployCode
    """The kind of the problem."""
    severity: Severity
    """How severe the problem is."""
    name: str
    """The name of the task; empty for all."""
    reason: str
    """The reason."""
    count: int
    """How many jobs, schedules or stored steps the finding concerns."""
    ids: tuple[str, ...]
    """The ids of the first three jobs or schedules."""
    remedy: str
    """The recommended action."""


@dataclass(frozen=True, slots=True)
class DeployReport:
    """The findings of `check()`, and what it examined."""

    findings: tuple[DeployFinding, ...]
    """The findings, the most severe first."""
    jobs: int
    """The unfinished jobs that were examined."""
    schedules: int
    """The schedules that were examined."""
    total: int | None
    """About how many unfinished jobs there are; None if that is unknown."""
    is_complete: bool
    """Whether all unfinished jobs were examined."""

    @property
    def severity(self) -> Severity:
        """The severity of the worst finding; ``ok`` without findings."""
        return worst_of(finding.severity for finding in self.findings)

    @property
    def summary(self) -> str:
        """The numbers of findings, and what was examined, in one line."""
        extent = extent_of(self.jobs, self.total, is_complete=self.is_complete, noun="unfinished job")
        return (
            f"{count_severities([finding.severity for finding in self.findings])}; "
            f"examined {extent} and {counted(self.schedules, 'schedule')}"
        )


async def check(scheduler: Scheduler, *, name: str | None = None, most: int = 1_000_000) -> DeployReport:
    """Compare the registered functions with the unfinished jobs and the schedules in the database.

    The Scheduler need not be started. Nothing is written, no job is called, and no finished job is read. The
    database may be one that this release has not migrated yet, also one of pg-scheduler 0.2.

    Args:
        scheduler: A Scheduler of the new code, whose functions are registered.
        name: Examine only tasks whose name matches this pattern, such as ``mail.*``; None for all.
        most: The maximum number of unfinished jobs to examine, at least 1.

    Raises:
        TypeError: ``scheduler`` is no Scheduler, or a value has the wrong type.
        ConfigurationError: ``most`` is out of range.
        ValueError: ``name`` is empty.
        SchemaError: There are no tables, or a newer release has changed them.
        DatabaseUnavailableError: The database is unavailable.

    Example::

        from pg_scheduler.inspect import Severity, check

        report = await check(scheduler)
        assert report.severity.rank < Severity.ERROR.rank, report.findings
    """
    check_instance("scheduler", scheduler, Scheduler, "a Scheduler", SCHEDULER_REMEDY)
    pattern = None if name is None else check_text("name", name)
    if pattern == "":
        raise ValueError("name must not be empty; pass a pattern such as 'mail.*', or omit it for all tasks")
    parts = parts_of(scheduler)
    return await _DeployCheck(parts, pattern).run(check_count("most", most, least=1))


class _Findings:
    """Jobs and schedules that do not fit, by code, name and reason."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[DeployCode, str, str]] = Counter()
        self._ids: dict[tuple[DeployCode, str, str], list[str]] = {}

    def add(self, code: DeployCode, name: str, reason: str, *ids: str, count: int = 1) -> None:
        """Count jobs, schedules or steps that do not fit, in the group of their code, name and reason.

        A group keeps only the first ``MAX_IDS`` of the ids.
        """
        key = code, short(name), short(reason)
        # A million jobs could have as many reasons, so from some number on, new ones share a group per code.
        if key not in self._counts and len(self._counts) >= MAX_GROUPS:
            key = code, "", f"names and reasons beyond the first {MAX_GROUPS:,}"
        self._counts[key] += count
        group_ids = self._ids.setdefault(key, [])
        for object_id in ids:
            if object_id not in group_ids and len(group_ids) < MAX_IDS:
                group_ids.append(object_id)

    def sorted(self, names: Sequence[str]) -> Iterator[DeployFinding]:
        """Yield the findings, the most severe first.

        The remedy of an unknown name contains a similar one of ``names``, the registered names, if there is
        one.
        """
        codes = list(DeployCode)
        hint_count = 0

        def order(key: tuple[DeployCode, str, str]) -> tuple[int, int, str, str]:
            """Sort by severity, then by the place of the code in ``DeployCode``, the name and the reason."""
            code, name, reason = key
            return -JUDGEMENTS[code].severity.rank, codes.index(code), name, reason

        for key in sorted(self._counts, key=order):
            code, name, reason = key
            count, ids = self._counts[key], tuple(self._ids[key])
            severity, remedy = JUDGEMENTS[code]
            # The name is compared with every registered one, so this is not done for any number of names.
            if code is DeployCode.NAME_UNKNOWN and hint_count < MAX_HINTS:
                steps = as_steps([remedy, *hint_at_new_name(name, names)])
                # There is a first step, so there is a sentence. The remedy after ``or`` satisfies the type.
                remedy = sentence_of(steps) or remedy
                hint_count += 1
            yield DeployFinding(code, severity, name, reason, count, ids, remedy)


class _Examined(Enum):
    """Whether a row of a page was examined."""

    DONE = auto()
    LACKS_DATA = auto()
    """The arguments of the job, or the value of the step, are needed but too large for the page."""


class _DeployCheck:
    """One comparison of the code with the database."""

    def __init__(self, parts: Parts, pattern: str | None) -> None:
        self._tasks = parts.tasks
        self._job_builders = parts.job_builders
        self._declared = parts.declared
        self._store = InspectionStore(parts.store)
        self._codec = parts.store.statements.codec
        self._pattern = pattern
        self._findings = _Findings()
        # By the option and the task that it names: what is wrong with that task, or None.
        self._follower_problems: dict[tuple[str, str], str | None] = {}

    async def run(self, most: int) -> DeployReport:
        """Examine at most ``most`` unfinished jobs and all schedules, and return the report."""
        # A database of pg-scheduler 0.2 has jobs, but no table that a migration has made: no schedules, and
        # no indexes by which the number of jobs could be estimated.
        migrated_tables = await self._store.deploy.tables()
        is_migrated = bool(migrated_tables)
        has_steps = STEPS in migrated_tables
        self._examine_declared_followers()
        job_count, is_complete = await self._examine_jobs(most, is_migrated=is_migrated, has_steps=has_steps)
        schedule_count = await self._examine_schedules() if is_migrated else 0
        total: int | None = job_count
        if not is_complete:
            total = await self._estimate(least=job_count + 1) if is_migrated else None
            extent = extent_of(job_count, total, is_complete=False, noun="unfinished job")
            # Without an estimate, it is only certain that at least one job was not examined.
            count = 1 if total is None else total - job_count
            self._findings.add(DeployCode.NOT_EXAMINED, "", f"examined {extent}", count=count)
        findings = tuple(self._findings.sorted(self._tasks.lists.names))
        return DeployReport(findings, job_count, schedule_count, total, is_complete)

    async def _examine_jobs(self, most: int, *, is_migrated: bool, has_steps: bool) -> tuple[int, bool]:
        """Examine at most ``most`` unfinished jobs; return their number, and whether these are all.

        Args:
            most: The maximum number of jobs.
            is_migrated: Whether migrations have changed the table of jobs; False for pg-scheduler 0.2.
            has_steps: Whether there is a table of steps.
        """
        examined = 0
        async for page in self._store.deploy.unfinished(is_migrated=is_migrated):
            jobs = page[: most - examined]
            examined += len(jobs)
            for job in jobs:
                self._examine_follower(job.task, "on_failure", job.on_failure, job.job_id)
                self._examine_follower(job.task, "on_cancel", job.on_cancel, job.job_id)
            # Only jobs that have stored steps have a version.
            if has_steps:
                await self._examine_steps([job for job in jobs if job.version is not None])
            # A page has no large arguments. Jobs that need theirs are examined once more, with them.
            jobs_without_arguments = [job for job in jobs if self._examine_job(job) is _Examined.LACKS_DATA]
            async for job in self._store.deploy.with_arguments(jobs_without_arguments):
                self._examine_job(job)
            if len(jobs) < len(page):
                return examined, False
        return examined, True

    def _examine_job(self, job: CheckedJob) -> _Examined:
        """Examine a job, and add a finding if it does not fit the code.

        The arguments of a job whose task is not selected, or is unknown, are not needed. For any other job
        whose arguments the page lacks, nothing is added, and the caller reads them.
        """
        if not self._is_selected(job.task):
            return _Examined.DONE
        task = self._tasks.resolve(job.task)
        if task is None:
            self._findings.add(DeployCode.NAME_UNKNOWN, job.task, self._why_unknown(job.task), job.job_id)
        elif job.task_data is None:
            return _Examined.LACKS_DATA
        elif problem := self._problem_of(task, job.task_data, job.job_name):
            code, reason = problem
            self._findings.add(code, job.task, reason, job.job_id)
        return _Examined.DONE

    def _examine_declared_followers(self) -> None:
        """Examine the alerts and clean-ups that the code declares, whether or not jobs have them."""
        for task in self._tasks.tasks():
            self._examine_follower(task.name, "on_failure", task.on_failure)
            self._examine_follower(task.name, "on_cancel", task.on_cancel)

    def _examine_follower(self, name: str, option: str, follower: str | None, *job_ids: str) -> None:
        """Add a finding if a task cannot follow the ends of these jobs of the task ``name``.

        ``option`` is the option that names it, ``on_failure`` or ``on_cancel``.
        """
        if follower is None or not self._is_selected(name):
            return
        if (option, follower) not in self._follower_problems:
            self._follower_problems[option, follower] = self._follower_problem_of(option, follower)
        problem = self._follower_problems[option, follower]
        if problem is not None:
            reason = f"{option}={follower!r}: {problem}"
            self._findings.add(DeployCode.ALERT, name, reason, *job_ids, count=len(job_ids))

    def _follower_problem_of(self, option: str, follower: str) -> str | None:
        """Return why a task cannot be called for failed or cancelled jobs; None if it can."""
        task = self._tasks.resolve(follower)
        if task is None:
            return self._why_unknown(follower)
        arguments = alert_arguments("id", follower, "ValueError: example", 1)
        if option == "on_cancel":
            arguments = clean_up_arguments("id", follower, "cancelled by example", EXAMPLE_STEPS)
        problem = self._problem_of(task, encode((), arguments), follower)
        return None if problem is None else problem[1]

    def _problem_of(self, task: Task, task_data: str, job_name: str) -> tuple[DeployCode, str] | None:
        """Return the code and the reason if an attempt could not call the function; None if it could."""
        try:
            args, kwargs = decode(task_data, self._codec, job_name)
        except PayloadError as error:
            # A worker may have the key or the codec that is missing here, so encoded arguments may be valid.
            if has_encoded_arguments(task_data):
                return DeployCode.NOT_EXAMINED, _reason(error)
            return DeployCode.ARGUMENTS, _reason(error)
        code = DeployCode.ARGUMENTS
        try:
            task.check(args, kwargs)
            # Without common limits, the limits of a job depend on its arguments, by the key functions.
            if task.common_limits is None:
                code = DeployCode.KEY
                limits_of_job(task.limits, task.name, args, kwargs)
        except BaseException as error:  # user code: a validator
            if is_ctrl_c(error):
                raise
            return code, _reason(error)
        return None

    async def _examine_steps(self, jobs: Sequence[CheckedJob]) -> None:
        """Examine the stored steps of jobs that have some, and count the versions of these jobs.

        A job without a registered function is skipped: ``_examine_job()`` adds a finding for it.
        """
        jobs_by_id: dict[str, tuple[CheckedJob, Task]] = {}
        for job in jobs:
            task = self._tasks.resolve(job.task) if self._is_selected(job.task) else None
            if task is not None:
                jobs_by_id[job.job_id] = job, task
                if job.version != UNVERSIONED:
                    self._findings.add(DeployCode.VERSION, task.name, f"version {job.version}", job.job_id)
        async for page in self._store.deploy.steps(list(jobs_by_id)):
            # A page has no large values. Steps that need theirs are examined once more, with them.
            steps_without_values = []
            for step in page:
                job, task = jobs_by_id[step.job_id]
                if self._examine_step(step, job, task) is _Examined.LACKS_DATA:
                    steps_without_values.append(step)
            async for step in self._store.deploy.with_values(steps_without_values):
                job, task = jobs_by_id[step.job_id]
                self._examine_step(step, job, task)

    def _examine_step(self, step: CheckedStep, job: CheckedJob, task: Task) -> _Examined:
        """Compare a stored step with the calls in the source of the module that may have stored it.

        If its value is needed and the page lacks it, nothing is added, and the caller reads the value.
        """
        candidates = steps_of(task.func, step.name, step.kind)
        # Without the source of the module nothing can be compared.
        if candidates is None:
            return _Examined.DONE
        if not candidates:
            self._add_missing_step(step, job, task)
            return _Examined.DONE
        # Only the values of functions have a type. One call without a return type accepts any value.
        types = [candidate.returns for candidate in candidates if candidate.returns is not None]
        if step.kind != STEP or len(types) < len(candidates):
            return _Examined.DONE
        # A value that has a size and is missing here is a large one, which a page leaves out.
        if step.value is None and step.size:
            return _Examined.LACKS_DATA
        # Steps with computed names, such as page-1 and page-2, are one group with the text ``page-*``.
        text = f"{candidates[0].text}*" if candidates[0].is_prefix else step.name
        try:
            value = step_value(text, step.value, self._codec)
        except Abort as error:
            self._findings.add(DeployCode.NOT_EXAMINED, job.task, message_of(error), job.job_id)
            return _Examined.DONE
        # It is unknown which of several calls has stored the value, so it must fit none to be a finding.
        misfits = [problem for annotation in types if (problem := _misfit(annotation, text, value))]
        if len(misfits) == len(types):
            self._findings.add(DeployCode.STEP_TYPE, job.task, f"step {text!r}: {misfits[0]}", job.job_id)
        return _Examined.DONE

    def _add_missing_step(self, step: CheckedStep, job: CheckedJob, task: Task) -> None:
        """Add the finding of a stored step that the code does not have, or that it has as another kind."""
        # Without their numbers, names such as page-1 and page-2 have one reason, so they are in one group.
        name = _DIGITS.sub("*", step.name)
        kinds_in_code = kinds_of(task.func, step.name)
        if not kinds_in_code:
            code = DeployCode.STEP_GONE
            reason = f"step {name!r} is not in the module of the function"
        else:
            code = DeployCode.STEP_KIND
            reason = f"step {name!r} is stored as {step.kind!r}, and the code has it as {kinds_in_code[0]!r}"
        self._findings.add(code, job.task, reason, job.job_id)

    async def _examine_schedules(self) -> int:
        """Examine the schedules of callers, and the schedules that the code declares by ``@periodic``.

        A start of the code would update the rows of its own schedules. So their rows are examined as they
        would be after that.

        Returns:
            How many schedules were examined.
        """
        schedules = self._store.schedules
        configs = self._declared.configs()
        examined = 0
        moved_ids: set[str] = set()
        if configs:
            # The clock of the server came with the rows, or is read if there are no rows.
            rows, rows_read_at = await schedules.declared(configs)
            now = rows_read_at or await self._store.statements.read_clock()
            # The plan is not written. The due times of chains do not change whether a schedule fits the code.
            plan = plan_sync(configs, rows, now=now, chain_due_times={})
            rows |= {row.schedule_id: row for row in plan.write}
            # The start deletes only rows that it writes again under another key. So the code declares these
            # too.
            moved_ids = {*plan.delete}
            # _examine_schedule() returns whether it has examined the schedule.
            examined = sum(self._examine_schedule(rows[schedule_id]) for schedule_id in configs)
        after: str | None = None
        while page := await schedules.list_page(
            after=after,
            owner=None,
            paused=None,
            tasks=None,
            metadata=None,
            due_before=None,
            limit=SCHEDULE_ROWS,
        ):
            for row in page:
                if row.owner == "code":
                    self._examine_declared(row, {*configs, *moved_ids})
                # A row of a caller with an id that the code declares was already examined as the code's.
                elif row.schedule_id not in configs:
                    examined += self._examine_schedule(row)
            after = page[-1].schedule_id
        return examined

    def _examine_declared(self, row: ScheduleRow, declared: Collection[str]) -> None:
        """Add a finding if the code does not declare a schedule any longer.

        ``declared`` are the ids that the code declares, and the present ids of rows to which its start gives
        another id.
        """
        is_undeclared = row.schedule_id not in declared and row.finished_at is None
        if is_undeclared and self._is_selected(row.task):
            self._findings.add(DeployCode.SCHEDULE_GONE, row.task, GONE, row.schedule_id)

    def _examine_schedule(self, row: ScheduleRow) -> bool:
        """Examine a schedule, unless it is finished or its task is not selected; return whether it was."""
        if row.finished_at is not None or not self._is_selected(row.task):
            return False
        code = DeployCode.SCHEDULE
        reason = ""
        # If the code does not accept the trigger or the options of the row, reading the trigger or making the
        # builder of its jobs raises an error.
        try:
            read_trigger(row.trigger)
            if self._tasks.resolve(row.task) is None:
                reason = self._why_unknown(row.task)
            elif self._job_builders.builder(row).arguments is None:
                code, reason = DeployCode.NOT_EXAMINED, "its arguments are encrypted, and cannot be read here"
        except BaseException as error:  # user code: a trigger, a validator
            if is_ctrl_c(error):
                raise
            reason = _reason(error)
        if reason:
            self._findings.add(code, row.task, reason, row.schedule_id)
        return True

    def _is_selected(self, name: str) -> bool:
        """Return whether the caller has asked for the task of this name."""
        return self._pattern is None or fnmatchcase(name, self._pattern)

    def _why_unknown(self, name: str) -> str:
        """Return why a name leads to no function: no function has it, or several have it."""
        bearer_count = len(self._tasks.bearers(name))
        if bearer_count > 1:
            return f"{bearer_count} functions have this name; it needs to be explicit"
        return UNKNOWN

    async def _estimate(self, *, least: int) -> int | None:
        """Return about how many unfinished jobs there are, as the statistics of the indexes state it.

        None if the estimate is certainly wrong: at least ``least`` jobs are known to exist.
        """
        estimates = (await self._store.searches.sizes()).estimates
        total = sum(estimates.get(index) or 0 for index in INDEXES)
        return total if total >= least else None


def _misfit(returns: ReturnType, name: str, value: object) -> str:
    """Return why a stored value does not fit a return annotation; empty if it does."""
    try:
        returns.from_json(name, value)
    except BaseException as error:  # user code: a validator
        if is_ctrl_c(error):
            raise
        return _reason(error)
    return ""


def _reason(error: BaseException) -> str:
    """Return the text of an error as the reason of a group of jobs.

    Details that differ between jobs with the same problem are left out, so that these jobs are in one group.
    """
    cause = error.__cause__
    if isinstance(error, PayloadError | Abort) and isinstance(cause, ValidationError):
        # An Abort is about the value of a step. A PayloadError is about arguments, which have names.
        root = "value" if isinstance(error, Abort) else None
        # The same problem may occur in several items of a list, so their places are left out.
        texts = [_INDEX.sub("[]", problem) for problem in problems(cause, root=root)]
        distinct_texts = list(dict.fromkeys(texts))
        return "; ".join(distinct_texts[:MAX_PROBLEMS])
    if isinstance(error, SchedulerError | TypeError):
        # A message may end with a remedy for the caller, such as "; pass timedelta(seconds=5)". This is left
        # out too.
        return message_of(error).partition("; pass ")[0]
    return describe(error)
