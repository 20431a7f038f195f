"""Find out whether all code of an attempt waits for its steps, and for nothing else.

An attempt is suspended only then, so code that does anything else is never cancelled. Two questions are
answered from what Python knows about its tasks and threads, and nothing is counted or guessed.

Which tasks belong to an attempt? The tasks whose context has it: a task inherits the context of the code that
creates it. What does a task wait for? For a future: the future of a step, another task, or several of them,
by ``gather()``, ``wait()`` or the end of a TaskGroup. Any other future counts as work in progress, and so
does a timer around the wait, such as that of ``asyncio.timeout()``, which ends it at a time that no later
attempt knows. The code of the task reaches the timer by the context managers of its blocks, and by what those
hold.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import thread as pool_threads
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType, MethodType
from typing import Any, Final, Protocol, TypeAlias

from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.context import current
from pg_scheduler.jobs.rows import Claim

Task = asyncio.Task[Any]

OWN_TASK_PREFIX: Final = "pg_scheduler "
"""The names of tasks of the library, which code of a job may begin, and which are not its work."""

PASS_SHARE: Final = 0.05
"""The part of the time of an event loop that is spent on looking at its tasks."""

TIMER_ATTRIBUTES: Final = ("_timeout_handler", "_timeout_handle")
"""Where ``asyncio.timeout()``, async_timeout and anyio keep their timers."""

TIMED_TASK_ATTRIBUTES: Final = ("_task", "_host_task")
"""Where they keep the task that the timer cancels."""

# asyncio has no public names for what its combinators wait by.
GATHERING: Final[type[asyncio.Future[Any]]] = asyncio.tasks._GatheringFuture  # type: ignore[attr-defined]  # noqa: SLF001
WAIT_CODE: Final = asyncio.tasks._wait.__code__  # type: ignore[attr-defined]  # noqa: SLF001
GROUP_EXITS: Final = frozenset(
    function.__code__ for name in ("__aexit__", "_aexit") if (function := vars(asyncio.TaskGroup).get(name))
)
ANYIO: Final = "anyio._backends._asyncio"
JOIN_CODE: Final = threading.Thread.join.__code__
WAIT_FOR_CODE: Final = asyncio.wait_for.__code__
IDLE_CODE: Final = pool_threads._worker.__code__  # noqa: SLF001
"""Where an idle thread of a pool of ``concurrent.futures`` waits for work."""

CODE_KINDS: Final = frozenset({CoroutineType, GeneratorType, AsyncGeneratorType})
CONTAINERS: Final = frozenset({dict, list, tuple, deque})
"""Where a context manager keeps other context managers. A dict may have its attributes."""

BLOCK_EXITS: Final = frozenset({"__exit__", "__aexit__"})
"""The methods of a context manager that a block calls at its end."""

MAX_ITEMS: Final = 100
"""Items of a container among which context managers are searched for."""

MAX_HOLDERS: Final = 1000
"""Objects that are searched for the timers of one task."""

Futures = Collection["asyncio.Future[Any]"]

StandsStill: TypeAlias = Callable[[Task], bool]
"""Returns whether a task does nothing before other tasks of its attempt have done something."""

EVENT_CODE: Final = asyncio.Event.wait.__code__


def tasks_by_attempt(loop: asyncio.AbstractEventLoop) -> Mapping[int, Sequence[Task]]:
    """Return the unfinished tasks of attempts, by the ``id()`` of the attempt whose code has begun them."""
    tasks = defaultdict[int, list[Task]](list)
    for task in asyncio.all_tasks(loop):
        context = context_of(task)
        # A task inherits the context of the code that creates it, which has the running job.
        running = None if context is None else context.get(current)
        is_of_library = task.get_name().startswith(OWN_TASK_PREFIX)
        if running is not None and running.attempt is not None and not is_of_library:
            tasks[id(running.attempt)].append(task)
    return tasks


def context_of(task: Task) -> contextvars.Context | None:
    """Return the context of a task; None if it cannot be found, before Python 3.12."""
    if sys.version_info >= (3, 12):
        return task.get_context()
    # A task that is implemented in Python has this attribute, one in C does not.
    context = getattr(task, "_context", None)
    if context is None:
        contexts = (referent for referent in gc.get_referents(task) if type(referent) is contextvars.Context)
        context = next(contexts, None)
    return context


def waits_for_steps(task: Task, steps: Futures, standing: Sequence[StandsStill] = ()) -> bool:
    """Return whether a task waits for steps only, directly or through other tasks.

    Args:
        task: The task.
        steps: The futures of the steps that wait.
        standing: Each returns whether a task only waits for others, although Python does not know which.
    """
    return _task_waits(task, steps, standing, set())


def awaits_event_of(task: Task, packages: Collection[str]) -> bool:
    """Return whether code of a package waits in a task for an event, or for an item of a stream of anyio.

    A task that does nothing but wait for an event counts too. Other code that the package has called, and
    that waits for an event of its own, does not.
    """
    *outer, innermost = _coroutines_of(task.get_coro())
    if getattr(innermost, "cr_code", None) is not EVENT_CODE:
        return False
    # Events and streams of anyio wait for an event of asyncio, so the code that uses them is further out.
    for coroutine in reversed(outer):
        package = _package_of(coroutine)
        if package != "anyio":
            return package in packages
    return True


def _package_of(coroutine: Any) -> str:
    """Return the name of the package whose code a coroutine or a generator runs."""
    # A coroutine, a generator and an async generator have their frame under different names.
    frames = (getattr(coroutine, name, None) for name in ("cr_frame", "gi_frame", "ag_frame"))
    frame: FrameType | None = next((frame for frame in frames if frame is not None), None)
    module = "" if frame is None else str(frame.f_globals.get("__name__"))
    return module.partition(".")[0]


def thread_waits(thread: threading.Thread, waiting: Collection[threading.Thread]) -> bool:
    """Return whether a thread waits for steps only: in a step, or for the end of another thread that does.

    A thread that has ended, or that is an idle one of a pool, does no work either, so it counts as waiting.

    Args:
        thread: The thread.
        waiting: The threads that wait in a step.
    """
    if thread in waiting or not thread.is_alive() or thread.ident is None:
        return True
    frame = sys._current_frames().get(thread.ident)
    # A thread without a frame has just ended.
    if frame is None or frame.f_code is IDLE_CODE:
        return True
    joined = _joined_by(frame)
    return joined is not None and joined is not thread and thread_waits(joined, waiting)


def continues_after(waiting: object, awaited: object) -> bool:
    """Return whether a task or a thread does not continue before another one ends, except by an error.

    A timeout of ``wait_for()`` makes no difference, because it cancels what is awaited.
    """
    if isinstance(waiting, asyncio.Task) and isinstance(awaited, asyncio.Task):
        return _waits_for_task(waiting, awaited, set())
    if isinstance(waiting, threading.Thread) and isinstance(awaited, threading.Thread):
        return _joins(waiting, awaited)
    return False


def describe_task(task: Task) -> str:
    """Return the name of a task, and the function and the line where it waits, for people."""
    frames = task.get_stack(limit=1)
    place = f" at {frames[0].f_code.co_qualname}:{frames[0].f_lineno}" if frames else ""
    return f"{task.get_name()!r}{place}"


class Waiting(Protocol):
    """The steps of an attempt that waits."""

    @property
    def key(self) -> int:
        """The id of the object that the contexts of its tasks have."""

    def decide(self, tasks: Sequence[Task]) -> None:
        """Suspend the attempt if all of its tasks wait."""


class SuspensionPass:
    """Looks at the tasks of the attempts that may be suspended, for all of these attempts in one pass.

    To list the tasks of an event loop takes longer if more jobs run. So the attempts share one list, and the
    pause after a pass is a multiple of the time that the pass took.
    """

    def __init__(self) -> None:
        # The attempts to look at. It is a dict without values, as a set that keeps the order.
        self._requests: dict[Waiting, None] = {}
        # When the next pass may begin, by the clock of the event loop.
        self._next_at = 0.0

    def request(self, attempt: Waiting) -> None:
        """Look at an attempt soon."""
        # The first request plans the pass, which serves all requests that come before it. The pass runs in an
        # empty context, because it belongs to none of these attempts.
        if not self._requests:
            loop = asyncio.get_running_loop()
            if (delay_s := self._next_at - loop.time()) > 0:
                loop.call_later(delay_s, self._run, context=contextvars.Context())
            else:
                loop.call_soon(self._run, context=contextvars.Context())
        self._requests[attempt] = None

    def _run(self) -> None:
        """Look at the attempts of all requests, and plan when the next pass may begin."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        requests, self._requests = self._requests, {}
        tasks = tasks_by_attempt(loop)
        for attempt in requests:
            attempt.decide(tasks.get(attempt.key, ()))
        ended = loop.time()
        # The pause is so long that passes take the share PASS_SHARE of the time.
        self._next_at = ended + (ended - began) / PASS_SHARE


