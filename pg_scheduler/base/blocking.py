"""Derive blocking members from the public members of an asynchronous class.

A coroutine function becomes a function that blocks, an asynchronous iterator becomes an iterator, and a facet
(an attribute whose class has coroutine functions) becomes a property whose class is derived likewise. All
functions, plain ones too, run in the event loop of the asynchronous object. Signatures stay, except for the
type of ``connection=``. If the caller passes a connection, the method runs in the thread of the caller and
without an event loop, because all of its statements run on that connection.

`SyncScheduler` and the Scheduler that jobs in threads see are derived. Type checkers read
``sync/methods.pyi``, which ``python -m tools.reference.stub`` writes.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, Literal, Protocol, TypeVar

from pg_scheduler.base.lazy_imports import LazyClass

T = TypeVar("T")

CONNECTION: Final = "connection"
"""The parameter for a connection of the caller."""

SYNC_CONNECTION: Final = "AnySyncConnection | None"
"""Its type in blocking methods."""

END: Final = object()
"""What ``anext()`` returns at the end of the source of a BlockingIterator."""

ASYNC_ITERATOR: Final = re.compile(r"(?:\w+\.)?Async(?:Iterator|Iterable|Generator)\[")
SECTION: Final = re.compile(r"^(?:Args|Attributes|Returns|Yields|Raises|Examples?):{1,2}$", re.MULTILINE)


class Caller(Protocol):
    """Calls functions in the event loop of another thread."""

    @property
    def resource(self) -> Any:
        """The object whose members are derived."""

    @property
    def is_alive(self) -> bool:
        """Whether functions can be called."""

    def call(self, function: Callable[[], Any]) -> Any:
        """Call the function, and block until it has returned or its coroutine has ended."""

    def submit(self, function: Callable[[], Any]) -> object:
        """Call the function, and do not wait."""


def check_may_block(name: str, owner: str = "a SyncScheduler", path: str = "scheduler") -> None:
    """Raise RuntimeError if an event loop runs in the thread of the caller.

    Args:
        name: The method that the caller has called.
        owner: The object, for the error.
        path: How the caller reaches the object, for the error.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"{name}() of {owner} would block the event loop of this thread; await the asynchronous method "
        f"instead, or call await asyncio.to_thread({path}.{name}, ...)"
    )


@dataclass(frozen=True, slots=True)
class BlockingConnection:
    """A connection of a caller without asyncio, on which a method runs in the thread of that caller."""

    connection: object


_is_without_loop: Final[ContextVar[bool]] = ContextVar("pg_scheduler_without_loop", default=False)


def is_without_loop() -> bool:
    """Return whether the caller is a coroutine that runs without an event loop, and blocks its thread."""
    return _is_without_loop.get()


def run_at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits, without an event loop."""
    token = _is_without_loop.set(True)
    try:
        # asyncio.sleep(0) yields None, to let other tasks run. Here are none, so the coroutine continues.
        while coroutine.send(None) is None:
            pass
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        coroutine.close()
        _is_without_loop.reset(token)
    # The coroutine has yielded a future, for which only an event loop can wait.
    raise RuntimeError("a method waits for the event loop, although a connection was passed")


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> bool:
    """Schedule a call in another thread's event loop; return False if that loop is closed."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:  # it is closed
        return False
    return True


async def _result_of(function: Callable[[], Any]) -> Any:
    """Return what a function returns. If that is a coroutine or another awaitable, return its result."""
    result = function()
    return await result if inspect.isawaitable(result) else result


class Crossing:
    """One call of a function in the event loop of another thread, which begins at once.

    It does what ``asyncio.run_coroutine_threadsafe()`` does, with one lock instead of a future, a condition
    and the callbacks that chain them.

    Args:
        loop: The event loop.
        function: The function.
        on_end: Called in the event loop when the call has ended.

    Raises:
        RuntimeError: The event loop is closed.
    """

    __slots__ = (
        "_end_lock",
        "_error",
        "_function",
        "_loop",
        "_on_end",
        "_task",
        "_value",
        "has_ended",
        "is_cancelled",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        function: Callable[[], Any],
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self._loop = loop
        self._function = function
        self._on_end = on_end
        self._task: asyncio.Task[Any] | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self.has_ended = False
        self.is_cancelled = False
        # The lock is held until the call has ended, so acquiring it waits for the end.
        self._end_lock = threading.Lock()
        self._end_lock.acquire()
        loop.call_soon_threadsafe(self._begin)

    def wait(self, timeout: float) -> bool:
        """Wait for so many seconds; return whether the call has ended. Only one thread may wait."""
        return self.has_ended or self._end_lock.acquire(timeout=timeout)

    def result(self) -> Any:
        """Return the result of the call, which has ended, or raise its error.

        Raises:
            concurrent.futures.CancelledError: The call was cancelled.
            BaseException: The error of the function.
        """
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            # The traceback of the error refers to this frame, and ``self`` refers to the error: a cycle.
            del self

    def cancel(self) -> None:
        """Cancel the call, unless it has ended."""
        if not self.has_ended:
            self.is_cancelled = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self) -> None:
        """Call the function in a new task; runs in the event loop."""
        # The call may have been cancelled before the event loop came here.
        if self.is_cancelled:
            self._end(None, CancelledError())
            return
        self._task = task = self._loop.create_task(_result_of(self._function))
        task.add_done_callback(self._end_with)

    def _cancel(self) -> None:
        """Cancel the task; runs in the event loop. If there is no task, ``_begin()`` has ended the call."""
        if self._task is not None:
            self._task.cancel()

    def _end_with(self, task: asyncio.Task[Any]) -> None:
        """End the call with the result or the error of its task."""
        if task.cancelled():
            self._end(None, CancelledError())
        elif (error := task.exception()) is not None:
            self._end(None, error)
        else:
            self._end(task.result(), None)

    def _end(self, value: Any, error: BaseException | None) -> None:
        """Store the result or the error, and let the thread that waits for it continue."""
        self._value, self._error = value, error
        self.has_ended = True
        self._end_lock.release()
        if self._on_end is not None:
            self._on_end()


