"""Write jobs, each kind by its own statements, and find what they conflict with.

Plain jobs with generated ids are copied if there are many. Jobs that wait for others, and unique jobs that
replace others, are written in one transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar

from pg_scheduler.base.batches import batches
from pg_scheduler.database.faults import SuppressedChangeError
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Transaction
from pg_scheduler.errors import JobConflictError, JobNotFoundError, SchedulerError
from pg_scheduler.jobs.rows import AnyJob, ExtendedJob, GeneratedIdJob, PlainJob
from pg_scheduler.queue.dependencies import check_kept
from pg_scheduler.queue.store import QueueStore
from pg_scheduler.queue.unique_keys import ENDED, MAX_ROUNDS, UniqueKeyTakenError

MIN_COPY_JOBS: Final = 100
"""Jobs from which on COPY is faster than INSERT, including its further round trip."""

BATCH_SIZE: Final = 1000
"""Jobs per statement by default."""

MAX_PLANNED: Final = 100_000
"""Jobs of schedules per statement."""

J = TypeVar("J", bound=AnyJob)


class Node(NamedTuple):
    """A unique key or the id of a job, in ``Groups``."""

    is_key: bool
    text: str


class Kinds(NamedTuple):
    """Jobs by what writes them.

    Attributes:
        plain: Jobs without extras that are not copied.
        copied: Jobs without extras that have generated ids, if they are so many that COPY is faster.
        extended: Jobs with extras that wait for no others.
        dependents: Jobs that wait for others, and those that have a unique key of such a job.
    """

    plain: list[PlainJob]
    copied: list[GeneratedIdJob]
    extended: list[ExtendedJob]
    dependents: list[ExtendedJob]


def split(jobs: Sequence[AnyJob]) -> Kinds:
    """Divide jobs by the statements that write them."""
    kinds = Kinds([], [], [], [])
    for job in jobs:
        # A job with a generated id is a PlainJob too, so this is tested first.
        if isinstance(job, GeneratedIdJob):
            kinds.copied.append(job)
        elif isinstance(job, PlainJob):
            kinds.plain.append(job)
        elif job.after:
            kinds.dependents.append(job)
        else:
            kinds.extended.append(job)
    if keys := {job.unique_key for job in kinds.dependents} - {None}:
        # Of several jobs with one unique key, the first one is inserted. So if one of them waits for others,
        # all jobs with this key are written together, in their order.
        dependents = [
            job for job in jobs if isinstance(job, ExtendedJob) and (job.after or job.unique_key in keys)
        ]
        extended = [job for job in kinds.extended if job.unique_key not in keys]
        kinds = kinds._replace(extended=extended, dependents=dependents)
    # For so few jobs INSERT is faster, so they are written as plain jobs.
    if len(kinds.copied) < MIN_COPY_JOBS:
        return kinds._replace(plain=[*kinds.plain, *kinds.copied], copied=[])
    return kinds


class Queue(NamedTuple):
    """New jobs of one schedule, in order.

    Attributes:
        schedule_id: The id of the schedule.
        jobs: The jobs.
        last_job_id: The id of the unfinished job that the first one follows; None for none.
        is_ordered: Whether each job waits for the end of the job before it.
        is_unique: Whether other jobs may exclude these jobs.
        added_at: When the schedule was added, to replace jobs that were cancelled before; None to replace
            none.
    """

    schedule_id: str
    jobs: Sequence[ExtendedJob]
    last_job_id: str | None
    is_ordered: bool
    is_unique: bool
    added_at: datetime | None = None


class Queued(NamedTuple):
    """The jobs of a schedule that were inserted.

    Attributes:
        jobs: The jobs.
        conflict: Why the last one of the other jobs was not inserted, if they are unique; None for no
            conflict.
    """

    jobs: list[ExtendedJob]
    conflict: JobConflictError | None = None


class Replaced(NamedTuple):
    """The rows of the jobs that replace others.

    Attributes:
        by_key: The unique jobs by key, with the ids of their rows.
        overlapping: The ids of the rows of the jobs that were written one by one, in their order.
    """

    by_key: Mapping[str | None, ExtendedJob]
    overlapping: Sequence[str]


class Groups:
    """Ids of jobs and unique keys that may belong to one row, directly or through others.

    This is a union-find structure: the nodes of a group are a tree, whose root stands for the group.
    """

    def __init__(self) -> None:
        # The next node on the way to the root, by node. A root is its own parent, or has no entry.
        self._parents: dict[Node, Node] = {}

    def join(self, job_id: str, key: str | None) -> None:
        """Note that the job with an id has a unique key, or is to get it; do nothing if the key is None."""
        if key is not None:
            self._parents[self.of(job_id)] = self._root(Node(is_key=True, text=key))

    def of(self, job_id: str) -> Node:
        """Return the node that stands for the group of an id."""
        return self._root(Node(is_key=False, text=job_id))

    def _root(self, node: Node) -> Node:
        """Return the node that stands for the group of a node: the root of its tree."""
        path: list[Node] = []
        while (parent := self._parents.get(node, node)) != node:
            path.append(node)
            node = parent
        # From now on, the root is the parent of each node on the path. So the next search takes one step,
        # however long a chain of jobs is.
        self._parents.update(dict.fromkeys(path, node))
        return node


class JobWriter:
    """Writes jobs with different ids."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    async def insert(
        self,
        jobs: Sequence[AnyJob],
        within: Connection | Transaction | None,
        *,
        message: str | None = None,
        batch_size: int = BATCH_SIZE,
        created_at: datetime | None = None,
    ) -> set[str]:
        """Insert jobs; return the ids of those whose id and unique key were free.

        Args:
            jobs: The jobs.
            within: The transaction of the caller, or one in progress; None for none.
            message: A message that the inserts send; None for none.
            batch_size: Jobs per statement.
            created_at: As for ``InsertRepository.insert()``; None for the time of each statement.

        Raises:
            JobNotFoundError: A job waits for a job that does not exist.
            ValueError: A job would wait for itself.
        """
        kinds, inserts = split(jobs), self._store.inserts
        connection = within.connection if isinstance(within, Transaction) else within
        # COPY inserts all of its jobs or fails, since no other job has one of the generated ids.
        inserted = {job.job_id for job in kinds.copied}
        for plain_jobs in _batches(kinds.plain, batch_size):
            inserted |= await inserts.insert(
                plain_jobs, message=message, connection=connection, created_at=created_at
            )
        for extended_jobs in _batches(kinds.extended, batch_size):
            inserted |= await inserts.insert_extended(
                extended_jobs, message=message, connection=connection, created_at=created_at
            )
        await inserts.copy(kinds.copied, batch_size, connection=connection, created_at=created_at)
        if kinds.dependents:
            # If a dependent waits for a refused job, it waits for the existing job in its place.
            write = partial(
                self._insert_and_block,
                kinds.dependents,
                refused_jobs=[job for job in kinds.extended if job.job_id not in inserted],
                batch_size=batch_size,
                created_at=created_at,
            )
            inserted |= await self._store.statements.run_retrying(write, within=within)
        return inserted

    async def find_overlapping(self, jobs: Sequence[AnyJob], connection: Connection | None) -> list[int]:
        """Return the indexes of those jobs of a call that may replace each other.

        A job replaces the row that has its id, or the row that holds its unique key. So two jobs may replace
        one row although their ids and their keys differ, if one has the id of the row and the other has its
        key. Jobs that only share one id, or only share one key, are not returned: the last definition counts.
        """
        # No row has a generated id, so a job with such an id replaces none.
        named_jobs = {place: job for place, job in enumerate(jobs) if not isinstance(job, GeneratedIdJob)}
        keys = {key for job in named_jobs.values() if (key := job.unique_key) is not None}
        # Without keys, jobs share a row only if they share its id.
        if len(named_jobs) < 2 or not keys:
            return []
        ids = list({job.job_id for job in named_jobs.values()})
        rows = await self._store.unique_keys.find_conflicts(ids, list(keys), connection=connection)
        groups = Groups()
        for job in named_jobs.values():
            groups.join(job.job_id, job.unique_key)
        # A job that has ended does not hold its key any more.
        for row in rows:
            groups.join(row.job_id, row.unique_key if row.is_unfinished else None)
        places_by_group = defaultdict[Node, list[int]](list)
        for place, job in named_jobs.items():
            places_by_group[groups.of(job.job_id)].append(place)
        existing_ids = {row.job_id for row in rows}
        overlapping_places: list[int] = []
        for places in places_by_group.values():
            if not _share_one_name([named_jobs[place] for place in places], existing_ids):
                overlapping_places += places
        return sorted(overlapping_places)

    async def replace(
        self,
        jobs: Sequence[AnyJob],
        within: Connection | Transaction | None,
        *,
        overlapping_jobs: Sequence[AnyJob] = (),
        batch_size: int = BATCH_SIZE,
        created_at: datetime | None = None,
    ) -> Replaced:
        """Insert jobs, or give existing ones a new definition.

        A unique job replaces the job that holds its key, whatever id that job has. Of several jobs with one
        key, the last definition gets the id of the first.

        Args:
            jobs: The jobs, each id once.
            within: The transaction of the caller, or one in progress; None for none.
            overlapping_jobs: Further jobs, which may replace each other, so they are written one by one.
            batch_size: Jobs per statement.
            created_at: As for ``insert()``.

        Raises:
            JobConflictError: One existing job has the id of a new job, and another one holds its key.
            JobNotFoundError: A job waits for a job that does not exist.
            ValueError: A job would wait for itself.
        """
        unique_jobs: dict[str | None, ExtendedJob] = {}
        keys_by_id: dict[str, str] = {}
        for job in jobs:
            if isinstance(job, ExtendedJob) and (key := job.unique_key) is not None:
                if key in unique_jobs:
                    unique_jobs[key] = job.with_id(unique_jobs[key].job_id)
                else:
                    unique_jobs[key] = job
                keys_by_id[job.job_id] = key
        kinds = split([job for job in jobs if job.unique_key is None])
        replaced_jobs = [
            *kinds.plain,
            *kinds.extended,
            *kinds.dependents,
            *unique_jobs.values(),
            *overlapping_jobs,
        ]
        # A transaction of the application has to lock all of these jobs before it writes the first one.
        # Otherwise it and another such transaction may wait for each other; see ``dependencies.py``.
        if within is not None and any(map(is_dependent, replaced_jobs)):
            async with self._store.statements.transaction(within=within) as transaction:
                await self._store.dependencies.lock_dependents(replaced_jobs, transaction)
        inserts = self._store.inserts
        connection = within.connection if isinstance(within, Transaction) else within
        for plain_jobs in _batches(kinds.plain, batch_size):
            await inserts.replace(plain_jobs, connection=connection, created_at=created_at)
        for extended_jobs in _batches(kinds.extended, batch_size):
            await inserts.replace_extended(extended_jobs, connection=connection, created_at=created_at)
        await inserts.copy(kinds.copied, batch_size, connection=connection, created_at=created_at)
        if not (unique_jobs or kinds.dependents or overlapping_jobs):
            return Replaced({}, [])
        write = partial(
            self._replace_and_block,
            unique_jobs,
            keys_by_id,
            kinds.dependents,
            overlapping_jobs,
            batch_size=batch_size,
            created_at=created_at,
        )
        return await self._store.statements.run_retrying(write, within=within)

    async def check_parents(
        self, jobs: Sequence[ExtendedJob], inserted: Iterable[AnyJob], connection: Connection | None
    ) -> None:
        """Check that each parent, a job that others wait for, exists or is inserted by the same call.

        Raises:
            JobNotFoundError: A parent does not exist.
            ValueError: A parent keeps no result, but a job reads it.
        """
        # By the id of each job of the call, whether its result is kept. A plain job keeps none.
        keeps_by_id = {job.job_id: isinstance(job, ExtendedJob) and job.keeps_result for job in inserted}
        # These are the parents that have to exist. A dict keeps the order, by which the error names the first
        # missing one.
        parents = {parent: None for job in jobs for parent in job.after if parent not in keeps_by_id}
        if parents:
            statuses = await self._store.jobs.statuses_of(parents, connection=connection)
            for parent in parents:
                if parent not in statuses:
                    raise JobNotFoundError(parent)
        if readers := [job for job in jobs if job.passes_results]:
            keeping = {job_id for job_id, keeps_result in keeps_by_id.items() if keeps_result}
            check_kept(readers, keeping | await self._store.dependencies.keeping(parents, connection))

    async def check_parents_of_new(
        self, jobs: Sequence[ExtendedJob], inserted: Sequence[AnyJob], connection: Connection | None
    ) -> None:
        """Check the parents as ``check_parents()`` does, for a call that leaves existing jobs as they are.

        A job whose id or unique key is taken is not inserted, so its parents do not matter. And the row of a
        parent that exists decides whether its result is kept, not the definition of the call.
        """
        inserted_by_id = {job.job_id: job for job in inserted}
        ids = {job.job_id for job in jobs}
        # The parents that the call would insert may exist already, too.
        ids |= {parent for job in jobs for parent in job.after if parent in inserted_by_id}
        keys = [key for job in jobs if (key := job.unique_key) is not None]
        rows = await self._store.unique_keys.find_conflicts(ids, keys, connection=connection)
        existing_ids = {row.job_id for row in rows}
        taken_keys = {row.unique_key for row in rows if row.is_unfinished} - {None}
        new_jobs = [
            job for job in jobs if job.job_id not in existing_ids and job.unique_key not in taken_keys
        ]
        new_parents = [job for job_id, job in inserted_by_id.items() if job_id not in existing_ids]
        await self.check_parents(new_jobs, new_parents, connection)

    async def conflict(
        self, jobs: Sequence[AnyJob], connection: Connection | None
    ) -> JobConflictError | None:
        """Return the first conflict of jobs that were not inserted; None if there is no conflict any more."""
        keys = [key for job in jobs if (key := job.unique_key) is not None]
        # Without a key, each of the jobs was refused because of its id, so the first one is the answer.
        if not keys:
            job_id = jobs[0].job_id
            statuses = await self._store.jobs.statuses_of([job_id], connection=connection)
            status = statuses.get(job_id)
            return None if status is None else JobConflictError(job_id, status.value)
        rows = await self._store.unique_keys.find_conflicts(
            [job.job_id for job in jobs], keys, connection=connection
        )
        by_id = {row.job_id: row for row in rows}
        by_key = {row.unique_key: row for row in rows if row.is_unfinished}
        for job in jobs:
            if (row := by_id.get(job.job_id)) is not None:
                return JobConflictError(row.job_id, row.status)
            if (key := job.unique_key) is not None and (row := by_key.get(key)) is not None:
                return JobConflictError(row.job_id, row.status, key)
        return None

    # -- jobs of schedules ---------------------------------------------------------------------------------

    async def insert_queues(
        self,
        queues: Sequence[Queue],
        transaction: Transaction,
        *,
        planned_at: datetime,
        message: str | None = None,
    ) -> list[Queued]:
        """Insert the jobs of schedules: those of unique tasks one by one, all others together.

        If no task is unique and every overlap is ``Overlap.ALLOW``, no job waits for another. Then this is
        ``insert_extended_jobs`` and nothing else.

        Each statement that inserts a job sends the message; None for none. The commit sends it once.

        ``planned_at`` is the time of the server at which the jobs were planned, and counts as the time at
        which they were added. If the server's clock was ahead then, and was set back since, the correction of
        due times finds the jobs by that time.
        """
        jobs = [job for queue in queues if not queue.is_unique for job in _linked(queue)]
        insert = partial(
            self._store.inserts.insert_extended,
            message=message,
            connection=transaction.connection,
            created_at=planned_at,
        )
        inserted: set[str] = set()
        # One statement, unless the jobs are many or have large arguments.
        for batch in _batches(jobs, MAX_PLANNED):
            inserted |= await insert(batch)
        if len(inserted) < len(jobs):
            refused = [job for job in jobs if job.job_id not in inserted]
            for batch in _batches(await self._freed(refused, queues, transaction), MAX_PLANNED):
                inserted |= await insert(batch)
        # The links are computed again: now each job waits for the newest job before it that was inserted.
        new_jobs = [[] if queue.is_unique else _linked(queue, inserted) for queue in queues]
        if dependents := [job for queue_jobs in new_jobs for job in queue_jobs if job.after]:
            await self._store.dependencies.block(dependents, transaction)
        results: list[Queued] = []
        for queue, queue_jobs in zip(queues, new_jobs, strict=True):
            if queue.is_unique:
                results.append(await self._insert_unique(queue, transaction, message, planned_at))
            else:
                results.append(Queued(queue_jobs))
        return results

    async def _freed(
        self, jobs: Sequence[ExtendedJob], queues: Sequence[Queue], transaction: Transaction
    ) -> list[ExtendedJob]:
        """Delete cancelled jobs that have the ids of new jobs; return the new jobs whose ids are free now.

        A fire time is part of the id of its job. So if a schedule was removed with its jobs, and added again,
        a cancelled job of the earlier schedule may have the id. This transaction deletes that job and inserts
        the new one, so the fire time has one job whatever happens meanwhile.
        """
        added_at_by_schedule = {
            queue.schedule_id: queue.added_at for queue in queues if queue.added_at is not None
        }
        if not added_at_by_schedule:
            return []
        freed_ids = await self._store.jobs.free_fire_times(
            [job.job_id for job in jobs], added_at_by_schedule, transaction.connection
        )
        return [job for job in jobs if job.job_id in freed_ids]

    async def _insert_unique(
        self, queue: Queue, transaction: Transaction, message: str | None, planned_at: datetime
    ) -> Queued:
        """Insert unique jobs one by one, so that no job waits for a job that was rejected."""
        inserted: list[ExtendedJob] = []
        last_job_id, conflict = queue.last_job_id, None
        for job in queue.jobs:
            # A queue of this job alone, so that it waits for the last job that was inserted.
            (linked,) = _linked(queue._replace(jobs=[job], last_job_id=last_job_id))
            insert = partial(
                self._insert_and_block, [linked], transaction, message=message, created_at=planned_at
            )
            is_inserted = bool(await insert())
            if not is_inserted and await self._freed([linked], [queue], transaction):
                is_inserted = bool(await insert())
            if is_inserted:
                inserted.append(linked)
                last_job_id = linked.job_id
            else:
                # The job that was in the way may be gone by now. Then an earlier conflict is reported.
                new_conflict = await self.conflict([linked], transaction.connection)
                conflict = new_conflict or conflict
        return Queued(inserted, conflict)

    # -- jobs that wait for others -------------------------------------------------------------------------

    async def _insert_and_block(
        self,
        jobs: Sequence[ExtendedJob],
        transaction: Transaction,
        *,
        refused_jobs: Sequence[ExtendedJob] = (),
        batch_size: int = BATCH_SIZE,
        message: str | None = None,
        created_at: datetime | None = None,
    ) -> set[str]:
        """Insert jobs, and block those that wait for others.

        Suppose that a job waits for another job of the call, and that one is not inserted because an existing
        job holds its unique key. Then the first job waits for the existing one.

        Args:
            jobs: The jobs.
            transaction: The transaction.
            refused_jobs: The other jobs of the call that were not inserted.
            batch_size: Jobs per statement.
            message: A message that the inserts send; None for none.
            created_at: As for ``insert()``.

        Returns:
            The ids of the jobs that were inserted. Refused jobs whose keys have become free are among them.
        """
        inserted: set[str] = set()
        remaining_jobs = jobs
        for _ in range(MAX_ROUNDS):
            for batch in _batches(remaining_jobs, batch_size):
                inserted |= await self._store.inserts.insert_extended(
                    batch, message=message, connection=transaction.connection, created_at=created_at
                )
            dependents = [job for job in jobs if job.after and job.job_id in inserted]
            awaited_ids = {parent for job in dependents for parent in job.after}
            absent_ids = awaited_ids - inserted
            # Jobs of the call that others wait for, and that were refused because of their unique keys.
            absent_jobs = [
                job
                for job in [*refused_jobs, *jobs]
                if job.unique_key is not None and job.job_id in absent_ids
            ]
            holders = await self._lock_holders(absent_jobs, awaited_ids, transaction) if absent_jobs else {}
            # The job that held a key may have ended meanwhile, so the next round inserts the job of the call.
            remaining_jobs = [job for job in absent_jobs if job.job_id not in holders]
            if not remaining_jobs:
                break
        else:
            raise not_inserted(remaining_jobs[0])
        if dependents:
            waiting_jobs = [job.with_parents(holders) for job in dependents]
            await self._store.dependencies.block(waiting_jobs, transaction)
        return inserted

    async def _lock_holders(
        self, jobs: Sequence[ExtendedJob], awaited_ids: Collection[str], transaction: Transaction
    ) -> dict[str, str]:
        """Return, by the id of each job that was not inserted, the id of the existing job in its place.

        That is the job with the same id or, if there is none, the job that holds the unique key. Jobs of the
        call that wait for the one that was not inserted wait for the existing job instead. The holder of a
        key must not end meanwhile, so it is locked together with all other awaited jobs, in the order of the
        ids.
        """
        ids, keys = [job.job_id for job in jobs], [key for job in jobs if (key := job.unique_key) is not None]
        rows = await self._store.unique_keys.find_conflicts(ids, keys, connection=transaction.connection)
        existing_ids = {row.job_id for row in rows}
        by_key = {row.unique_key: row.job_id for row in rows if row.is_unfinished}
        holders_of_keys = {
            job.job_id: by_key[job.unique_key]
            for job in jobs
            if job.job_id not in existing_ids and job.unique_key in by_key
        }
        unfinished_ids = await self._store.dependencies.lock_unfinished(
            {*awaited_ids, *holders_of_keys.values()}, transaction
        )
        # An existing job with the same id is waited for under this id.
        holders = {job_id: job_id for job_id in ids if job_id in existing_ids}
        # A job that has ended before it was locked does not hold the key any more.
        holders |= {job_id: holder for job_id, holder in holders_of_keys.items() if holder in unfinished_ids}
        return holders

    async def _replace_and_block(
        self,
        unique_jobs: Mapping[str | None, ExtendedJob],
        keys: Mapping[str, str],
        dependents: Sequence[ExtendedJob],
        overlapping_jobs: Sequence[AnyJob],
        transaction: Transaction,
        *,
        batch_size: int,
        created_at: datetime | None,
    ) -> Replaced:
        """Insert or replace unique jobs and jobs that wait for others, then block those that wait.

        Unique jobs and others may wait for one another, so all rows are written before the first one waits.

        Args:
            unique_jobs: The unique jobs by key.
            keys: The keys by the ids with which the call names these jobs.
            dependents: The jobs that wait for others and are not unique.
            overlapping_jobs: The jobs that may replace each other, in order.
            transaction: The transaction.
            batch_size: Jobs per statement.
            created_at: When they are created; None for the time of the statement.
        """
        # Each of these jobs has the id of its row from now on.
        overlapping_rows = [await self._replace_one(job, transaction, created_at) for job in overlapping_jobs]
        # Another transaction may give one of these jobs a key of the call. Then the unique job replaces it.
        for batch in _batches(dependents, batch_size):
            await self._store.inserts.replace_extended(
                batch, connection=transaction.connection, created_at=created_at
            )
        written_jobs = await self._replace_unique(unique_jobs.values(), transaction, batch_size, created_at)
        by_key = {job.unique_key: job for job in written_jobs}
        # Of several definitions of one row, the last one counts.
        by_id = {job.job_id: job for job in [*overlapping_rows, *dependents, *written_jobs]}
        # The row of a unique job may have another id than the one by which the call names the job.
        pairs = zip(overlapping_jobs, overlapping_rows, strict=True)
        row_ids = {job.job_id: row.job_id for job, row in pairs}
        row_ids |= {job_id: by_key[key].job_id for job_id, key in keys.items()}
        waiting_jobs = [
            job.with_parents(row_ids) for job in by_id.values() if isinstance(job, ExtendedJob) and job.after
        ]
        if waiting_jobs:
            await self._store.dependencies.block(waiting_jobs, transaction, replaced=True)
        return Replaced(by_key, [job.job_id for job in overlapping_rows])

    async def _replace_one(
        self, job: AnyJob, transaction: Transaction, created_at: datetime | None
    ) -> AnyJob:
        """Insert a job, or replace the one that has its id or its key; return it with the id of its row."""
        connection, inserts = transaction.connection, self._store.inserts
        if not isinstance(job, ExtendedJob):
            await inserts.replace([job], connection=connection, created_at=created_at)
        elif job.unique_key is None:
            await inserts.replace_extended([job], connection=connection, created_at=created_at)
        else:
            (job,) = await self._write_unique([job], transaction, created_at)
        return job

    # -- unique jobs that replace others -------------------------------------------------------------------

    async def _replace_unique(
        self,
        jobs: Collection[ExtendedJob],
        transaction: Transaction,
        batch_size: int,
        created_at: datetime | None,
    ) -> list[ExtendedJob]:
        """Write unique jobs, and return them with the ids of their rows.

        The transaction locks the jobs that hold the keys, so that none of them ends before it has the new
        definition. It writes the jobs in the order of their keys, so that two such transactions do not
        deadlock.
        """
        ordered_jobs = sorted(jobs, key=lambda job: job.unique_key or "")
        written_jobs: list[ExtendedJob] = []
        for batch in _batches(ordered_jobs, batch_size):
            written_jobs += await self._write_unique(batch, transaction, created_at)
        return written_jobs

    async def _write_unique(
        self, jobs: Sequence[ExtendedJob], transaction: Transaction, created_at: datetime | None
    ) -> list[ExtendedJob]:
        """Insert the jobs whose keys and ids are free, and let the others replace the jobs that have them.

        A key or an id may become free or taken meanwhile, so further rounds follow for those that remain.

        Raises:
            JobConflictError: Other jobs took the keys in every round, or two existing jobs have the id and
                the key of a job.
        """
        connection = transaction.connection
        insert = partial(self._store.inserts.insert_extended, connection=connection, created_at=created_at)
        replace = partial(self._store.inserts.replace_extended, connection=connection, created_at=created_at)
        postpone = partial(
            self._store.inserts.replace_debounced, connection=connection, created_at=created_at
        )
        written_jobs: list[ExtendedJob] = []
        remaining_jobs = jobs
        for _ in range(MAX_ROUNDS):
            inserted = await insert(remaining_jobs)
            written_jobs += [job for job in remaining_jobs if job.job_id in inserted]
            remaining_jobs = [job for job in remaining_jobs if job.job_id not in inserted]
            # The jobs that replace rows, by the ids of these rows. Such a job gets the id of its row.
            targets = await self._targets(remaining_jobs, connection) if remaining_jobs else {}
            if targets:
                try:
                    async with self._store.statements.transaction(within=transaction):
                        replacing_jobs = [job for job in targets.values() if job.debouncing is None]
                        await replace(replacing_jobs)
                        # The jobs with these keys are locked by now, which this statement requires.
                        postponed_jobs = await postpone(
                            [job for job in targets.values() if job.debouncing is not None]
                        )
                except UniqueKeyTakenError:
                    # Another job has taken one of the keys meanwhile. The next round finds that job.
                    continue
                written_jobs += [*replacing_jobs, *postponed_jobs]
                written_keys = {job.unique_key for job in targets.values()}
                remaining_jobs = [job for job in remaining_jobs if job.unique_key not in written_keys]
            if not remaining_jobs:
                return written_jobs
        raise not_inserted(remaining_jobs[0])

    async def _targets(self, jobs: Sequence[ExtendedJob], connection: Connection) -> dict[str, ExtendedJob]:
        """Return which job replaces each existing row, by the id of that row.

        A job whose key and id are free by now replaces none, and is left out.
        """
        keys = [key for job in jobs if (key := job.unique_key) is not None]
        holders = await self._store.unique_keys.lock_holders(keys, connection)
        existing = await self._store.jobs.statuses_of([job.job_id for job in jobs], connection=connection)
        targets: dict[str, ExtendedJob] = {}
        for job in jobs:
            holder = holders.get(job.unique_key or "")
            if holder is None and job.job_id not in existing:
                # Neither its key nor its id is taken any more, so the next round inserts it.
                continue
            if holder is not None and holder.job_id != job.job_id and job.job_id in existing:
                # One row has the id, and another one has the key. The job could replace only one of them.
                raise JobConflictError(holder.job_id, holder.status, holder.unique_key)
            # The row to replace is the one that holds the key. If none does, it is the one with the id.
            target = job.job_id if holder is None else holder.job_id
            # If two jobs have one row as their target, the first one replaces it. The next round looks up the
            # target of the other one again.
            targets.setdefault(target, job.with_id(target))
        return targets


