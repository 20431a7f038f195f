"""Steps of the server's clock, as answers reveal them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from pg_scheduler.worker.lease.lease import ServerClock
from pg_scheduler.worker.signals import Signal

BEGAN = time.monotonic()


class Server:
    """A server whose clock can be set, and whose answers may take any time."""

    def __init__(self) -> None:
        self.steps = 0
        self.offset = timedelta()
        stepped = Signal("the clock was set")
        stepped.connect(self._count)
        self._clock = ServerClock(stepped)

    def _count(self) -> None:
        self.steps += 1

    def answer(self, *, sent_s_ago: float = 0.0, read_s_ago: float = 0.0) -> None:
        """Answer a statement that was sent, and at which the clock was read, so many seconds ago."""
        at = time.monotonic()
        elapsed = timedelta(seconds=at - BEGAN - read_s_ago)
        now = datetime(2030, 1, 1, tzinfo=UTC) + elapsed + self.offset
        self._clock.read(now, at - sent_s_ago)


@pytest.mark.parametrize("step", [60, -60])
def test_step_of_the_server_clock_is_reported_once(step: float) -> None:
    server = Server()
    for _ in range(2):
        server.answer()
    assert server.steps == 0
    server.offset = timedelta(seconds=step)
    for _ in range(2):
        server.answer()
    assert server.steps == 1


def test_slow_answers_are_not_taken_for_steps() -> None:
    server = Server()
    for sent, read in ((0, 0), (60, 60), (60, 0), (60, 30), (0, 0)):
        server.answer(sent_s_ago=sent, read_s_ago=read)
    assert server.steps == 0


@pytest.mark.parametrize("step", [20, -20])
def test_step_hidden_by_a_slow_answer_is_reported_at_the_next_one(step: float) -> None:
    server = Server()
    server.answer()
    server.offset = timedelta(seconds=step)
    server.answer(sent_s_ago=60, read_s_ago=30)
    assert server.steps == 0
    server.answer()
    assert server.steps == 1
