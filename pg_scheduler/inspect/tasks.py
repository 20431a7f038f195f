"""Tasks: the names that workers claim, the jobs that wait under these names, and the pauses of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pg_scheduler.base.meter import OTHER
from pg_scheduler.facts.lateness import held_names
from pg_scheduler.inspect.base import InspectorBase
from pg_scheduler.inspect.names import TaskNames, merge_aliases
from pg_scheduler.inspect.store.inspections import BacklogRow
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.store.workers import MAX_WORKERS, InspectedWorker
from pg_scheduler.inspect.texts import count, counted, rounded
from pg_scheduler.jobs.naming import check_name
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.jobs.validation import check_execution_time
from pg_scheduler.scheduler.parts import parts_of

MAX_NAMES: Final = 500
"""The maximum number of names in the statistics that are returned."""


def describe_waiting(
    due: int, blocked: int, *, is_due_capped: bool = False, is_blocked_capped: bool = False
) -> str:
    """Return how many jobs wait, as every front end shows it: ``waiting 21: due 0, blocked 21``."""
    waiting_text = count(due + blocked, is_capped=is_due_capped or is_blocked_capped)
    return (
        f"waiting {waiting_text}: due {count(due, is_capped=is_due_capped)}, "
        f"blocked {count(blocked, is_capped=is_blocked_capped)}"
    )


@dataclass(frozen=True, slots=True)
class NameBacklog:
    """The numbers of due, of blocked and of running jobs with one name."""

    name: str
    """The name that a worker must claim: the name of the function."""
    due: int
    """Due jobs that wait for a slot."""
    running: int
    """Jobs that run."""
    oldest_due_at: datetime | None
    """When the first of the due jobs was due; None if none is due."""
    workers: int | None
    """The number of live workers that claim the name; None if a live worker does not report its names."""
    blocked: int = 0
    """Jobs that wait for a limit, a share or other jobs."""

    @property
    def waiting(self) -> int:
        """The due and the blocked jobs."""
        return self.due + self.blocked


@dataclass(frozen=True, slots=True)
class Backlog:
    """The due jobs by name, and the blocked jobs, which are not due."""

    names: Sequence[NameBacklog]
    """At most 500 names with due or running jobs, that of the oldest due job first. After them, at most 500
    other names with blocked jobs."""
    due: int
    """Due jobs of these names."""
    is_capped: bool
    """Whether counting stopped after 50,000 unfinished jobs or 500 names, so that there may be more."""
    due_estimate: int
    """The number of due jobs; if counting stopped, the estimate of the database's planner."""
    blocked: Mapping[str, int]
    """Blocked jobs by what they wait for: ``after``, ``limit:<name>:<key>`` or ``share:<name>:<key>``. At
    most 500 entries."""
    is_blocked_capped: bool
    """Whether counting blocked jobs stopped after 20,000 jobs or 500 entries, so that there may be more."""
    held: frozenset[str] = frozenset()
    """The names whose task is paused: their jobs are due, but not late."""

    @property
    def summary(self) -> str:
        """The numbers of names and jobs, in one line, as every front end shows them."""
        waiting_text = describe_waiting(
            self.due,
            sum(name.blocked for name in self.names),
            is_due_capped=self.is_capped,
            is_blocked_capped=self.is_blocked_capped,
        )
        estimate = f", about {rounded(self.due_estimate)} due" if self.is_capped else ""
        names = counted(len(self.names), "name", is_capped=self.is_capped or self.is_blocked_capped)
        return f"{names}, {waiting_text}{estimate}"


@dataclass(frozen=True, slots=True)
class TaskState(NameBacklog):
    """A name that a worker claims, that has due, blocked or running jobs, or that is paused."""

    paused_at: datetime | None = None
    """When the task was paused; None if it is not paused."""
    paused_until: datetime | None = None
    """When the pause ends by itself; None if it lasts until the task is resumed, or if it is not paused."""
    note: str | None = None
    """Why it was paused; None if it is not paused, or without a reason."""
    actor: str | None = None
    """The actor who paused it; None if it is not paused."""
    suspends_expiry: bool = False
    """Whether its jobs do not expire during the pause."""
    paused_name: str | None = None
    """The name of the task under which the pause is stored; None if it is not paused."""


@dataclass(frozen=True, slots=True)
class TaskList:
    """The names that workers claim, that have due, blocked or running jobs, or that are paused."""

    items: Sequence[TaskState]
    """The names, sorted. At most 500 of them have due or running jobs, and at most 500 blocked ones."""
    is_capped: bool
    """Whether counting due and running jobs stopped after 50,000 unfinished jobs or 500 names, so that there
    may be more."""
    is_blocked_capped: bool = False
    """Whether counting blocked jobs stopped after 20,000 jobs or 500 names, so that there may be more."""
    are_workers_capped: bool = False
    """Whether only the first 500 workers were read, so that more may claim the names."""

    @property
    def summary(self) -> str:
        """The numbers of names and jobs, in one line, as every front end shows them."""
        paused = sum(task.paused_at is not None for task in self.items)
        running = count(sum(task.running for task in self.items), is_capped=self.is_capped)
        waiting_text = describe_waiting(
            sum(task.due for task in self.items),
            sum(task.blocked for task in self.items),
            is_due_capped=self.is_capped,
            is_blocked_capped=self.is_blocked_capped,
        )
        tasks = counted(len(self.items), "task", is_capped=self.is_capped or self.is_blocked_capped)
        return f"{tasks}, {paused} paused, {running} running, {waiting_text}"


