"""Forked children have no copy of what ends only when its last copy is closed.

The tests in ``tests/cli/test_fork.py`` and ``tests/cluster/test_fork.py`` fork for real. This one lists all
places, so that a new one is not forgotten. Connections to the database are those of ``database/fork.py``. The
pipe from the output of a program is not listed: only that program can write to it, so a copy of the other end
delays nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pg_scheduler
from tests.support.source import parsed

PACKAGE: Final = Path(pg_scheduler.__file__).parent

MAKERS: Final = frozenset(
    {
        "Pipe",
        "accept",
        "create_connection",
        "create_datagram_endpoint",
        "create_server",
        "create_unix_connection",
        "create_unix_server",
        "dup",
        "eventfd",
        "fdopen",
        "fromfd",
        "mkfifo",
        "open_unix_connection",
        "openpty",
        "pipe",
        "sock_accept",
        "socket",
        "socketpair",
        "start_server",
        "start_unix_server",
        "DefaultSelector",
        "EpollSelector",
        "FileIO",
        "KqueueSelector",
        "PollSelector",
        "SelectSelector",
        "epoll",
        "kqueue",
    }
)
"""Functions that return a socket, a pipe, a selector, or an object for the number of one."""

STDIN: Final = "stdin of a program"

PERMITTED: Final = {
    ("cli/demo/nodes.py", "_spawn", STDIN): "the process of the demo runs no jobs, so nothing forks it",
    ("cli/worker/supervisor.py", "_read", "fdopen"): "the pipe that _run_once() makes",
    (
        "cli/worker/supervisor.py",
        "_run_once",
        "pipe",
    ): "the supervisor imports no code of the application, so nothing forks it",
    (
        "cli/assistant/command.py",
        "mcp",
        "create_server",
    ): "it is a server of the protocol, which speaks by stdin and stdout and has no socket",
    ("embedded/server.py", "_start_supervisor", STDIN): "the program ends by SIGTERM, and with its parent",
    (
        "worker/runners/child.py",
        "main",
        "socket",
    ): "its parent looks at the end of the process, too; a forked process sends its log records there",
}
"""What forked children inherit, and why that does no harm."""


def makers_in(function: ast.AST) -> Iterator[str]:
    """Yield what a function makes that children would inherit."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in MAKERS:
            yield name
        for keyword in node.keywords:
            if keyword.arg == "stdin" and ast.unparse(keyword.value).endswith("PIPE"):
                yield STDIN


def is_registered(function: ast.AST) -> bool:
    """Return whether a function registers what it makes."""
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == "inheritance.close_in_children"
        for node in ast.walk(function)
    )


def test_what_is_inherited_is_closed_in_forked_children_or_has_a_reason() -> None:
    inherited, registered = set(), 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                made = {(path.relative_to(PACKAGE).as_posix(), node.name, name) for name in makers_in(node)}
                if is_registered(node):
                    registered += len(made)
                else:
                    inherited |= made
    assert inherited == set(PERMITTED), "call inheritance.close_in_children() there, or give the reason"
    assert registered >= 5
