"""Notifications to systemd, received from a socket in its place."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from pg_scheduler.telemetry import systemd
from pg_scheduler.telemetry.systemd import notify_systemd
from tests.support.inside import Health, HealthCheck

TIMEOUT_S = 10.0


class Source:
    def __init__(self) -> None:
        self.found = health("starting")

    def health(self) -> Health:
        return self.found


def health(state: Literal["stopped", "starting", "running", "draining"], *, live: bool = True) -> Health:
    started = state in {"running", "draining"}
    checks = (
        HealthCheck("event_loop", live, "responds" if live else "blocked by\njob x", ("live",)),
        HealthCheck("started", started, "start() has not completed", ("started", "ready")),
        HealthCheck("listener", False, "polling"),
    )
    return Health(state, 75, 41, checks, 3.2 if started else None)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture(params=["path", "abstract"])
def received(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], list[str]]]:
    """A function that returns the lines of the next notification."""
    name = f"@pgs-{os.getpid()}-{time.monotonic_ns()}" if request.param == "abstract" else str(tmp_path / "s")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setattr(systemd, "INTERVAL_S", 0.05)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0", 1))
        receiver.settimeout(TIMEOUT_S)
        yield lambda: receiver.recv(65536).decode().splitlines()


def until(received: Callable[[], list[str]], line: str) -> list[str]:
    end = time.monotonic() + TIMEOUT_S
    while line not in (lines := received()):
        assert time.monotonic() < end, lines
    return lines


def test_systemd_is_notified_of_each_state(source: Source, received: Callable[[], list[str]]) -> None:
    with notify_systemd(source):
        assert received() == [
            "STATUS=starting, 41 of 75 slots; started: start() has not completed",
            "WATCHDOG=1",
        ]
        source.found = health("running")
        assert until(received, "READY=1") == [
            "STATUS=41 of 75 slots, next due in 3 s",
            "READY=1",
            "WATCHDOG=1",
        ]
        source.found = health("running", live=False)
        lines = until(received, "STATUS=41 of 75 slots, next due in 3 s; event_loop: blocked by job x")
        assert "WATCHDOG=1" not in lines
        source.found = health("draining")
        lines = until(received, "STOPPING=1")
        assert {"EXTEND_TIMEOUT_USEC=30000000", "WATCHDOG=1"} < set(lines)
        assert "READY=1" not in lines
    assert until(received, "STOPPING=1")


@pytest.mark.parametrize(
    ("usec", "pid", "expected"),
    [
        ("2000000", None, 1.0),
        ("2000000", "1", 5.0),
        ("60000000", None, 5.0),
        ("0", None, 5.0),
        ("x", None, 5.0),
        ("", None, 5.0),
    ],
)
def test_watchdog_is_fed_twice_within_its_time(
    monkeypatch: pytest.MonkeyPatch, usec: str, pid: str | None, expected: float
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid or str(os.getpid()))
    assert systemd._interval_s() == expected


def test_nothing_is_sent_without_systemd(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    with notify_systemd(source):
        pass


def test_missing_socket_is_ignored(source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    with notify_systemd(source):
        pass