@dataclass(frozen=True)
class Member:
    """A public member of a class.

    Attributes:
        source: The function, the getter of a property, or the value of a constant.
        facet: The class of a facet; None for another member.
    """

    name: str
    kind: Literal["method", "iterator", "facet", "value", "constant"]
    source: Any = None
    facet: type | None = None


def members_of(cls: type) -> Iterator[Member]:
    """Yield the public members of a class, in the order of their definition, base classes last.

    Class methods are left out, because they construct objects of the asynchronous class.
    """
    yielded_names = set()
    # The last class is object.
    for owner in cls.__mro__[:-1]:
        # A member may be annotated without a value. Then vars() does not have it.
        for name in (*vars(owner), *inspect.get_annotations(owner)):
            is_constructor = isinstance(vars(owner).get(name), classmethod)
            if not name.startswith("_") and name not in yielded_names and not is_constructor:
                yielded_names.add(name)
                yield _member(owner, name)


def _member(owner: type, name: str) -> Member:
    """Return a member of a class. Its kind follows from its definition and the texts of its annotations."""
    definition = vars(owner).get(name)
    if isinstance(definition, FunctionType):
        # A function whose annotation is "AsyncIterator[...]" or the like returns an asynchronous iterator, as
        # does one whose annotation is the name of a class with a method __anext__().
        return_type = str(definition.__annotations__.get("return"))
        is_iterator = ASYNC_ITERATOR.match(return_type) or hasattr(
            definition.__globals__.get(return_type), "__anext__"
        )
        return Member(name, "iterator" if is_iterator else "method", definition)
    if definition is not None and not isinstance(definition, property | functools.cached_property):
        return Member(name, "constant", definition)
    # The function of a cached_property is its ``func``. A member that is only annotated has no definition.
    getter = definition.fget if isinstance(definition, property) else getattr(definition, "func", None)
    if getter:
        # The names in the annotation are those of the module of the getter. ``__module__`` of a public class
        # is the package that exports it.
        annotation, namespace = getter.__annotations__.get("return"), getter.__globals__
    else:
        annotation, namespace = inspect.get_annotations(owner)[name], vars(sys.modules[owner.__module__])
    value_class = namespace.get(str(annotation))
    if isinstance(value_class, LazyClass):
        value_class = value_class.resolve()
    # A facet is an attribute whose class has coroutine functions.
    if isinstance(value_class, type) and any(map(inspect.iscoroutinefunction, vars(value_class).values())):
        return Member(name, "facet", getter, value_class)
    return Member(name, "value", getter)


class BlockingIterator(Iterator[T]):
    """Iterates over an asynchronous iterator; each step blocks until the next item.

    Args:
        portal: Calls functions in the event loop of the asynchronous iterator.
        source: The asynchronous iterator.
        name: The method that returned it, for errors.
        owner: The object that has this method, for errors.
    """

    def __init__(self, portal: Caller, source: AsyncIterator[T], name: str, owner: str) -> None:
        self._portal = portal
        self._source = source
        self._name = name
        self._owner = owner

    def __next__(self) -> T:
        check_may_block(self._name, self._owner)
        item: Any = self._portal.call(functools.partial(anext, self._source, END))
        if item is END:
            raise StopIteration
        value: T = item
        return value

    def close(self) -> None:
        """End the iteration. Losing the last reference does so too."""
        aclose = getattr(self._source, "aclose", None)
        if aclose is not None and self._portal.is_alive:
            with suppress(RuntimeError):  # the portal was closed meanwhile
                self._portal.submit(aclose)  # without waiting: any thread may collect garbage

    __del__ = close


