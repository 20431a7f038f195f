"""Jobs that wait for the end of other jobs: the edges of ``scheduler_after``.

A job that waits has ``blocked_on = 'after'`` and one edge for each parent that has not ended. The transaction
that ends a parent deletes the edges of the parent, and unblocks each job that has no edge left. It locks the
children first, in the order of their ids. So if two parents end at the same instant, the transaction of the
second one sees that the edge of the first one is gone.

The state follows from the rows, so ``repair()`` corrects what was written by hand.

Transactions lock the rows of jobs in this order, each group by the ids. Those of schedules whose jobs are
retried are locked before:

1. The existing jobs of a call in which some jobs are to wait for others, before the call writes any of them:
   ``lock_dependents()``.
2. The jobs for which others are to wait: ``lock_parents`` or ``hold_parents``.
3. The advisory lock of cycles, if further jobs are above these: ``_ancestor_edges()``.
4. At the commit of a transaction of the application, the jobs of the second group, in the order of its calls.

A transaction of the application holds only the keys of the second group from its call to its commit, and
writes these rows at the commit. Suppose another transaction wrote such a row before it took the locks of the
first group. Then it would wait for that commit, and the commit would wait for the row.

The end and the retry of a job first lock the job and then those that wait for it, whatever their ids are.
``FamilyRepository.lock()`` locks children before parents, too. So such a transaction and one that locks
several jobs by id may deadlock. The library repeats its own
transaction, but PostgreSQL may end one of the application.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple

from pg_scheduler.base.messages import due_message
from pg_scheduler.base.sqltext import qualify
from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.session import Connection, Record
from pg_scheduler.database.statements import CallersTransaction, Statements, Transaction
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.events import JobBlocked, JobCancelled
from pg_scheduler.jobs.rows import AnyJob, ExtendedJob
from pg_scheduler.jobs.step_values import CHILD_OF
from pg_scheduler.queue.consequences import Consequences, EndedJob
from pg_scheduler.queue.locks import LOCK_CLASS
from pg_scheduler.queue.passed_results import OF_CHILD, PASSED, Edge, PassedResultRepository

AFTER: Final = "after"
"""The ``blocked_on`` of a job that waits for others."""

COMPLETED: Final = "completed"
ENDED: Final = "ended"
"""The outcomes for which jobs wait: success, or any end."""

NOT_COMPLETED: Final = "job {!r}, after which this job was to run, ended as {!r}"
NOT_FOUND: Final = "job {!r}, after which this job was to run, does not exist"
KEEPS_NONE: Final = (
    "job {!r} keeps no result that could be passed to job {!r}; pass keep_result= to the first one, "
    "or omit pass_results= of the second one"
)
OWN_CHILD: Final = (
    "job {!r} would wait for itself: a child of its step waits for it, or has its unique key; "
    "change after= or unique= of the child"
)
CYCLE: Final = "job {!r} would wait for itself: a job that it comes after waits for it; change after="


class ScanPosition(NamedTuple):
    """Where a scan continues.

    Attributes:
        block: The first block of the table of edges.
        job: The priority, the due time as text, and the id of the last job that was read.
    """

    block: int = 0
    job: tuple[int, str, str] = (0, "-infinity", "")


class NewEdge(NamedTuple):
    """A job that has not ended, the job that waits for it, and the outcome for which that one waits."""

    parent_id: str
    child_id: str
    outcome: str


class DependencyRepository:
    """The statements about jobs that wait for other jobs."""

    def __init__(
        self, statements: Statements, consequences: Consequences, passed_results: PassedResultRepository
    ) -> None:
        self._statements = statements
        self._consequences = consequences
        self._passed_results = passed_results

    async def lock_unfinished(self, job_ids: Collection[str], transaction: Transaction) -> set[str]:
        """Lock jobs that others are to wait for; return those that have not ended."""
        rows = await self._lock_parents(job_ids, transaction)
        return {row["job_id"] for row in rows if not row["has_ended"]}

    async def _lock_parents(self, job_ids: Collection[str], transaction: Transaction) -> Sequence[Record]:
        """Return jobs that others are to wait for, and lock them until the edges are committed.

        An edge is a row that makes one job, the child, wait for another one, its parent.

        A transaction of the library keeps the parents from ending meanwhile. A transaction of the application
        may stay open for long, so it only keeps the parents from being deleted. Its commit marks them as jobs
        that others wait for.
        """
        if isinstance(transaction, CallersTransaction):
            return await self._statements.fetch("hold_parents", list(job_ids), on=transaction.connection)
        return await self._statements.fetch("lock_parents", list(job_ids), on=transaction.connection)

    async def lock_dependents(self, jobs: Sequence[AnyJob], transaction: Transaction) -> None:
        """Lock the existing jobs of a call before it writes them, if some are to wait for others.

        Only a transaction of the application needs these locks. It does not lock the rows of parents
        completely, so two such transactions could let their jobs wait for each other, and neither sees that.
        """
        if isinstance(transaction, CallersTransaction):
            job_ids, keys = [job.job_id for job in jobs], [job.unique_key for job in jobs if job.unique_key]
            await self._statements.fetch("lock_dependents", job_ids, keys, on=transaction.connection)

    async def keeping(self, job_ids: Collection[str], connection: Connection | None = None) -> set[str]:
        """Return the ids of those of the jobs whose results are kept when they end."""
        rows = await self._statements.fetch("keeping_jobs", list(job_ids), on=connection)
        return {row["job_id"] for row in rows}

    async def block(
        self, jobs: Sequence[ExtendedJob], transaction: Transaction, *, replaced: bool = False
    ) -> None:
        """Let jobs that were just written wait for their parents, in the same transaction.

        A parent that has ended counts at once, and its result is passed.

        Args:
            jobs: The jobs, each id once.
            transaction: The transaction.
            replaced: Whether the jobs may have existed before.

        Raises:
            JobNotFoundError: A parent does not exist. The caller rolls back.
            ValueError: A job would wait for itself, or for the result of a job that keeps none. The caller
                rolls back.
        """
        connection, events = transaction
        children = [job.job_id for job in jobs]
        if replaced:
            # The caller has locked them too, except those that another transaction has added meanwhile.
            await self.lock_dependents(jobs, transaction)
        # What a former definition of a job waited for does not count any more.
        await self._statements.fetch("delete_edges", children, on=connection)
        parents = list(dict.fromkeys(parent for job in jobs for parent in job.after))
        rows = await self._lock_parents(parents, transaction)
        statuses = {row["job_id"]: JobStatus(row["status"]) for row in rows}
        ended_ids = {row["job_id"] for row in rows if row["has_ended"]}
        if missing_parents := [parent for parent in parents if parent not in statuses]:
            raise JobNotFoundError(missing_parents[0])
        if readers := [job for job in jobs if job.passes_results]:
            check_kept(readers, {row["job_id"] for row in rows if row["keeps_result"]})
            # A former definition of a job may have got results, which are deleted. The new ones get prefixes
            # that differ from theirs.
            prefixes = await self._passed_results.clear([job.job_id for job in readers], connection)
            # The third value is the definition of the step that an edge belongs to. These are edges of
            # ``after=``, which belong to no step.
            passed_edges = [
                Edge(parent, job.job_id, "") for job in readers for parent in job.after if parent in ended_ids
            ]
            await self._passed_results.copy(passed_edges, prefixes, connection)
        edges: list[NewEdge] = []
        cancel_reasons: dict[str, str] = {}
        # A job waits for each parent that has not ended. If another one should have completed, but has not,
        # the job is cancelled for that reason.
        for job in jobs:
            for parent in job.after:
                if parent not in ended_ids:
                    edges.append(NewEdge(parent, job.job_id, job.after_outcome))
                elif job.after_outcome == COMPLETED and statuses[parent] is not JobStatus.COMPLETED:
                    reason = NOT_COMPLETED.format(parent, statuses[parent].value)
                    cancel_reasons.setdefault(job.job_id, reason)
        if edges:
            # The statement takes three arrays: the parents, the children and the outcomes.
            await self._statements.fetch("insert_edges", *zip(*edges, strict=True), on=connection)
            await self._mark_parents(edges, children, transaction)
            await self._check_cycles(children, edges, connection, replaced=replaced)
        waiting_ids = {edge.child_id for edge in edges}
        # The jobs of which every parent has ended as they want.
        free_ids = [child for child in children if child not in waiting_ids and child not in cancel_reasons]
        cancelled = await self._decide(free_ids, cancel_reasons, transaction)
        # The number of the attempt is 0, because none has begun.
        events += [
            JobBlocked(job.job_id, job.job_name, 0, AFTER) for job in jobs if job.job_id in waiting_ids
        ]
        await self._consequences.run(cancelled, transaction)

    async def _check_cycles(
        self,
        children: Sequence[str],
        edges: Collection[NewEdge],
        connection: Connection,
        *,
        replaced: bool,
    ) -> None:
        """Raise ValueError if a job would wait for itself.

        Jobs outside of this call wait for a job of it only if that job is ``replaced``. Otherwise only edges
        among the new jobs can form a cycle.
        """
        parent_ids = {edge.parent_id for edge in edges}
        # Each pair has a parent and a child.
        if replaced:
            pairs = await self._ancestor_edges(children, parent_ids.union(children), connection)
        elif not parent_ids.isdisjoint(children):
            pairs = [(edge.parent_id, edge.child_id) for edge in edges]
        else:
            return
        graph: TopologicalSorter[str] = TopologicalSorter()
        for parent, child in pairs:
            graph.add(child, parent)
        try:
            graph.prepare()
        except CycleError as error:
            _message, cycle = error.args
            raise ValueError(CYCLE.format(cycle[0])) from None

    async def _ancestor_edges(
        self, job_ids: Collection[str], locked: Collection[str], connection: Connection
    ) -> list[tuple[str, str]]:
        """Return every edge above jobs, as its parent and child: to their parents, to theirs, and so on.

        ``locked`` has the ids of the jobs that this transaction has locked. Another transaction may add an
        edge above any other job, and so close a cycle with edges of this transaction. Neither sees the edges
        of the other one, so such transactions follow one another.
        """
        rows = await self._statements.fetch("ancestor_edges", list(job_ids), on=connection)
        if any(row["parent_id"] not in locked for row in rows):
            # All such checks take the same advisory lock, and then read the edges once more.
            await self._statements.fetch("lock_texts", LOCK_CLASS, [AFTER], on=connection)
            rows = await self._statements.fetch("ancestor_edges", list(job_ids), on=connection)
        return [(row["parent_id"], row["child_id"]) for row in rows]

    async def await_jobs(
        self, job_id: str, definition: str, awaited: Collection[str], transaction: Transaction
    ) -> bool:
        """Let a job wait for jobs that its attempt has just inserted or found; return whether all have ended.

        The results of the jobs that have ended are passed at once.

        Args:
            job_id: The job that waits. Its row is locked.
            definition: The text that distinguishes the job that waits from earlier and later jobs with its
                id.
            awaited: The jobs that it waits for.
            transaction: The transaction.

        Raises:
            ValueError: The job would wait for itself. The caller rolls back.
        """
        connection = transaction.connection
        locked_rows = await self._statements.fetch("lock_parents", list(awaited), on=connection)
        pairs = await self._ancestor_edges(awaited, awaited, connection)
        if job_id in awaited or any(parent == job_id for parent, _ in pairs):
            raise ValueError(OWN_CHILD.format(job_id))
        ended_ids = [row["job_id"] for row in locked_rows if row["has_ended"]]
        unfinished_ids = [row["job_id"] for row in locked_rows if not row["has_ended"]]
        edges = [Edge(parent, job_id, definition) for parent in ended_ids]
        await self._passed_results.copy(edges, {job_id: OF_CHILD}, connection)
        # With an edge for each unfinished job, the end of the last one lets the waiting job continue.
        if unfinished_ids:
            await self._statements.fetch("await_jobs", unfinished_ids, job_id, definition, on=connection)
            await self._statements.fetch("mark_parents", unfinished_ids, on=connection)
        else:
            await self._end_child_steps([job_id], connection)
        return not unfinished_ids

    async def lock_retried(self, job_id: str, transaction: Transaction) -> None:
        """Lock a job, so that the statement that retries it sees which other jobs it still waits for.

        The transaction that ends another job locks this one before it deletes the edge, which is the row that
        makes this job wait. At another isolation level than READ COMMITTED, a transaction of the application
        does not see that the edge is gone, so its commit wakes a scan.
        """
        await self._statements.fetch("lock_jobs", [job_id], on=transaction.connection)
        if isinstance(transaction, CallersTransaction):
            await self._statements.fetch("leave_consequences", on=transaction.connection)

    async def wait_again(
        self, children: Sequence[str], parents: Sequence[str | None], connection: Connection
    ) -> None:
        """Let the open steps of jobs wait again for their children, which this transaction has retried.

        Args:
            children: The jobs that were retried.
            parents: The jobs whose steps have started them, as their options state; None for jobs that no
                step has started.
            connection: The connection of the transaction.
        """
        if job_ids := sorted({job_id for job_id in parents if job_id is not None}):
            await self._statements.fetch("lock_jobs", job_ids, on=connection)
            await self._statements.fetch("wait_again", children, on=connection)

    async def lock_schedules(
        self, job_ids: Collection[str], transaction: Transaction
    ) -> dict[str, str | None]:
        """Lock the schedules of jobs before these are retried; return the last job of each schedule.

        Schedules whose jobs may overlap are left out, and so are jobs in a sequence, which orders them.
        """
        on = transaction.connection
        rows = await self._statements.fetch("schedules_of", list(job_ids), on=on)
        if not rows:
            return {}
        schedule_ids = [row["schedule_id"] for row in rows]
        locked_rows = await self._statements.fetch("lock_ordered", schedule_ids, on=on)
        return {row["schedule_id"]: row["last_job_id"] for row in locked_rows}

    async def queue_retried(
        self, job_ids: Collection[str], last_jobs: Mapping[str, str | None], transaction: Transaction
    ) -> None:
        """Let retried jobs wait for the last jobs of their schedules: no two of a schedule run at once.

        Each of them becomes the last one in its turn, so that the jobs of later fire times wait for it.

        Args:
            job_ids: The jobs that were retried.
            last_jobs: What ``lock_schedules()`` has returned.
            transaction: The transaction.
        """
        if not last_jobs:
            return
        on = transaction.connection
        rows = await self._statements.fetch("jobs_of_schedules", list(job_ids), list(last_jobs), on=on)
        if not rows:
            return
        retried_ids = {row["job_id"] for row in rows}
        former_ids = {job_id for job_id in last_jobs.values() if job_id is not None} - retried_ids
        unfinished_ids = await self.lock_unfinished(former_ids, transaction)
        parents = {key: job_id for key, job_id in last_jobs.items() if job_id in unfinished_ids}
        newest: dict[str, str] = {}
        edges: list[NewEdge] = []
        for row in rows:
            schedule_id, job_id = row["schedule_id"], row["job_id"]
            parent_id = newest.get(schedule_id, parents.get(schedule_id))
            if parent_id is not None:
                edges.append(NewEdge(parent_id, job_id, ENDED))
            newest[schedule_id] = job_id
        if edges:
            await self._statements.fetch("insert_edges", *zip(*edges, strict=True), on=on)
            await self._mark_parents(edges, retried_ids, transaction)
            await self._statements.fetch("block_retried", [edge.child_id for edge in edges], on=on)
        await self._statements.fetch(
            "note_last_jobs", list(newest), list(newest.values()), self._statements.now, on=on
        )

    async def _mark_parents(
        self, edges: Iterable[NewEdge], written_ids: Collection[str], transaction: Transaction
    ) -> None:
        """Mark the parents of new edges, so that their ends look for the jobs that wait.

        In a transaction of the application, only parents are marked here that it has written itself
        (``written_ids``). The commit marks the others, because they must not be locked until then.
        """
        parent_ids = {edge.parent_id for edge in edges}
        if isinstance(transaction, CallersTransaction):
            parent_ids &= {*written_ids}
        if parent_ids:
            await self._statements.fetch("mark_parents", list(parent_ids), on=transaction.connection)

    async def forget_children(self, job_ids: Collection[str], connection: Connection) -> None:
        """Let jobs with new definitions wait no longer for the children of their former definitions.

        The children are jobs that a step of the former definition has started.
        """
        await self._statements.fetch("delete_child_edges", list(job_ids), on=connection)

    async def resolve(
        self,
        children: Collection[str],
        transaction: Transaction,
        cancel_reasons: Mapping[str, str] | None = None,
    ) -> None:
        """Read whether jobs still wait for others, and unblock or cancel those that do not.

        An edge is broken if it leads to a job that has ended or does not exist. First delete the broken ones,
        and pass the results of the jobs that have ended. At the end, apply the consequences of the cancelled
        jobs.

        Args:
            children: The jobs.
            transaction: The transaction.
            cancel_reasons: Why some of these jobs are cancelled, by their ids: the new definition of such a
                job has waited in vain while an attempt of the former one ran. None for no such jobs.
        """
        connection = transaction.connection
        locked_rows = await self._statements.fetch("lock_jobs", list(children), on=connection)
        reasons: dict[str, str] = dict(cancel_reasons or {})
        broken_rows = await self._statements.fetch("take_broken_edges", list(children), on=connection)
        await self._pass_results(_edges(broken_rows), locked_rows, connection)
        for row in broken_rows:
            status = row["status"]
            # A job that waits for the completion of another one waits in vain if that one ended otherwise.
            if row["outcome"] == COMPLETED and status != JobStatus.COMPLETED.value:
                parent = row["parent_id"]
                # There is no status if there is no such job.
                reason = NOT_COMPLETED.format(parent, status) if status else NOT_FOUND.format(parent)
                reasons.setdefault(row["child_id"], reason)
        free_ids = [child for child in children if child not in reasons]
        ended_ids = await self._decide(free_ids, reasons, transaction)
        ended_ids += await self._end_awaited(locked_rows, connection)
        await self._consequences.run(ended_ids, transaction)

    async def release_children(
        self, parents: Sequence[EndedJob], transaction: Transaction
    ) -> Collection[str]:
        """Unblock or cancel the jobs that waited for these parents, which have ended in this transaction.

        First pass the results of the parents to the jobs that read them, and to the jobs whose steps wait for
        them as children. Return the ids of the jobs that ended and have consequences themselves.
        """
        connection = transaction.connection
        statuses = {parent.job_id: parent.status for parent in parents}
        # A child of a step names the waiting job in its own options, even if the table lacks the edge.
        marked_edges = [edge for parent in parents if (edge := _edge_of_child(parent)) is not None]
        jobs_of_steps = [edge.child_id for edge in marked_edges]
        locked_rows = await self._statements.fetch(
            "lock_children", list(statuses), jobs_of_steps, on=connection
        )
        cancel_reasons: dict[str, str] = {}
        children: set[str] = set()
        rows = await self._statements.fetch("take_edges", list(statuses), on=connection)
        # A transaction that committed while lock_children() waited may have added edges to jobs that it did
        # not see. Only now are these all known, because edges that are committed later are not taken.
        if unlocked_ids := sorted({row["child_id"] for row in rows} - {row["job_id"] for row in locked_rows}):
            locked_rows += await self._statements.fetch("lock_jobs", unlocked_ids, on=connection)
        # A dict, as a set that keeps the order.
        edges = dict.fromkeys(_edges(rows))
        # The edge of an older release has no definition, but it connects the same two jobs. So the edge that
        # the options state is only added if that one is not there.
        edges |= dict.fromkeys(edge for edge in marked_edges if edge._replace(definition=None) not in edges)
        await self._pass_results(edges, locked_rows, connection)
        for row in rows:
            parent_id, child_id = row["parent_id"], row["child_id"]
            status = statuses[parent_id]
            children.add(child_id)
            if row["outcome"] == COMPLETED and status is not JobStatus.COMPLETED:
                cancel_reasons.setdefault(child_id, NOT_COMPLETED.format(parent_id, status.value))
        ended_ids = await self._decide(sorted(children - cancel_reasons.keys()), cancel_reasons, transaction)
        return ended_ids + await self._end_awaited(locked_rows, connection)

    async def _pass_results(
        self, edges: Iterable[Edge], locked_rows: Sequence[Record], connection: Connection
    ) -> None:
        """Pass the results of jobs that have ended along their edges, and end the steps that waited."""
        prefixes = _prefixes(locked_rows)
        await self._passed_results.copy(edges, prefixes, connection)
        # A job whose new definition waits for the end of the running attempt has another prefix.
        if readers := [job_id for job_id, prefix in prefixes.items() if prefix == PASSED]:
            await self._end_child_steps(readers, connection)

    async def _end_child_steps(self, job_ids: Sequence[str], connection: Connection) -> None:
        """End the steps of jobs whose children have all ended, and let the jobs continue."""
        now = self._statements.now
        due = await self._statements.value("end_child_steps", job_ids, now, on=connection)
        if due is not None:
            await self._notify(due, connection)

    async def _notify(self, due: datetime, connection: Connection) -> None:
        """Let the commit notify workers of jobs, the first of which is due at this time."""
        await self._statements.fetch("notify", [due_message("", due)], on=connection)

    async def repair(self, position: ScanPosition, *, blocks: int, jobs: int) -> ScanPosition:
        """Read a part of the edges and of the jobs that wait; correct what does not agree with other rows.

        A job has to wait exactly as long as it has an edge to a job that has not ended.

        Args:
            position: Where to continue.
            blocks: The number of blocks of edges to read.
            jobs: The number of jobs to read.

        Returns:
            Where the next scan continues.
        """
        table = qualify("{schema}scheduler_after", await self._statements.schema())
        size = await self._statements.value("table_blocks_of_edges", table)
        end = position.block + blocks
        # The parameters are places of rows. A place is the number of a block, and the number of a row in it.
        broken = await self._statements.fetch("broken_edges", (position.block, 0), (end, 0))
        page = await self._statements.fetch("blocked_jobs", *position.job, jobs)
        # Nothing would unblock the children of parents that have ended, and blocked jobs without an edge.
        suspects = {row["child_id"] for row in broken}
        suspects |= {row["job_id"] for row in page if not row["has_edge"]}
        if suspects:
            # Jobs that are locked are left to the next scan.
            await self._statements.run_divided(suspects, self.resolve)
        # A page that is not full is the last one, so the next scan begins at the first job again.
        next_job = ScanPosition().job
        if len(page) == jobs:
            last_row = page[-1]
            next_job = (last_row["priority"], last_row["due"], last_row["job_id"])
        next_block = end if end < size else 0
        return ScanPosition(next_block, next_job)

    async def _end_awaited(self, locked_rows: Sequence[Record], connection: Connection) -> list[str]:
        """Let the consequences of jobs follow that were cancelled while they waited; return their ids.

        If a job of a schedule is cancelled while it waits for the previous job of the schedule, its
        consequences are delayed until that one has ended.
        """
        awaited = [row["job_id"] for row in locked_rows if row["is_awaited"]]
        rows = await self._statements.fetch("end_awaited", awaited, on=connection) if awaited else []
        return [row["job_id"] for row in rows]

    async def _decide(
        self, free_ids: Sequence[str], cancel_reasons: Mapping[str, str], transaction: Transaction
    ) -> list[str]:
        """Unblock the jobs that wait for no other job any more, and cancel those that wait in vain.

        A job waits in vain if it needs the completion of a job that has ended otherwise. The jobs must be
        locked by an earlier statement.

        Args:
            free_ids: The jobs that may wait for no other job any more: an edge of theirs was deleted, or they
                have none. Those that still have an edge are left as they are.
            cancel_reasons: The reasons why jobs are cancelled, by their ids.
            transaction: The transaction.

        Returns:
            The cancelled jobs that have consequences.
        """
        connection, events = transaction
        ended_ids: list[str] = []
        now = self._statements.now
        unblocked_rows: list[Record] = []
        if free_ids:
            unblocked_rows = await self._statements.fetch("unblock_jobs", free_ids, now, on=connection)
        if unblocked_rows:
            await self._notify(min(row["due"] for row in unblocked_rows), connection)
        if cancel_reasons:
            ids, reasons = list(cancel_reasons), list(cancel_reasons.values())
            await self._statements.fetch("delete_edges", ids, on=connection)
            for row in await self._statements.fetch("cancel_blocked", ids, reasons, now, on=connection):
                # A job that runs ends later: its new definition is cancelled at the end of the attempt.
                if row["ended"]:
                    event_args = row["job_id"], row["job_name"], row["attempt"]
                    events.append(JobCancelled(*event_args, reason=cancel_reasons[row["job_id"]]))
                if row["has_consequences"]:
                    ended_ids.append(row["job_id"])
        return ended_ids


def _edges(rows: Sequence[Record]) -> list[Edge]:
    """Return the edges of rows of ``scheduler_after``, by which one job waits for another."""
    return [Edge(row["parent_id"], row["child_id"], row["definition"]) for row in rows]


def _edge_of_child(job: EndedJob) -> Edge | None:
    """Return the edge by which the job of a step waits for the job that the step has started, its child.

    The options of the child state it. The child is the parent of the edge, since the other job waits for it.
    None for a job that no step has started. The table of edges may lack the edge, if the job of the step or
    the child itself was retried meanwhile.
    """
    mark = job.options.get(CHILD_OF)
    if not isinstance(mark, dict):
        return None
    waiting_id, definition = mark.get("job"), mark.get("definition")
    if not isinstance(waiting_id, str) or not isinstance(definition, str):
        return None
    return Edge(parent_id=job.job_id, child_id=waiting_id, definition=definition)


def _prefixes(locked_rows: Sequence[Record]) -> dict[str, str]:
    """Return the prefixes of the names of passed results, by the ids of the jobs that read them.

    A job that reads no results has none.
    """
    return {row["job_id"]: row["passed_to"] for row in locked_rows if row["passed_to"] is not None}


def check_kept(readers: Sequence[ExtendedJob], keeping: Collection[str]) -> None:
    """Raise ValueError if a job is to read the result of a parent that is not among ``keeping``."""
    for job in readers:
        for parent in job.after:
            if parent not in keeping:
                raise ValueError(KEEPS_NONE.format(parent, job.job_id))
