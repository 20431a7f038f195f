"""Select the jobs that a worker claims, by the names in their rows.

The claim selects by names in any case, so routing costs it nothing. Jobs that a worker leaves out stay
pending for other workers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from operator import itemgetter

from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.executors import ASYNC
from pg_scheduler.jobs.naming import most_similar
from pg_scheduler.jobs.registry import TaskRegistry


class Routing:
    """The names that a worker claims.

    Attributes:
        unexpiring_names: The names whose jobs do not expire, because a pause suspends it.
    """

    def __init__(
        self,
        tasks: TaskRegistry,
        executors: Collection[str],
        only: Sequence[str] = (),
        skip: Sequence[str] = (),
        *,
        worker_id: str,
    ) -> None:
        self._tasks = tasks
        self._executors = {ASYNC, *executors}
        self._only = only
        self._skip = skip
        self._worker_id = worker_id
        self.unexpiring_names: frozenset[str] = frozenset()
        # The names of pauses, and the exact names of their tasks.
        self._paused: frozenset[str] = frozenset()
        self._paused_exact_names: frozenset[str] = frozenset()
        self._is_draining = False
        # Each result is computed again when the registry has another list of names than at the last time.
        self._names: list[str] = []
        self._source_of_names: list[str] | None = None
        self._claimable: list[str] = []
        self._source_of_claimable: list[str] | None = None
        self._missing: dict[str, str] = {}
        self._source_of_missing: list[str] | None = None
        self._warned: set[tuple[str, str]] = set()

    @property
    def is_draining(self) -> bool:
        """Whether all jobs are left out, because that was requested of the worker."""
        return self._is_draining

    def names(self) -> list[str]:
        """Return the names of the jobs that this worker claims. The list is the same object until it changes.

        Callers recognize a change by the object, so an unchanged list is not made again.
        """
        registered = self._tasks.lists.names
        if registered is not self._source_of_names:
            self._source_of_names = registered
            paused = {
                task.identity for task in self._tasks.stopped_by(self._paused, self._paused_exact_names)
            }
            # Jobs under an exact name of a paused task wait, also if a function of another task has it here.
            stopped_names = self._paused | self._paused_exact_names
            names = [
                name
                for name in registered
                if not self._is_draining and self._is_claimed(name, paused) and name not in stopped_names
            ]
            # A worker that claims all registered names uses the list of the registry itself.
            self._names = registered if len(names) == len(registered) else names
            self._warn_of_executors()
        return self._names

    def claimable(self) -> list[str]:
        """Return the names to claim while nothing is paused. The list is the same object until it changes."""
        registered = self._tasks.lists.names
        if registered is not self._source_of_claimable:
            self._source_of_claimable = registered
            self._claimable = [name for name in registered if self._is_claimed(name, ())]
        return self._claimable

    def missing_executors(self) -> Mapping[str, str]:
        """Return which executors are missing here, by the names of the functions that run in them."""
        registered = self._tasks.lists.names
        if registered is not self._source_of_missing:
            self._source_of_missing = registered
            executors = {name: self._executor_of(name) for name in registered if self._is_selected(name)}
            self._missing = {
                name: executor for name, executor in executors.items() if executor not in self._executors
            }
        return self._missing

    def drain(self, *, is_draining: bool) -> bool:
        """Leave out all jobs while the worker is draining; return whether it just stopped draining."""
        was_draining, self._is_draining = self._is_draining, is_draining
        if was_draining != is_draining:
            self._source_of_names = None  # the next call of names() returns another list
        return was_draining and not is_draining

    def pause(self, names: Collection[str], exact_names: Collection[str] = ()) -> bool:
        """Leave out the jobs of these tasks, under all of their names.

        Return whether a task that was paused before is not among these, and so is resumed.

        Args:
            names: The names of the pauses.
            exact_names: The exact names of the paused tasks. This worker may know the task under one of them.
        """
        previous, previous_exact = self._paused, self._paused_exact_names
        self._paused, self._paused_exact_names = frozenset(names), frozenset(exact_names)
        if (previous, previous_exact) != (self._paused, self._paused_exact_names):
            self._source_of_names = None  # the next call of names() returns another list
        return bool(previous - self._paused or previous_exact - self._paused_exact_names)

    def warn_of_patterns(self) -> None:
        """Log patterns of ``only`` and ``skip`` that match no function, as a misspelled one does."""
        # Names that no code has chosen are not compared with patterns.
        names = [name for name in self._tasks.lists.names if self._routed_name(name) == name]
        for option, patterns in (("only", self._only), ("skip", self._skip)):
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for name in names):
                    near = most_similar(pattern, names)
                    hint = "see scheduler.register()" if near is None else f"did you mean {near!r}?"
                    message = "%s=%r matches no registered function; %s"
                    logger.warning(
                        message, option, pattern, hint, extra=record_fields(worker_id=self._worker_id)
                    )

    def _warn_of_executors(self) -> None:
        """Log which functions have no executor here, once; functions may be registered at any time."""
        # Pairs of an executor and a function. They are sorted, so that groupby() finds each executor once.
        missing = {(executor, self._name_of(name)) for name, executor in self.missing_executors().items()}
        for executor, executor_functions in groupby(sorted(missing - self._warned), key=itemgetter(0)):
            logger.warning(
                "executor %r is missing here, so jobs of %s are left to other workers; pass executors=",
                executor,
                ", ".join(name for _, name in executor_functions),
                extra=record_fields(worker_id=self._worker_id),
            )
        self._warned = missing

    def _is_claimed(self, name: str, paused: Collection[str]) -> bool:
        """Return whether jobs of a name are claimed here while the tasks of these identities are paused."""
        task = self._tasks.resolve(name)
        return (
            (task is None or task.identity not in paused)
            and self._is_selected(name)
            and self._executor_of(name) in self._executors
        )

    def _routed_name(self, name: str) -> str:
        """Return the name that is compared with the patterns of ``only`` and ``skip`` for jobs of a name.

        Names that no code has chosen, such as ``module.qualname``, belong to the name of the task. Otherwise
        a worker that skips the task would claim these names, and people would see them as tasks.
        """
        task = self._tasks.resolve(name)
        return name if task is None or not self._tasks.is_automatic(name, task) else task.name

    def _is_selected(self, name: str) -> bool:
        """Return whether the patterns of ``only=`` and ``skip=`` leave a name to this worker."""
        name = self._routed_name(name)
        if any(fnmatchcase(name, pattern) for pattern in self._skip):
            return False
        return not self._only or any(fnmatchcase(name, pattern) for pattern in self._only)

    def _executor_of(self, name: str) -> str:
        """Return the name of the executor in which jobs of a name run: the event loop for unknown names."""
        task = self._tasks.resolve(name)
        return ASYNC if task is None else task.executor

    def _name_of(self, name: str) -> str:
        """Return the main name of the task that has this name; the name itself if there is no such task."""
        task = self._tasks.resolve(name)
        return name if task is None else task.name