class Blocking:
    """The base of derived classes, whose methods block the thread of the caller instead of being awaited."""

    _path = "scheduler"
    """How the caller reaches the object, for errors."""

    @property
    def _owner_name(self) -> str:
        """The object, for errors."""
        return "a SyncScheduler"

    def _portal(self) -> Caller:
        """Return the open portal, which calls functions in its event loop."""
        raise NotImplementedError

    def _target(self) -> Any:
        """Return the object whose members are derived."""
        return self._portal().resource

    def _source(self) -> Any:
        """Return the object whose properties are read."""
        return self._target()

    def _local_target(self) -> Any:
        """Return the object whose methods run in the thread of the caller, on its connection."""
        return self._target()

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the asynchronous object, and return its result when the call has ended."""
        # With a connection, all statements run on it, in this thread. So the method waits for no event loop.
        if kwargs.get(CONNECTION) is not None:
            connection = BlockingConnection(kwargs[CONNECTION])
            method = getattr(self._local_target(), name)
            return run_at_once(method(*args, **{**kwargs, CONNECTION: connection}))
        check_may_block(name, self._owner_name, self._path)
        return self._portal().call(functools.partial(getattr(self._target(), name), *args, **kwargs))

    def _iterate(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockingIterator[Any]:
        """Call a method of the asynchronous object that returns an iterator; return a blocking iterator."""
        return BlockingIterator(self._portal(), self._call(name, args, kwargs), name, self._owner_name)

    def _open_facet(self, cls: type[BlockingFacet], name: str) -> BlockingFacet:
        """Return a facet of this object: an attribute with methods of its own, which block too.

        Args:
            cls: The class that was derived from that of the asynchronous facet.
            name: The name of the attribute.
        """
        return cls(
            FacetOwner(
                name=self._owner_name,
                path=f"{self._path}.{name}",
                get_portal=self._portal,
                get_target=lambda: getattr(self._target(), name),
                get_local_target=lambda: getattr(self._local_target(), name),
            )
        )


@dataclass(frozen=True, slots=True)
class FacetOwner:
    """What a facet, an attribute with methods of its own, needs of the object that has it.

    Each call of a method of the facet calls the functions here anew.
    """

    name: str
    """The object, for errors."""
    path: str
    """How the caller reaches the facet, for errors."""
    get_portal: Callable[[], Caller]
    get_target: Callable[[], Any]
    """Returns the facet whose members are derived."""
    get_local_target: Callable[[], Any]
    """Returns the facet whose methods run in the thread of the caller, on its connection."""


class BlockingFacet(Blocking):
    """The base of classes derived from those of facets."""

    def __init__(self, owner: FacetOwner) -> None:
        self._owner = owner
        self._path = owner.path

    @property
    def _owner_name(self) -> str:
        return self._owner.name

    def _portal(self) -> Caller:
        return self._owner.get_portal()

    def _target(self) -> Any:
        return self._owner.get_target()

    def _local_target(self) -> Any:
        return self._owner.get_local_target()


def derive(
    cls: type,
    name: str,
    base: type[Blocking] = Blocking,
    *,
    path: str = "",
    by_hand: Collection[str] = (),
) -> type:
    """Return a class with the public members of ``cls``, blocking.

    Args:
        cls: The asynchronous class.
        name: The name of the new class.
        base: Its base class.
        path: How users name an object of ``cls``.
        by_hand: Names of functions that ``base`` implements by hand. The derived function calls the method
            of ``base`` with the same name and a leading underscore.
    """
    path = path or cls.__name__
    attributes: dict[str, Any] = {"__doc__": f"The public members of `{path}`, blocking."}
    for member in members_of(cls):
        attributes[member.name] = _derive_member(member, path, member.name in by_hand)
    return type(name, (base,), attributes)


def _derive_member(member: Member, path: str, is_by_hand: bool) -> Any:
    """Return the blocking counterpart of a member: a function, a property or a constant.

    Args:
        member: The member.
        path: How users name an object of its class.
        is_by_hand: Whether the base class implements it; see ``derive()``.
    """
    name, facet = member.name, member.facet
    if member.kind == "constant":
        return member.source
    if member.kind in {"method", "iterator"}:
        return _derive_function(member, path, is_by_hand)
    doc = member.source and member.source.__doc__
    if facet is None:
        return property(lambda self: getattr(self._source(), name), doc=doc)
    facet_class = derive(facet, f"Blocking{facet.__name__}", BlockingFacet, path=f"{path}.{name}")
    return property(lambda self: self._open_facet(facet_class, name), doc=doc)


def _derive_function(member: Member, path: str, is_by_hand: bool) -> Any:
    """Return the blocking counterpart of a function, with its signature and the start of its docstring."""
    name, source = member.name, member.source
    signature = inspect.signature(source)

    def blocking(self: Blocking, *args: Any, **kwargs: Any) -> Any:
        if is_by_hand:
            return getattr(self, f"_{name}")(*args, **kwargs)
        run: Callable[..., Any] = self._iterate if member.kind == "iterator" else self._call
        return run(name, args, kwargs)

    functools.update_wrapper(blocking, source)
    # A caller without asyncio passes another type of connection.
    parameters = [
        parameter.replace(annotation=SYNC_CONNECTION) if parameter.name == CONNECTION else parameter
        for parameter in signature.parameters.values()
    ]
    blocking.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    # The text before the first section stays; a reference to the original replaces the sections.
    text = SECTION.split(inspect.cleandoc(source.__doc__ or ""))[0].strip()
    blocking.__doc__ = f"{text}\n\nParameters, values and errors are those of ``{path}.{name}()``."
    return blocking
