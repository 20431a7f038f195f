"""The prompt of ``dev.py shell``, at which the snippets of the documentation run.

``await`` works at the top level, and ``dsn``, ``pool`` and a started ``scheduler`` are those of the database
in ``PG_SCHEDULER_DSN``. The event loop runs in a thread of its own, so jobs run while the prompt waits for a
line. A program on standard input runs as a whole, and an error ends it.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import code
import concurrent.futures
import contextlib
import importlib
import inspect
import os
import sys
import threading
import types
from typing import Any, Final, NamedTuple

import asyncpg

from pg_scheduler import Scheduler

BANNER: Final = """\
Python {version}; "await" works here, and these names are defined:
  dsn        the DSN of the private server
  pool       an asyncpg pool
  scheduler  a started Scheduler, which runs the jobs that you enqueue"""


class Session(NamedTuple):
    """What a prompt needs of the thread that runs the event loop.

    Attributes:
        names: The names that are defined at the prompt.
        is_closing: Set when the Scheduler is to shut down.
    """

    loop: asyncio.AbstractEventLoop
    names: dict[str, Any]
    is_closing: asyncio.Event


async def serve(dsn: str, started: concurrent.futures.Future[Session]) -> None:
    """Run a Scheduler until the prompt ends; ``started`` gets the session, or the error of the start."""
    try:
        async with (
            asyncpg.create_pool(dsn, min_size=1) as pool,
            Scheduler(pool, shutdown_timeout=5) as scheduler,
        ):
            names = {"asyncio": asyncio, "dsn": dsn, "pool": pool, "scheduler": scheduler}
            session = Session(asyncio.get_running_loop(), names, asyncio.Event())
            started.set_result(session)
            await session.is_closing.wait()
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


class Prompt(code.InteractiveConsole):
    """Reads lines, and runs them in the event loop."""

    def __init__(self, session: Session) -> None:
        # The functions of a prompt belong to the main program, as at any other prompt.
        module = types.ModuleType("__main__")
        vars(module).update(session.names, __builtins__=builtins)
        sys.modules["__main__"] = module
        super().__init__(vars(module))
        self.compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._loop = session.loop

    def push(self, line: str, *args: Any, **options: Any) -> bool:
        """Run a line, or several that were pasted at once; return whether more lines are needed."""
        if "\n" in line and not self.buffer:
            # As a file, since a function may have empty lines, which end it at a prompt.
            return self.runsource(f"{line}\n", self.filename, "exec")
        return super().push(line, *args, **options)

    def runcode(self, code: types.CodeType) -> None:
        """Run compiled code, and print the traceback of its error."""
        try:
            self.run(code)
        except (SystemExit, KeyboardInterrupt):  # interact() handles them
            raise
        except Exception:  # noqa: BLE001 - of the user's code
            self.showtraceback()

    def run(self, code: types.CodeType) -> None:
        """Run compiled code in the event loop, and raise its error."""
        future = asyncio.run_coroutine_threadsafe(self._run(code), self._loop)
        try:
            end = future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
        if end is not None:
            raise end

    async def _run(self, code: types.CodeType) -> SystemExit | None:
        """Run compiled code, and wait for what it awaits; return the request to end the prompt."""
        try:
            result = types.FunctionType(code, self.locals)()
            if inspect.iscoroutine(result):
                await result
        except SystemExit as end:  # it would end the event loop
            return end
        return None


def main() -> None:
    """Run the prompt, or the program on standard input."""
    dsn = os.environ["PG_SCHEDULER_DSN"]
    started: concurrent.futures.Future[Session] = concurrent.futures.Future()
    thread = threading.Thread(target=lambda: asyncio.run(serve(dsn, started)))
    thread.start()
    session = started.result()
    try:
        prompt = Prompt(session)
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                importlib.import_module("readline")  # lines can be edited and repeated
            prompt.interact(BANNER.format(version=sys.version.split()[0]), exitmsg="")
        else:
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            prompt.run(compile(sys.stdin.read(), "<stdin>", "exec", flags=flags, dont_inherit=True))
    finally:
        session.loop.call_soon_threadsafe(session.is_closing.set)
        thread.join()


if __name__ == "__main__":
    main()