@dataclass(frozen=True, slots=True)
class PausePrice:
    """What a pause of a task would do to its waiting jobs."""

    due: int
    """Due jobs, which wait until the end of the pause."""
    due_expiring: int
    """Due jobs that have a misfire grace time."""
    expire_by: datetime | None
    """When the last of these has expired; None if there are none."""
    expiring: Sequence[int]
    """The jobs that expire during the pause, in the order of the ends that were asked for."""
    is_capped: bool
    """Whether counting stopped after 50,000 unfinished or blocked jobs, so that there may be more."""


@dataclass(frozen=True, slots=True)
class ExpiringJobs:
    """The waiting jobs of a task that expire by their misfire grace time while it is paused."""

    jobs: int
    """Their number."""
    is_capped: bool
    """Whether counting stopped after 50,000 unfinished jobs, so that there may be more."""

    @property
    def summary(self) -> str:
        """The number in one line, as every front end shows it."""
        jobs = counted(self.jobs, "waiting job", is_capped=self.is_capped)
        return f"{jobs} would expire during the pause, by the misfire grace time"


def fold_tasks(states: Iterable[TaskState], names: TaskNames) -> list[TaskState]:
    """Join the states of all names of a task into one state under its main name; return them by name.

    The state of a task adds up the jobs of its names, and has the last pause of any of these names. ``names``
    has the main name for each alias.
    """
    tasks: dict[str, TaskState] = {}
    for state in states:
        main_name = names.task_of(state.name)
        other_state = tasks.get(main_name)
        if other_state is None:
            tasks[main_name] = replace(state, name=main_name)
        else:
            tasks[main_name] = _joined(main_name, state, other_state)
    return [tasks[name] for name in sorted(tasks)]


def _joined(name: str, state: TaskState, other: TaskState) -> TaskState:
    """Join the states of two names of a task under its main name ``name``.

    Workers can claim both names, so the greater number of workers counts, and not the sum.
    """
    # The values about the pause are those of the state that was paused last. A state without a pause counts
    # as paused before any other.
    paused_last = max(state, other, key=lambda task: task.paused_at.timestamp() if task.paused_at else 0.0)
    oldest_due_times = [task.oldest_due_at for task in (state, other) if task.oldest_due_at is not None]
    is_unknown = state.workers is None or other.workers is None
    return replace(
        paused_last,
        name=name,
        due=state.due + other.due,
        blocked=state.blocked + other.blocked,
        running=state.running + other.running,
        oldest_due_at=min(oldest_due_times, default=None),
        # Here neither number is None. Each 0 only satisfies the type.
        workers=None if is_unknown else max(state.workers or 0, other.workers or 0),
    )


def claimed_names(workers: Sequence[InspectedWorker]) -> set[str]:
    """Return the main names, without aliases, of the tasks that live workers claim."""
    names = {name for worker in workers if worker.is_alive for name in worker.names or ()}
    return set(TaskNames.among(names, tasks_of_aliases(workers)).main)


def tasks_of_aliases(workers: Sequence[InspectedWorker]) -> dict[str, str]:
    """Return the task of each alias that live workers report. A pause holds the jobs of all its names."""
    return merge_aliases(worker.aliases for worker in workers if worker.is_alive)


async def paused_tasks(reads: InspectionStore) -> dict[str, Pause]:
    """Return the pauses that have not ended, by the names of their tasks."""
    return {pause.name: pause for pause in await reads.pauses.paused() if not pause.is_over}


def by_stopped_name(pauses: Mapping[str, Pause]) -> dict[str, Pause]:
    """Return the pauses by the names whose jobs they stop.

    These are the names that were paused, and the exact names of their tasks.
    """
    # If a name has a pause of its own, that one counts, and not the pause of a task with this exact name.
    by_exact_name = {name: pause for pause in pauses.values() for name in pause.exact_names}
    return {**by_exact_name, **pauses}


def count_claiming(
    workers: Sequence[InspectedWorker], name: str, *, with_draining: bool = False
) -> int | None:
    """Return how many live workers claim a name; None if a live worker does not report its names.

    A draining worker claims no more jobs, so it counts only if ``with_draining`` is True.
    """
    alive = [
        worker
        for worker in workers
        if worker.is_alive and worker.claims_jobs and (with_draining or not worker.is_draining)
    ]
    if any(worker.names is None for worker in alive):
        return None
    # No names are None here. The empty tuple only satisfies the type.
    return sum(name in (worker.names or ()) for worker in alive)


