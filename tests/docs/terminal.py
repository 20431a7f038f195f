"""The programs of the tutorial, as a reader starts them in a terminal."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.docs.snippets import ROOT
from tests.support.golden import IS_RENEWING
from tests.support.patience import PATIENCE

__all__ = ["EXAMPLES", "Program", "Terminal", "open_terminal"]

EXAMPLES = ROOT / "examples" / "shop"

MAIL_PORT = "2525"
"""The port of the mail server on the pages."""


class Program:
    """A program that runs, with the lines that it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def until(self, pattern: str) -> re.Match[str]:
        """Read lines until one matches; the lines before it are in `lines` too."""
        assert self.process.stdout
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line.rstrip())
                if found := re.search(pattern, line):
                    return found
        output = "\n".join(self.lines)
        raise AssertionError(f"the program has ended without {pattern!r}:\n{output}")

    async def ended(self) -> int:
        """Read what the program prints until it ends; return its exit code."""
        output, _ = await asyncio.wait_for(self.process.communicate(), PATIENCE)
        self.lines += output.decode().splitlines()
        assert self.process.returncode is not None
        return self.process.returncode

    async def kill(self) -> None:
        """Kill it, as `kill -9` does."""
        self.process.kill()
        await self.ended()

    async def interrupt(self) -> int:
        """Press Ctrl-C, which reaches the program and what it has started; return the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return await self.ended()


class Terminal:
    """A folder with the programs of the reader, and the address of a database.

    The mail server has a port of its own, which is taken but not open until the server starts: until then, a
    connection is refused.
    """

    def __init__(self, folder: Path, dsn: str | None, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.variables = {"PG_SCHEDULER_OUTPUT": "table", "COLUMNS": "100"}
        if dsn is not None:
            self.variables["PG_SCHEDULER_DSN"] = dsn
        self._stack = stack
        self._mail_socket = socket.socket()
        self._mail_socket.bind(("127.0.0.1", int(MAIL_PORT) if IS_RENEWING else 0))
        self._mail_address = self._mail_socket.getsockname()
        stack.callback(self._mail_socket.close)

    def save(self, example: str, name: str = "shop.py", **replacements: str) -> None:
        """Save a file of the examples; each replacement is that of a number, such as ``seconds_5="0.1"``."""
        code = (EXAMPLES / example).read_text(encoding="utf-8")
        code = code.replace(MAIL_PORT, str(self._mail_address[1]))
        for words, number in ({} if IS_RENEWING else replacements).items():
            before, _, old = words.rpartition("_")
            code, count = re.subn(rf"(?<=\b{before}[=(]){old}\b", number, code)
            assert count == 1, words
        (self.folder / name).write_text(code, encoding="utf-8")

    async def start(self, *arguments: str) -> Program:
        """Start Python with these arguments."""
        environment = {name: value for name, value in os.environ.items() if name != "PG_SCHEDULER_TEST_DSN"}
        environment |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **self.variables}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=self.folder,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._stack.push_async_callback(self._end, process)
        return Program(process)

    async def run(self, *arguments: str) -> str:
        """Run Python with these arguments, and return what it prints."""
        program = await self.start(*arguments)
        code = await program.ended()
        output = "\n".join(program.lines)
        assert code == 0, output
        return output

    async def command(self, *arguments: str) -> str:
        """Run ``pg-scheduler``, and return what it prints."""
        return await self.run("-m", "pg_scheduler", *arguments)

    async def start_shop(self) -> tuple[Program, str]:
        """Start ``uvicorn shop:app``; return it with its address."""
        program = await self.start("-m", "uvicorn", "--loop", "asyncio", "--port", "0", "shop:app")
        return program, (await program.until(r"running on (http://\S+)"))[1]

    async def start_mail_server(self) -> Program:
        """Start the mail server, and wait until it accepts connections."""
        self.save("mail_server.py", "mail_server.py")
        self._mail_socket.close()
        program = await self.start("mail_server.py")
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    _, writer = await asyncio.open_connection(*self._mail_address)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    await writer.wait_closed()
                    return program

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@asynccontextmanager
async def open_terminal(folder: Path, dsn: str | None = None) -> AsyncIterator[Terminal]:
    """Yield a terminal; what it has started ends with it."""
    async with AsyncExitStack() as stack:
        yield Terminal(folder, dsn, stack)
