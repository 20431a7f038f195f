"""The HTTP server of the probes and metrics has a bounded number of connections."""

from __future__ import annotations

import concurrent.futures
import http.client
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from pg_scheduler.telemetry.server import Answer, Request, ThreadServer, listen, text_answer
from tests.support import inside

TIMEOUT_S = 20
MAX_CONNECTIONS = 4
LARGE = "x" * 20_000_000


@pytest.fixture(autouse=True)
def few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    inside.replace(monkeypatch, metrics_connections=MAX_CONNECTIONS)


@contextmanager
def serving(gate: threading.Event) -> Iterator[ThreadServer]:
    def answer(request: Request) -> Answer:
        match request.path:
            case "/large":
                return text_answer(200, LARGE)
            case "/gate":
                gate.wait(TIMEOUT_S)
            case "/error":
                raise LookupError("hunter2")
            case "/exit":
                sys.exit("hunter2")
            case "/stop":
                raise StopIteration("hunter2")
            case "/cancel":
                raise concurrent.futures.CancelledError("hunter2")
        return text_answer(200, "ok")

    with listen("127.0.0.1", 0) as listening, ThreadServer(answer, listening, "test server") as server:
        yield server


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def server(gate: threading.Event) -> Iterator[ThreadServer]:
    with serving(gate) as server:
        yield server


def connect(server: ThreadServer, path: str | None = None) -> socket.socket:
    """Connect, and send a request if a path is given."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
    if path is not None:
        client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    return client


def fetch(server: ThreadServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", [None, "/large"], ids=["send nothing", "read nothing"])
def test_request_is_answered_while_clients_hold_more_connections(
    server: ThreadServer, path: str | None
) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS + 10):
            stack.enter_context(connect(server, path))
        assert fetch(server, "/") == (200, "ok")


def test_connection_that_waited_longest_for_its_client_is_replaced(server: ThreadServer) -> None:
    with ExitStack() as stack:
        first, *_, last = [stack.enter_context(connect(server)) for _ in range(MAX_CONNECTIONS + 1)]
        assert first.recv(1) == b""
        last.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert last.recv(12) == b"HTTP/1.1 200"


def test_requests_wait_while_all_connections_are_being_answered(
    server: ThreadServer, gate: threading.Event
) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(server, "/gate")) for _ in range(MAX_CONNECTIONS + 10)]
        gate.set()
        assert {client.recv(12) for client in clients} == {b"HTTP/1.1 200"}


@pytest.mark.parametrize("path", ["/error", "/exit", "/stop", "/cancel"])
def test_error_of_an_answer_is_logged_and_not_sent(
    server: ThreadServer, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    status, text = fetch(server, path)
    assert (status, "hunter2" in text, "hunter2" in caplog.text) == (500, False, True)
    assert fetch(server, "/") == (200, "ok")


def test_server_ends_while_an_answer_is_made(gate: threading.Event) -> None:
    with serving(gate) as server:
        client = connect(server, "/gate")
        assert fetch(server, "/") == (200, "ok")
    with client:
        assert client.recv(1) == b""
