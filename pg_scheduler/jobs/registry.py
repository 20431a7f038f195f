"""The registry maps the name of a job to its function.

A function's name is ``module.qualname``, so functions of the same name in different modules never collide.
``@job`` fills a catalogue that every Scheduler of the process reads; ``scheduler.register()`` and
``scheduler.schedule()`` register with one Scheduler. A name in a row never causes an import.

A *loose* name resolves while exactly one registered function has it. Loose are the bare ``__name__``, which
pg-scheduler 0.2.x wrote, and the default job name of a periodic function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from types import FunctionType
from typing import Final, NamedTuple
from weakref import WeakSet

from pg_scheduler.errors import NameConflictError
from pg_scheduler.jobs.executors import default_executor
from pg_scheduler.jobs.model import JobFunction, stand_in_of
from pg_scheduler.jobs.naming import (
    FUNCTIONS,
    check_aliases,
    check_function,
    check_name,
    former_job_name,
    qualified_name,
)
from pg_scheduler.jobs.task import NO_OPTIONS, Task, TaskOptions

COMPARED_TYPES: Final = (str, bytes, int, float)
"""Types whose captured and default values are compared by value."""


class TaskLists:
    """Lists of the names and tasks of a registry. Each is derived at its first use.

    A change of the registry replaces the whole object. If a thread is deriving a list at that moment, it
    stores the list in the old object, which is not read any more.
    """

    def __init__(self, registry: TaskRegistry) -> None:
        self._registry = registry

    @cached_property
    def names(self) -> list[str]:
        """Every name that resolves."""
        return sorted(name for name in self._registry.every_name() if self._registry.resolve(name))

    @cached_property
    def explicit(self) -> dict[str, frozenset[str]]:
        """The explicit names of each task, its aliases among them, by its identity."""
        return {task.identity: frozenset(self._registry.names_of(task)) for task in self._registry.tasks()}

    @cached_property
    def limited(self) -> dict[str, Task]:
        """The tasks with limits, by every name that resolves."""
        return self._tasks_where(lambda task: bool(task.limits))

    @cached_property
    def shared(self) -> dict[str, Task]:
        """The tasks with a share, by every name that resolves."""
        return self._tasks_where(lambda task: task.share is not None)

    @cached_property
    def sequenced(self) -> dict[str, Task]:
        """The tasks with a sequence, by every name that resolves."""
        return self._tasks_where(lambda task: task.sequence is not None)

    def _tasks_where(self, condition: Callable[[Task], bool]) -> dict[str, Task]:
        """Return the tasks that fulfill a condition, by every name that resolves."""
        pairs = ((name, self._registry.resolve(name)) for name in self.names)
        return {name: task for name, task in pairs if task is not None and condition(task)}


class Registrations(NamedTuple):
    """What a registry has at a moment."""

    exact: dict[str, Task]
    loose: dict[str, dict[str, Task]]
    declared: set[str]


class TaskRegistry:
    """Maps the names of jobs to tasks, which are functions with options.

    A registry may have a parent. It finds the tasks of its parent as well as its own.
    """

    def __init__(self, parent: TaskRegistry | None = None) -> None:
        self._parent = parent
        # The tasks by their exact names: each belongs to one task, such as ``module.qualname`` or an alias.
        self._exact: dict[str, Task] = {}
        # By loose name, the tasks that have it, by their identity. Several tasks may have one, for
        # example the bare ``__name__``. It finds a task only while a single one has it.
        self._loose: dict[str, dict[str, Task]] = {}
        # The names that code has declared by name= and aliases=. The others follow from functions.
        self._declared: set[str] = set()
        self.adopted: Final[dict[JobFunction, Task]] = {}
        """The tasks of plain and coroutine functions without captured values, as ``adopt()`` has found them.

        Callers look here first. For closures and methods they call ``adopt()``, which compares the captured
        values each time.
        """
        self.lists = TaskLists(self)
        """Replaced when a name is added, or limits, a share, a sequence or the executor of a task change."""
        self.children: Final[WeakSet[TaskRegistry]] = WeakSet()
        """The registries whose parent this is."""
        if parent is not None:
            parent.children.add(self)

    def register(
        self,
        func: JobFunction,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        loose: Iterable[str] = (),
        options: TaskOptions = NO_OPTIONS,
    ) -> Task:
        """Register a function. Registering it again adds names and changes defaults.

        Args:
            func: The coroutine function or plain function.
            name: The name of its jobs; ``module.qualname`` when None.
            aliases: Former names whose pending jobs run too.
            loose: Names that resolve only while no other function has them.
            options: The defaults of its jobs.

        Raises:
            TypeError: ``func`` is not a function, or the executor cannot run it.
            NameConflictError: Another function has one of the explicit names, or the same ``module.qualname``
                with another name.
        """
        check_function(func, allow_plain=True)
        existing_task = self.task_of(func)
        # The task is found by ``module.qualname``, so its function may be another object than ``func``. If
        # the name stays, ``func`` replaces that function, as after a reload. If ``func`` gets another name,
        # it has to do the same as that function, because both would be one task.
        if existing_task and (name or qualified_name(func)) != existing_task.name:
            _check_is_same(func, existing_task)
            if name is not None and name not in self.names_of(existing_task):
                _check_is_no_twin(func, existing_task)
        # Registering the same function again without new values changes nothing.
        gives_values = name is not None or options != NO_OPTIONS or bool(aliases) or bool(loose)
        if existing_task and not gives_values and existing_task.func is func:
            return existing_task
        previous_task = existing_task or Task(func, qualified_name(func), executor=default_executor(func))
        task_name = previous_task.name if name is None else check_name(name)
        task = previous_task.changed(func, task_name, options)
        old_names = check_aliases(aliases)
        declared_names = old_names if name is None else [task.name, *old_names]
        exact_names = [task.name, qualified_name(func), *declared_names]
        for exact_name in exact_names:
            self._check_is_free(exact_name, task)
        # The other names of the existing task have to resolve to the new task, too.
        if existing_task:
            exact_names += [exact_name for exact_name, owner in self._exact.items() if owner is existing_task]
        # Its loose names have to find the new task, too.
        loose_names = [loose_name for loose_name, bearers in self._loose.items() if task.identity in bearers]
        # No name is ever removed, so the sizes show whether any was added.
        size = self._size()
        self._declared.update(declared_names)
        for exact_name in exact_names:
            self._exact[exact_name] = task
        for loose_name in (func.__name__, *loose, *loose_names):
            self._loose.setdefault(loose_name, {})[task.identity] = task
        # The lists depend on names, executors, limits, shares and sequences only.
        has_other_executor = existing_task is not None and existing_task.executor != task.executor
        has_other_limits = (task.limits, task.share, task.sequence) != (
            previous_task.limits,
            previous_task.share,
            previous_task.sequence,
        )
        self.forget(lists=self._size() != size or has_other_executor or has_other_limits)
        return task

    def adopt(self, func: JobFunction) -> Task:
        """Return the task of a function, or of an object that stands for one; register it if it is new.

        Raises:
            TypeError: It is not a coroutine function, nor a plain one that was declared.
            NameConflictError: The registered function of this name is a method of another object, or has
                other captured values; or it has other code, and this function has not replaced it in its
                module. A row stores the name only, so the jobs of one of them would run the other one.
        """
        # A task of Django, for example, stands for a registered function.
        if not isinstance(func, FUNCTIONS) and (stand_in := stand_in_of(func)) is not None:
            func = stand_in.func
        # A plain function is accepted only if it was declared.
        if not self.declares(func):
            check_function(func)
        existing_task = self.task_of(func)
        # A function that was defined again, as in a notebook, replaces the earlier one: its module has it
        # under this name now. Any other function of this name must be the same as the registered one.
        if existing_task:
            may_replace = captures_same(existing_task.func, func) and _is_current(func)
            if not may_replace:
                _check_is_same(func, existing_task)
        task = self.register(func)
        # The captured values of closures and methods have to be compared at each call.
        if isinstance(func, FunctionType) and func.__closure__ is None:
            self.adopted[func] = task
        return task

    def forget(self, *, lists: bool) -> None:
        """Forget what was derived before a change, here and in registries whose parent this is.

        ``lists`` is whether the change concerns the lists too, and not only ``adopted``.
        """
        self.adopted.clear()
        if lists:
            self.lists = TaskLists(self)
        for child in list(self.children):
            child.forget(lists=lists)

    def registrations(self) -> Registrations:
        """Return a copy of what is registered here, for tests."""
        loose_names = {name: dict(bearers) for name, bearers in self._loose.items()}
        return Registrations(dict(self._exact), loose_names, set(self._declared))

    def restore(
        self, registrations: Registrations, includes: Callable[[Task], bool] = lambda _: True
    ) -> None:
        """Replace what is registered here by the tasks of a copy that fulfill a condition, for tests."""
        self._exact = {name: task for name, task in registrations.exact.items() if includes(task)}
        self._loose = {
            name: {identity: task for identity, task in bearers.items() if includes(task)}
            for name, bearers in registrations.loose.items()
        }
        self._declared = registrations.declared & self._exact.keys()
        self.forget(lists=True)

    def resolve(self, name: str) -> Task | None:
        """Return the task of a name, or None if the name is unknown or ambiguous."""
        if task := self.find_exact(name):
            return task
        # A loose name resolves while a single task has it.
        bearers = self.bearers(name)
        return next(iter(bearers.values())) if len(bearers) == 1 else None

    def declares(self, func: object) -> bool:
        """Return whether the object is a registered function, as a plain one must be to be scheduled."""
        return isinstance(func, FUNCTIONS) and self.task_of(func) is not None

    def task_of(self, func: JobFunction) -> Task | None:
        """Return the task of a function, or None if it is not registered."""
        return self.find_exact(qualified_name(func))

    def _size(self) -> tuple[int, int]:
        """Return the numbers of exact names and of loose ones, a loose name once for each of its tasks."""
        return len(self._exact), sum(map(len, self._loose.values()))

    def every_name(self) -> set[str]:
        """Return every registered name, including ambiguous ones."""
        return {*self._exact, *self._loose, *(self._parent.every_name() if self._parent else ())}

    def find_exact(self, name: str) -> Task | None:
        """Return the only task that can have this name or alias; None if there is none.

        Loose names, which several tasks may have, are not looked up.
        """
        return self._exact.get(name) or (self._parent.find_exact(name) if self._parent else None)

    def tasks(self) -> list[Task]:
        """Return every task once, although several names may lead to it."""
        inherited = self._parent.tasks() if self._parent else []
        # A task of this registry replaces that of the parent with the same function.
        tasks_by_identity = {task.identity: task for task in (*inherited, *self._exact.values())}
        return list(tasks_by_identity.values())

    def names_of(self, task: Task) -> set[str]:
        """Return the explicit names of a task, its aliases among them."""
        inherited = self._parent.names_of(task) if self._parent else set()
        return inherited | {name for name, owner in self._exact.items() if owner.identity == task.identity}

    def declared_names_of(self, task: Task) -> set[str]:
        """Return the name of a task, and the other names that code has declared for it."""
        return {name for name in self.names_of(task) if self.is_declared(name, task)}

    def is_declared(self, name: str, task: Task) -> bool:
        """Return whether a name that resolves to a task is its name, or was declared for it.

        ``module.qualname`` of a function that has another name, and the bare ``__name__``, are not declared:
        the function of another service may have the same.
        """
        return (
            name == task.name
            or name in self._declared
            or (self._parent is not None and self._parent.is_declared(name, task))
        )

    def stopped_by(self, names: Iterable[str], exact_names: Iterable[str]) -> list[Task]:
        """Return the registered tasks that pauses stop: those by ``exact_names``, then those by ``names``.

        Args:
            names: The names of the pauses. A person may have given them, so every name that resolves counts.
            exact_names: The exact names of the paused tasks. They count where the code declares them: a
                function of another service that merely has the same default name or bare name, but another
                name as a task, is not stopped.
        """
        stopped_tasks: list[Task] = []
        for name in exact_names:
            task = self.resolve(name)
            if task and self.is_declared(name, task):
                stopped_tasks.append(task)
        for name in names:
            task = self.resolve(name)
            if task:
                stopped_tasks.append(task)
        return stopped_tasks

    def is_automatic(self, name: str, task: Task) -> bool:
        """Return whether a name of a task follows from its function, so that no code has chosen it."""
        return name != task.name and (name == task.identity or self.find_exact(name) is None)

    def names_like(self, name: str) -> list[str]:
        """Return a name, followed by the sorted other names of its task.

        For a loose name that several tasks have, the names of all these tasks follow.
        """
        task = self.resolve(name)
        tasks = self.bearers(name).values() if task is None else [task]
        names = set[str]()
        for bearer in tasks:
            names.update((bearer.name, *self.names_of(bearer), *self._loose_of(bearer)))
        return [name, *sorted(names - {name})]

    def _loose_of(self, task: Task) -> Iterator[str]:
        """Yield the loose names by which this task is found.

        A loose name, such as ``__name__``, finds a task while no other task has it.
        """
        for name in {former_job_name(task.func), *self.loose_names()}:
            bearer = self.resolve(name)
            if bearer is not None and bearer.identity == task.identity:
                yield name

    def loose_names(self) -> set[str]:
        """Return every loose name, including ambiguous ones."""
        return {*self._loose, *(self._parent.loose_names() if self._parent else ())}

    def bearers(self, name: str) -> dict[str, Task]:
        """Return the tasks with this loose name, by identity."""
        inherited = self._parent.bearers(name) if self._parent else {}
        return {**inherited, **self._loose.get(name, {})}

    def _check_is_free(self, name: str, task: Task) -> None:
        """Raise NameConflictError if another task has this exact name."""
        other = self.find_exact(name)
        if other and other.identity != task.identity:
            raise NameConflictError(
                f"name {name!r} is already registered for {other.identity}; "
                f"give {task.identity} another name or alias"
            )


catalogue = TaskRegistry()
"""The functions decorated with @job or @periodic, which every Scheduler of the process resolves."""


def _check_is_same(func: JobFunction, task: Task) -> None:
    """Check that a function does the same as the function of a task that has the same ``module.qualname``.

    Raises:
        NameConflictError: It does not, so jobs of one of them would run the other one.
    """
    if not captures_same(task.func, func):
        difference = "as a method of another object or with other captured or default values"
    elif _code_of(task.func) != _code_of(func):
        difference = "with other code"
    else:
        return
    raise NameConflictError(
        f"{qualified_name(func)} is already registered as {task.name!r}, {difference}, and a row stores the "
        "name only; pass what differs in args=, or set another __qualname__ before registering the function"
    )


def _check_is_no_twin(func: JobFunction, task: Task) -> None:
    """Check that a function and that of a task are not two functions of one ``def``, as in a loop.

    Two such functions have the same code object. A function whose module was imported again has equal code,
    but another code object than before.

    Raises:
        NameConflictError: They are, so the name and options of this function would replace those of the task.
    """
    code = _code_of(func)
    if func != task.func and code is not None and code is _code_of(task.func):
        raise NameConflictError(
            f"{qualified_name(func)} is already registered as {task.name!r}, for another function of the "
            "same def, so both would be one task; set another __qualname__ before registering the function"
        )


def _code_of(func: JobFunction) -> object:
    """Return the code of a function, equal if its module was imported again without a change."""
    return getattr(func, "__code__", None)


def _is_current(func: JobFunction) -> bool:
    """Return whether a module has this function, and no other one, under the name of the function.

    The function that a module had before a change, as in a notebook, is not current any more.
    """
    value: object = sys.modules.get(func.__module__)
    for name in func.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is func


def captures_same(function: JobFunction, other: JobFunction) -> bool:
    """Return whether two functions have the same object, captured values and defaults of parameters."""
    return _have_same_values(_captured(function), _captured(other))


def _captured(func: JobFunction) -> list[object]:
    """Return the object of a method, the defaults of the parameters, and the captured values of a closure."""
    keyword_defaults = getattr(func, "__kwdefaults__", None) or {}
    values = [getattr(func, "__self__", None), *(getattr(func, "__defaults__", None) or ())]
    values += [value for _, value in sorted(keyword_defaults.items())]
    for cell in getattr(func, "__closure__", None) or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(None)
    return values


def _have_same_values(objects: list[object], other_objects: list[object]) -> bool:
    """Return whether two lists have the same objects, or plain values of the same type and value.

    Types count, because True equals 1, but functions that have captured True and 1 behave differently.
    """
    if len(objects) != len(other_objects):
        return False
    for value, other_value in zip(objects, other_objects, strict=True):
        if value is other_value:
            continue
        are_plain = isinstance(value, COMPARED_TYPES) and type(value) is type(other_value)
        are_equal = are_plain and value == other_value
        if not are_equal:
            return False
    return True
