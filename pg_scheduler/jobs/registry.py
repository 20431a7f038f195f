"""The registry that maps a job's name to its function.

A function's name is ``module.qualname``, so functions of the same name in different modules never collide.
``@job`` at module level fills one catalogue that every Scheduler reads; ``scheduler.register()`` and
``scheduler.schedule()`` add to that Scheduler only. A name in a row never causes an import.

A *loose* name (the bare ``__name__`` as pg-scheduler 0.2.x wrote it, or the default job name of a
periodic function) resolves while exactly one registered function has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from types import FunctionType
from typing import Final

from pg_scheduler.errors import NameConflictError
from pg_scheduler.jobs.model import DEFAULT_TIMEOUT, UNSET, JobFunction, Unset
from pg_scheduler.jobs.naming import _check_aliases, check_function, check_name, qualified_name
from pg_scheduler.jobs.validation import check_grace, check_timeout

__all__ = ["Task", "TaskRegistry", "catalogue"]

PLAIN: Final = (str, bytes, int, float)


@dataclass(frozen=True, slots=True)
class Task:
    """A registered function with the defaults of its jobs."""

    func: JobFunction
    name: str
    timeout: float | None = DEFAULT_TIMEOUT.total_seconds()
    misfire_grace_time: int | Unset | None = UNSET

    @property
    def identity(self) -> str:
        """What makes two functions the same one, across reloads and processes."""
        return qualified_name(self.func)


class TaskRegistry:
    """Names and the functions they mean.

    Args:
        parent: Another registry whose names count here too.
    """

    def __init__(self, parent: TaskRegistry | None = None) -> None:
        self._parent = parent
        self._exact: dict[str, Task] = {}
        self._loose: dict[str, dict[str, Task]] = {}
        self._adopted: dict[JobFunction, Task] = {}
        self._version = 0
        self._names: tuple[int, list[str]] = (-1, [])

    def register(
        self,
        func: JobFunction,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        loose: Iterable[str] = (),
        timeout: float | timedelta | Unset | None = UNSET,
        misfire_grace_time: int | Unset | None = UNSET,
    ) -> Task:
        """Make a function known; doing it again changes nothing.

        Args:
            func: The coroutine function.
            name: The name its jobs get; ``module.qualname`` when None.
            aliases: Old names whose rows shall run too.
            loose: Names that count only while no other function bears them.
            timeout: Seconds a try may take unless the call says otherwise; an hour when unset.
            misfire_grace_time: Grace unless the call says otherwise; the scheduler's when unset.

        Raises:
            TypeError: ``func`` is no coroutine function.
            NameConflictError: Another function has one of the explicit names.
        """
        check_function(func)
        known = self.task_of(func)
        plain = (
            name is None and timeout is UNSET and misfire_grace_time is UNSET and not aliases and not loose
        )
        if known and plain and known.func is func:
            return known
        before = known or Task(func, qualified_name(func))
        task = Task(
            func,
            before.name if name is None else check_name(name),
            before.timeout if isinstance(timeout, Unset) else check_timeout(timeout),
            before.misfire_grace_time
            if isinstance(misfire_grace_time, Unset)
            else check_grace(misfire_grace_time),
        )
        exact = [task.name, qualified_name(func), *_check_aliases(aliases)]
        for each in exact:
            self._refuse_if_taken(each, task)
        if known:  # its older aliases mean the new one from now on
            exact += [each for each, old in self._exact.items() if old is known]
        self._adopted.clear()
        size = self._size()
        for each in exact:
            self._exact[each] = task
        for each in (func.__name__, *loose, *(k for k, v in self._loose.items() if task.identity in v)):
            self._loose.setdefault(each, {})[task.identity] = task
        self._version += self._size() != size
        return task

    def adopt(self, func: JobFunction) -> Task:
        """Make a function known because a job of it is scheduled.

        Raises:
            TypeError: It is no coroutine function.
            NameConflictError: It is the same code as a function known by that name, with other values
                captured: a row could not tell them apart.
        """
        if isinstance(func, FunctionType) and (task := self._adopted.get(func)):
            return task  # for nearly every call: a function of a module, known by now
        check_function(func)
        known = self.task_of(func)
        if known and not _same(_captured(known.func), _captured(func)):
            raise NameConflictError(
                f"{qualified_name(func)} is known already as a method of another object, or with other "
                "values captured from around it. A row keeps the name only: pass what differs in args=."
            )
        task = self.register(func)
        if isinstance(func, FunctionType) and func.__closure__ is None:
            self._adopted[func] = task
        return task

    def resolve(self, name: str) -> Task | None:
        """The task of a name, or None if it is unknown here or loose and ambiguous."""
        if task := self.find_exact(name):
            return task
        bearers = self.bearers(name)
        return next(iter(bearers.values())) if len(bearers) == 1 else None

    def task_of(self, func: JobFunction) -> Task | None:
        """The task a function was registered as."""
        return self.find_exact(qualified_name(func))

    @property
    def version(self) -> int:
        """Grows whenever a name is added."""
        return self._version + (self._parent.version if self._parent else 0)

    def names(self) -> list[str]:
        """Every name that can be resolved. The list is shared: do not change it."""
        version, names = self._names
        if version != self.version:
            names = sorted(name for name in self.every_name() if self.resolve(name))
            self._names = (self.version, names)
        return names

    def _size(self) -> tuple[int, int]:
        return len(self._exact), sum(map(len, self._loose.values()))

    def every_name(self) -> set[str]:
        """Every name that was ever given, ambiguous ones included."""
        return {*self._exact, *self._loose, *(self._parent.every_name() if self._parent else ())}

    def find_exact(self, name: str) -> Task | None:
        """The task that bears exactly this name, as its own or as an alias."""
        return self._exact.get(name) or (self._parent.find_exact(name) if self._parent else None)

    def bearers(self, name: str) -> dict[str, Task]:
        """Every task that bears this loose name, by identity."""
        inherited = self._parent.bearers(name) if self._parent else {}
        return {**inherited, **self._loose.get(name, {})}

    def _refuse_if_taken(self, name: str, task: Task) -> None:
        other = self.find_exact(name)
        if other and other.identity != task.identity:
            raise NameConflictError(
                f"the name {name!r} means {other.identity} already and cannot mean {task.identity} too. "
                "Give one of them another name=."
            )


catalogue = TaskRegistry()
"""Functions decorated with @job or @periodic: known to every Scheduler of the process."""


def _captured(func: JobFunction) -> list[object]:
    """What a function brings along besides its code: its object and the values of its closure."""
    values = [getattr(func, "__self__", None)]
    for cell in getattr(func, "__closure__", None) or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(None)
    return values


def _same(some: list[object], others: list[object]) -> bool:
    """Whether they are the same objects; plain values are the same when they are equal."""
    return len(some) == len(others) and all(
        one is other or (isinstance(one, PLAIN) and one == other)
        for one, other in zip(some, others, strict=True)
    )
