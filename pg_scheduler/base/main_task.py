"""Run the main task of an event loop in which the code of jobs runs too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pg_scheduler.base.foreign import is_ctrl_c

T = TypeVar("T")


def run_main_task(
    coroutine: Coroutine[Any, Any, T],
    report: Callable[[BaseException], None],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run a coroutine as ``asyncio.run()`` does, whatever other tasks and callbacks of its event loop raise.

    asyncio passes a SystemExit or KeyboardInterrupt of any task or callback on to the caller of the loop,
    which ends the program. Here it ends its own task only. A Ctrl-C ends the program nevertheless. See
    https://docs.python.org/3/library/asyncio-task.html#asyncio.Task

    The loop also runs on after a call of ``loop.stop()``, for which asyncio raises a RuntimeError here.

    Args:
        coroutine: The main task.
        report: Is called with each exception that has not ended the program.
        loop_factory: Makes the event loop; None for that of asyncio.

    Raises:
        BaseException: What the coroutine has raised.
        KeyboardInterrupt: A Ctrl-C.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        main = runner.get_loop().create_task(coroutine)
        while not main.done():
            try:
                runner.run(_end_of(main))
            except (SystemExit, KeyboardInterrupt) as error:
                if is_ctrl_c(error):
                    raise
                # The error of the main task itself is raised by result() below.
                if not main.done():
                    report(error)
            except RuntimeError as error:
                # While the main task has not ended, loop.stop() makes the runner raise this. A loop that code
                # has closed cannot be started again.
                if main.done() or runner.get_loop().is_closed():
                    raise
                report(error)
        return main.result()


async def _end_of(main: asyncio.Task[Any]) -> None:
    """Wait for the end of the main task. A cancellation, as by the first Ctrl-C, cancels the main task."""
    while not main.done():
        try:
            await asyncio.wait([main])
        except asyncio.CancelledError:
            # Code that cancels all tasks has cancelled this task and the main task. Then the main task is not
            # cancelled again: a second cancellation would end its cleanup.
            if not main.cancelling():
                main.cancel()
            await asyncio.wait([main])
            # The main task may have ended in another way. Then the cancellation has no further effect.
            if main.cancelled():
                # If a Ctrl-C was the cause, the runner raises KeyboardInterrupt in place of this error.
                raise