class TaskReads(InspectorBase):
    """The methods of `Inspector` that read tasks and what waits for them."""

    async def job_names(self) -> list[str]:
        """Return the names of jobs whose attempts were counted, sorted, at most 500."""
        return [name for name, _ in await self._reads.cluster.totals(MAX_NAMES) if name != OTHER]

    async def backlog(self) -> Backlog:
        """Count the due and the blocked jobs by name, and the blocked jobs by what they wait for.

        At most 50,000 unfinished and 20,000 blocked jobs are examined.
        """
        inspections = self._reads.inspections
        rows, is_job_capped, are_names_capped = await inspections.backlog()
        is_capped = is_job_capped or are_names_capped
        blocked = await self._reads.limits.blocked()
        blocked_names = await self._reads.limits.blocked_names()
        workers = await self._reads.worker_reads.workers()
        pauses = await paused_tasks(self._reads)
        due = sum(row.due for row in rows)
        # Names that have only blocked jobs are in no row of due and running jobs.
        other_names = sorted(blocked_names.jobs.keys() - {row.name for row in rows})
        rows_of_other_names = [BacklogRow(name, 0, 0, None) for name in other_names]
        # The fields of a BacklogRow are the first ones of a NameBacklog.
        names = [
            NameBacklog(*row, count_claiming(workers, row.name), blocked_names.jobs.get(row.name, 0))
            for row in (*rows, *rows_of_other_names)
        ]
        return Backlog(
            names=tuple(names),
            due=due,
            is_capped=is_capped,
            due_estimate=max(due, await inspections.estimate_due()) if is_capped else due,
            blocked=blocked.jobs,
            is_blocked_capped=blocked.is_capped or blocked_names.is_capped,
            held=held_names((row.name for row in rows), pauses.values(), tasks_of_aliases(workers)),
        )

    async def tasks(self) -> TaskList:
        """Return the names that workers claim, that have jobs to do, or that are paused, sorted.

        These jobs are due, blocked or running. An alias is returned only while it has such jobs or a pause of
        its own. At most 50,000 unfinished and 20,000 blocked jobs are examined.

        Example::

            found = await inspector.tasks()
            print(found.summary)
            for task in found.items:
                print(task.name, task.due, task.blocked, task.workers)
        """
        inspections = self._reads.inspections
        backlog = await inspections.backlog()
        rows = {row.name: row for row in backlog.rows}
        blocked_names = await self._reads.limits.blocked_names()
        workers = await self._reads.worker_reads.workers()
        pauses = await paused_tasks(self._reads)
        pauses_by_name = by_stopped_name(pauses)
        items = []
        for name in sorted({*rows, *blocked_names.jobs, *pauses, *claimed_names(workers)}):
            # A name without a row has no due and no running job.
            row = rows.get(name) or BacklogRow(name, 0, 0, None)
            # The fields of a BacklogRow are the first ones of a TaskState.
            state = TaskState(*row, count_claiming(workers, name), blocked_names.jobs.get(name, 0))
            pause = pauses_by_name.get(name)
            if pause is not None:
                state = replace(
                    state,
                    paused_at=pause.paused_at,
                    paused_until=pause.paused_until,
                    note=pause.note,
                    actor=pause.actor,
                    suspends_expiry=pause.suspends_expiry,
                    paused_name=pause.name,
                )
            items.append(state)
        is_capped = backlog.is_capped or backlog.are_names_capped
        return TaskList(items, is_capped, blocked_names.is_capped, len(workers) >= MAX_WORKERS)

    async def count_expiring(self, name: str, until: datetime | None) -> ExpiringJobs:
        """Count the waiting jobs of a task, under all of its names, that expire while it is paused.

        The Scheduler of the Inspector, if it has one, provides the aliases of the task.

        Args:
            name: The name of the task, or an alias.
            until: When the pause ends. Only jobs that expire before this time count. None if the pause has no
                end: all jobs with a misfire grace time count.

        Example::

            print((await inspector.count_expiring("mail.send", None)).summary)
        """
        price = await self.pause_price(name, [until])
        (expiring,) = price.expiring
        return ExpiringJobs(expiring, price.is_capped)

    async def pause_price(self, name: str, ends: Sequence[datetime | None]) -> PausePrice:
        """Count the waiting jobs of a task, and those of them that a pause would let expire.

        At most 50,000 unfinished and as many blocked jobs are examined. The Scheduler of the Inspector, if it
        has one, provides the aliases of the task.

        Args:
            name: The name of the task, or an alias.
            ends: When the pause would end, timezone-aware; several ends to compare. None means a pause
                without an end, in which all jobs with a misfire grace time expire.

        Returns:
            The numbers. ``expiring`` has one for each of the ends, in their order.

        Raises:
            ValueError: ``name`` is empty or too long, or an end is naive.

        Example::

            price = await inspector.pause_price("mail.send", [None])
            print(price.due, price.expiring[0], price.expire_by)
        """
        names = {check_name(name)}
        checked_ends = [None if end is None else check_execution_time(end, name="until") for end in ends]
        # Without a Scheduler, or if it does not have the task, only jobs of this one name are counted.
        if self._scheduler is not None:
            tasks = parts_of(self._scheduler).tasks
            task = tasks.resolve(name)
            if task is not None:
                names |= tasks.names_of(task)
        return PausePrice(*await self._reads.inspections.expiring(names, checked_ends))