class ChildWaits:
    """The jobs that wait for children in memory. If they have all slots of the worker, no child starts."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._claims: dict[int, Claim] = {}
        self._is_logged = False

    def add(self, key: int, claim: Claim) -> None:
        """Note that a job waits. The first time that such jobs have all slots, log a WARNING.

        ``key`` identifies the wait, for ``discard()``.
        """
        self._claims[key] = claim
        if len(self._claims) < self._slots or self._is_logged:
            return
        self._is_logged = True
        logger.warning(
            "jobs that wait for children in memory have all slots of this worker (%s), such as %s (id %s, "
            "attempt %s), so no child starts here before one of them ends; wait for children by steps alone, "
            "so that the job leaves its slot: without asyncio.timeout(), a semaphore or a task that works "
            "around the wait; first() with a Sleep bounds the time, and a limit how many children run",
            self._slots,
            claim.job_name,
            claim.job_id,
            claim.attempt,
            extra=record_fields(job_id=claim.job_id, job_name=claim.job_name, attempt=claim.attempt),
        )

    def discard(self, key: int) -> None:
        """Note that the job of this key does not wait, or not any more."""
        self._claims.pop(key, None)


# -- tasks ---------------------------------------------------------------------------------------------


def _task_waits(task: Task, steps: Futures, standing: Sequence[StandsStill], visited: set[Task]) -> bool:
    """Return whether a task waits for steps only, itself or by the tasks that it awaits.

    Args:
        task: The task.
        steps: The futures of the steps that wait.
        standing: Each returns whether a task only waits for others.
        visited: The tasks that lead to this one, of which each awaits the next.
    """
    # asyncio has no public way to find out which future a task awaits.
    future = getattr(task, "_fut_waiter", None)
    # A visited task is part of a cycle. One whose future is done is about to continue.
    if task in visited or future is None or future.done():
        return False
    if any(stands_still(task) for stands_still in standing):
        return True
    coroutines = list(_coroutines_of(task.get_coro()))
    if _has_timer(task, coroutines):
        return False
    if future in steps:
        return True
    innermost = coroutines[-1] if coroutines else None
    awaited = _futures_behind(future, innermost)
    # A future of unknown origin may be anything, such as the answer to a request, so it counts as work.
    if awaited is None:
        return False
    path = visited | {task}
    return all(_has_ended_or_waits(awaited_future, steps, standing, path) for awaited_future in awaited)


def _has_ended_or_waits(
    future: asyncio.Future[Any], steps: Futures, standing: Sequence[StandsStill], visited: set[Task]
) -> bool:
    """Return whether a future has ended, or waits for steps only."""
    if future.done() or future in steps:
        return True
    if isinstance(future, asyncio.Task):
        return _task_waits(future, steps, standing, visited)
    # gather() ends when all of its futures have ended.
    return isinstance(future, GATHERING) and all(
        _has_ended_or_waits(child, steps, standing, visited) for child in _gathered(future)
    )


def _futures_behind(future: asyncio.Future[Any], innermost: Any) -> Iterable[asyncio.Future[Any]] | None:
    """Return the futures whose end a task awaits by one future, such as that of ``wait()``.

    Return None if these are not known, or if the task may continue before their end.

    Args:
        future: The future that the task awaits.
        innermost: The innermost coroutine of the task, in whose frame ``wait()`` and task groups are found.
    """
    if isinstance(future, asyncio.Task):
        return [future]
    if isinstance(future, GATHERING):
        return _gathered(future)
    frame: FrameType | None = getattr(innermost, "cr_frame", None)
    if frame is None:
        return None
    if frame.f_code is WAIT_CODE:
        # A wait with a timeout may end although none of its futures has ended.
        return None if frame.f_locals["timeout"] is not None else list(frame.f_locals["fs"])
    # The code waits at the end of a task group, for the tasks of the group.
    if _ends_group(frame.f_code):
        tasks = _attribute(frame.f_locals.get("self"), "_tasks")
        if isinstance(tasks, set) and all(isinstance(task, asyncio.Task) for task in tasks):
            return list(tasks)
    return None


def _waits_for_task(task: Task, awaited: Task, visited: set[Task]) -> bool:
    """Return whether a task cannot continue before another one ends, directly or through other tasks.

    Args:
        task: The task.
        awaited: The other task.
        visited: The tasks that were examined before; this one is added.
    """
    future = getattr(task, "_fut_waiter", None)
    if task in visited or future is None or future.done():
        return False
    visited.add(task)
    coroutines = list(_coroutines_of(task.get_coro()))
    innermost = coroutines[-1] if coroutines else None
    # The frame of the function that waits, such as that of asyncio.wait(), whose variables are read below.
    frame: FrameType | None = getattr(innermost, "cr_frame", None)
    futures = _futures_behind(future, innermost) or ()
    # Before Python 3.12 wait_for() waits for a future of its own.
    if not futures and frame is not None and frame.f_code is WAIT_FOR_CODE:
        futures = [frame.f_locals["fut"]]
    # Whether each future needs the end of the other task.
    need_end = [_needs_end_of(future, awaited, visited) for future in futures]
    if frame is not None and frame.f_code is WAIT_CODE:
        ends_with_first = frame.f_locals["return_when"] == asyncio.FIRST_COMPLETED
        # Such a wait may end by any of its futures, so each of them has to need the end of the other task.
        if ends_with_first:
            return bool(need_end) and all(need_end)
    # Without an error, all other waits end only when each of their futures has ended.
    return any(need_end)


def _needs_end_of(future: asyncio.Future[Any], awaited: Task, visited: set[Task]) -> bool:
    """Return whether a future can have no result before the awaited task ends."""
    if isinstance(future, asyncio.Task):
        return future is awaited or _waits_for_task(future, awaited, visited)
    # gather() ends without an error only when all of its futures have ended.
    return isinstance(future, GATHERING) and any(
        _needs_end_of(child, awaited, visited) for child in _gathered(future)
    )


def _ends_group(code: CodeType) -> bool:
    """Return whether code waits at the end of a task group of asyncio or anyio, and not of another class."""
    if code in GROUP_EXITS:
        return True
    # anyio is not imported here. If the code of a job has imported it, its module is among the loaded ones.
    exit_of_anyio = _attribute(_attribute(sys.modules.get(ANYIO), "TaskGroup"), "__aexit__")
    return _attribute(exit_of_anyio, "__code__") is code


def _gathered(future: asyncio.Future[Any]) -> list[asyncio.Future[Any]]:
    """Return the futures that ``gather()`` waits for, of the future that it returned."""
    children: list[asyncio.Future[Any]] = _attribute(future, "_children")
    return children


def _coroutines_of(coroutine: Any) -> Iterator[Any]:
    """Yield the coroutines and generators of a task, from the outermost to the one that waits.

    Each awaits the next one. The innermost of them awaits a future, which is not yielded.
    """
    while isinstance(coroutine, CoroutineType | GeneratorType | AsyncGeneratorType):
        yield coroutine
        # What it awaits: the attribute has another name in a coroutine, a generator and an async generator.
        for name in ("cr_await", "gi_yieldfrom", "ag_await"):
            if hasattr(coroutine, name):
                coroutine = getattr(coroutine, name)
                break
        if coroutine is not None and not isinstance(coroutine, CoroutineType | GeneratorType):
            coroutine = _unwrapped(coroutine)


def _unwrapped(awaitable: Any) -> Any:
    """Return the coroutine or generator that an object of Python wraps, such as a step of ``async for``.

    None if there is none. The garbage collector knows to which objects such a wrapper refers.
    """
    kinds = CoroutineType | GeneratorType | AsyncGeneratorType  # type: ignore[type-arg]
    return next((referent for referent in gc.get_referents(awaitable) if isinstance(referent, kinds)), None)


def _has_timer(task: Task, coroutines: Iterable[Any]) -> bool:
    """Return whether a task is in a block of ``asyncio.timeout()`` or the like, whose timer runs.

    The timer may also be held by the context manager of the block, such as an exit stack.
    """
    # Objects that may refer to a timer, and the ids of those that were examined.
    holders, visited = list(coroutines), set[int]()
    # The list grows meanwhile. What the code itself holds is at its beginning, so it is examined first.
    for holder in holders:
        if id(holder) in visited:
            continue
        # The search is bounded, because the code may refer to any number of objects.
        if len(visited) == MAX_HOLDERS:
            break
        visited.add(id(holder))
        if _will_cancel(holder, task):
            return True
        # The values of the code of a job may be large lists of anything; the attributes of a manager are not.
        has_containers = type(holder) not in CODE_KINDS
        referents = gc.get_referents(holder)
        holders += [thing for thing in referents if _may_lead_to_timer(thing, has_containers=has_containers)]
    return False


def _will_cancel(manager: Any, task: Task) -> bool:
    """Return whether a context manager has a timer that runs and will cancel a task."""
    timers = [_attribute(manager, name) for name in TIMER_ATTRIBUTES]
    # The class is asked for the method, because an object of the user may pretend to have any attribute.
    has_running_timer = any(hasattr(type(timer), "cancelled") and not timer.cancelled() for timer in timers)
    if not has_running_timer:
        return False
    # A manager that names the task to cancel does so for that task only.
    timed_tasks = [_attribute(manager, name) for name in TIMED_TASK_ATTRIBUTES]
    is_for_other = any(isinstance(other, asyncio.Task) and other is not task for other in timed_tasks)
    return not is_for_other


def _may_lead_to_timer(thing: Any, *, has_containers: bool) -> bool:
    """Return whether a timer may be found behind something that code or a context manager has.

    Args:
        thing: An object to which the code or the context manager refers.
        has_containers: Whether the timer may be in a container.
    """
    kind = type(thing)
    if kind in CONTAINERS:
        return has_containers and len(thing) <= MAX_ITEMS
    # A method leads to its object.
    if kind is MethodType or kind in CODE_KINDS:
        return True
    # Any other object matters only if it is a context manager: one of its classes has an exit method.
    return any(not BLOCK_EXITS.isdisjoint(vars(base)) for base in kind.__mro__)


def _attribute(thing: Any, name: str) -> Any:
    """Return an attribute, None if there is none, without calling ``__getattr__()`` of its class."""
    try:
        return object.__getattribute__(thing, name)
    except Exception:  # noqa: BLE001 - a property of a class of the user may raise any
        return None


# -- threads -------------------------------------------------------------------------------------------


def _joins(thread: threading.Thread, awaited: threading.Thread) -> bool:
    """Return whether a thread waits for the end of another one, directly or through other threads."""
    frames, visited = sys._current_frames(), {thread}
    while thread.ident is not None:
        joined = _joined_by(frames.get(thread.ident))
        if joined is awaited:
            return True
        # The thread waits for no other, or threads wait for one another in a circle.
        if joined is None or joined in visited:
            return False
        visited.add(joined)
        thread = joined
    return False


def _joined_by(frame: FrameType | None) -> threading.Thread | None:
    """Return the thread that is joined without a time limit in the frame of another thread.

    None if that thread does something else, or joins with a time limit.
    """
    # The innermost frames are those of the module "threading". Among them is the one of join().
    while frame is not None and frame.f_globals.get("__name__") == threading.__name__:
        if frame.f_code is JOIN_CODE:
            joined = frame.f_locals.get("self")
            return joined if frame.f_locals.get("timeout") is None else None
        frame = frame.f_back
    return None
