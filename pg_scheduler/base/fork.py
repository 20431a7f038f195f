"""Take from forked children what belongs to their parent alone.

A child inherits copies of all file descriptors and the handlers of signals. A connection, a pipe or a
listening socket ends when its last copy is closed, so each would last as long as the longest child. A signal
handler of an event loop writes to a socket that the child shares with its parent, so a signal to the child
would reach the parent as well. Whatever must not be inherited is registered here, where it is made.

A copy is replaced by ``/dev/null`` instead of being closed: its number cannot be used for something else
while an object of the parent still refers to it.

If the code of a job forks, and the child returns from that code instead of ending in it, the child would run
as a second worker. It shares the selector of its parent in the kernel, so each descriptor that it removes
there is removed for the parent too. So a child ends as soon as it has left the code of the job, or awaits
something.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, NoReturn, Protocol, TypeAlias
from weakref import WeakSet

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | signal.Handlers

HELD_BACK: Final = frozenset(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""Signals that are blocked during a fork, so that a child receives them once it has its own handlers."""


LEFT_CODE: Final = (
    "pg_scheduler: a process that the code of a job has forked ends here, because it has left that code, or "
    "awaits something; end it in that code by os._exit()"
)

PARTS_OF_LOOP: Final = ("_selector", "_ssock", "_csock")
"""The selector of an event loop of asyncio, and the sockets by which other threads wake it."""


class File(Protocol):
    """A socket or a file. After it was closed, ``fileno()`` returns -1 or raises ValueError."""

    def fileno(self) -> int:
        """Return the number of the descriptor."""


def replace_by_null(numbers: Iterable[int]) -> None:
    """Let file descriptors refer to ``/dev/null``, so that nothing is sent to the other end."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(null, number, inheritable=False)
    os.close(null)


class Inheritance:
    """Registers what children do not inherit. It works for children that Python forks, in any thread."""

    def __init__(self) -> None:
        self.generation = 0
        """How many forks lead to this process from the one that has imported this module."""
        self._files: WeakSet[File] = WeakSet()
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._handlers: dict[int, Handler] = {}
        # By the thread that forks: the signals that were blocked before, which are restored afterwards.
        self._masks: dict[int, set[int]] = {}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._hold_signals, after_in_parent=self._release_signals, after_in_child=self._disown
            )

    def close_in_children(self, file: File) -> None:
        """Close this file in children forked from now on, as long as it is open in the parent."""
        self._files.add(file)

    def leave_in_children(self, loop: asyncio.AbstractEventLoop) -> None:
        """End children that are forked from now on by code in this event loop when they return to it."""
        self._loops.add(loop)

    def call_in_children(
        self, action: Callable[[], None], *, before: Callable[[], None] | None = None
    ) -> None:
        """Call a function in children forked from now on, and another one before each fork."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=before or (lambda: None), after_in_child=action)

    @contextmanager
    def handle_in_children(self, handlers: Mapping[int, Handler]) -> Iterator[None]:
        """Give children that are forked within a ``with`` block these handlers of signals."""
        previous_handlers = self._handlers
        self._handlers = {**previous_handlers, **handlers}
        try:
            yield
        finally:
            self._handlers = previous_handlers

    def _hold_signals(self) -> None:
        """Block signals before a fork."""
        # Between the fork and the call of _disown(), the child still has the handlers of the parent, so a
        # signal to the child has to wait.
        self._masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)

    def _release_signals(self) -> None:
        """Restore the signals that were blocked before the fork, in the parent or in the child."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.pop(threading.get_ident()))

    def _disown(self) -> None:
        """Give up what belongs to the parent, in the child."""
        self.generation += 1
        try:
            # The event loop of the parent gets no more signals of this child. From Python 3.12 on, asyncio
            # does this itself. A sub-interpreter has no handlers of signals, so these calls raise ValueError
            # there.
            with suppress(ValueError):
                signal.set_wakeup_fd(-1)
                for number, handler in self._handlers.items():
                    # A signal that is ignored stays ignored, such as SIGHUP under nohup.
                    if signal.getsignal(number) is not signal.SIG_IGN:
                        signal.signal(number, handler)
            self._handlers = {}
            replace_by_null(number for number in map(_number_of, self._files) if number >= 0)
            self._files = WeakSet()
            for loop in self._loops:
                _leave(loop)
            self._loops = WeakSet()
        finally:
            self._release_signals()


def _number_of(file: File) -> int:
    """Return the number of the descriptor of a file; -1 if the file is closed."""
    try:
        return file.fileno()
    except ValueError:
        return -1


def _leave(loop: asyncio.AbstractEventLoop) -> None:
    """Let this child end when it returns to an event loop of its parent, and share nothing of it.

    This concerns the event loop that runs in the thread that has forked: other threads do not run in the
    child. The attributes are private ones of asyncio. Another event loop lacks them, and is left as it is.
    """
    if getattr(loop, "_thread_id", None) != threading.get_ident():
        return
    parts = [getattr(loop, name, None) for name in PARTS_OF_LOOP]
    files: list[File] = [part for part in parts if part is not None and hasattr(part, "fileno")]
    replace_by_null(number for number in map(_number_of, files) if number >= 0)
    ready = getattr(loop, "_ready", None)
    if isinstance(ready, deque):
        loop.call_soon(end_child)
        # The other callbacks are those of tasks of the parent, which must not run twice.
        ready.rotate(1)


def end_child(error: BaseException | None = None) -> NoReturn:
    """End a child that has left the code of the job which has forked it, with the error of that code.

    Like a child of ``multiprocessing``, it calls no functions of ``atexit``, which are those of its parent.
    """
    code = 1
    with suppress(Exception):
        match error:
            case None:
                print(LEFT_CODE, file=sys.stderr)  # noqa: T201 - the log may be the socket of a server
            case SystemExit(code=None):
                code = 0
            case SystemExit(code=int(number)):
                code = number
            case _:
                traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal by doing nothing.

    Unlike ``SIG_IGN``, this is not inherited by a program that the process executes, which handles the signal
    by default.
    """


inheritance: Final = Inheritance()