def _share_one_name(jobs: Sequence[AnyJob], existing_ids: Collection[str]) -> bool:
    """Return whether jobs that may share a row do so by one id or by one key, so that the last one counts.

    Args:
        jobs: The jobs.
        existing_ids: The ids of existing jobs, since a unique job may also replace the job that has its id.
    """
    keys, ids = {job.unique_key for job in jobs}, {job.job_id for job in jobs}
    # Jobs without a key can share a row only by their id.
    share_id = keys == {None}
    # A job whose id exists may replace the row with this id, instead of the row that holds its key.
    have_own_ids = len(ids) == len(jobs) and ids.isdisjoint(existing_ids)
    share_key = len(keys) == 1 and have_own_ids
    return len(jobs) == 1 or share_id or share_key


def is_dependent(job: AnyJob) -> bool:
    """Return whether a job waits for others."""
    return isinstance(job, ExtendedJob) and bool(job.after)


def not_inserted(job: AnyJob) -> SchedulerError:
    """Return the error about a job that was not inserted, although no other job is in its way."""
    if job.unique_key is None:
        return SuppressedChangeError(change="insert")
    return JobConflictError(job.job_id, ENDED, job.unique_key)


def _linked(queue: Queue, inserted: Collection[str] | None = None) -> list[ExtendedJob]:
    """Return jobs of a queue in order, each of which waits for the job before it if the queue is ordered.

    These are the jobs whose ids are in ``inserted``; None stands for all jobs. The job of a fire time may
    have existed before, because ``backfill()`` enqueued it. A job that waits for such a job waits for the
    newest job of the schedule too.
    """
    linked_jobs: list[ExtendedJob] = []
    # The job of the previous fire time, which may have existed before, and the newest job inserted here.
    previous_id = newest_id = queue.last_job_id
    for job in queue.jobs:
        job_id = job.row.job_id
        if inserted is None or job_id in inserted:
            ids = (previous_id, newest_id)
            parents = tuple(dict.fromkeys(parent_id for parent_id in ids if parent_id is not None))
            if queue.is_ordered and parents:
                linked_jobs.append(job.queued_after(parents))
            else:
                linked_jobs.append(job)
            newest_id = job_id
        previous_id = job_id
    return linked_jobs


def _batches(jobs: Sequence[J], size: int) -> Iterator[Sequence[J]]:
    """Divide jobs into batches, each of which one statement inserts."""
    return batches(jobs, size, lambda part: [job.characters for job in part])
