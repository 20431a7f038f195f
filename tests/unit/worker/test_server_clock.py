"""Steps of the server's clock, as answers reveal them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from pg_scheduler.worker.lease import ServerClock
from pg_scheduler.worker.signals import Signal

BEGAN = time.monotonic()


class Server:
    """A server whose clock can be set, and whose answers may take any time."""

    def __init__(self) -> None:
        self.steps = 0
        self.steps_back = 0
        self.offset = timedelta()
        stepped, set_back = Signal("the clock was set"), Signal("the clock was set back")
        stepped.connect(self._count)
        set_back.connect(self._count_back)
        self._clock = ServerClock(stepped, set_back)

    def _count(self) -> None:
        self.steps += 1

    def _count_back(self) -> None:
        self.steps_back += 1

    def answer(self, *, sent_s_ago: float = 0.0, read_s_ago: float = 0.0) -> None:
        """Answer a statement that was sent, and at which the clock was read, so many seconds ago."""
        at = time.monotonic()
        elapsed = timedelta(seconds=at - BEGAN - read_s_ago)
        now = datetime(2030, 1, 1, tzinfo=UTC) + elapsed + self.offset
        self._clock.read(now, at - sent_s_ago)


def new_clock() -> ServerClock:
    return ServerClock(Signal("the clock was set"), Signal("the clock was set back"))


def compared(clock: ServerClock, ahead_s: float, *, sent_s_ago: float = 0.0) -> float:
    """Let a server answer whose clock this host is ahead of; return the offset that is measured."""
    now = datetime.now(UTC) - timedelta(seconds=ahead_s + sent_s_ago / 2)
    clock.compare(now, time.monotonic() - sent_s_ago)
    assert clock.offset_s is not None
    return clock.offset_s


def test_time_until_a_time_of_the_server_is_not_too_short() -> None:
    clock = new_clock()
    moment = datetime.now(UTC) + timedelta(hours=1)
    assert clock.seconds_until(moment) is None
    # The server may have read its clock at any moment of the two seconds.
    clock.read(moment - timedelta(seconds=10), time.monotonic() - 2)
    left_s = clock.seconds_until(moment)
    assert left_s is not None
    assert 9.5 < left_s <= 10


@pytest.mark.parametrize(("ahead_s", "words"), [(600, "600.0 s ahead of"), (-600, "600.0 s behind")])
def test_clock_of_the_host_that_differs_is_logged_once_and_again_when_it_agrees(
    caplog: pytest.LogCaptureFixture, ahead_s: float, words: str
) -> None:
    caplog.set_level("INFO", "pg_scheduler")
    clock = new_clock()
    assert clock.offset_s is None
    for _ in range(2):
        assert compared(clock, ahead_s) == pytest.approx(ahead_s, abs=0.4)
    [warning] = caplog.records
    assert warning.levelname == "WARNING"
    assert words in warning.message
    caplog.clear()
    for _ in range(2):
        assert compared(clock, 0) == pytest.approx(0, abs=0.4)
    [note] = caplog.records
    assert (note.levelname, "agrees" in note.message) == ("INFO", True)


@pytest.mark.parametrize(
    ("ahead_s", "correction_s"), [(0.5, 0), (600, 600), (-600, -600), (-86_400, 0), (10**9, 0)]
)
def test_times_are_corrected_by_minutes_only(ahead_s: float, correction_s: float) -> None:
    clock = new_clock()
    assert clock.correction_s == 0
    compared(clock, ahead_s)
    assert clock.correction_s == pytest.approx(correction_s, abs=0.4)


def test_slow_answer_is_no_proof_that_the_clock_of_the_host_differs(caplog: pytest.LogCaptureFixture) -> None:
    clock = new_clock()
    assert compared(clock, 5, sent_s_ago=20) == pytest.approx(5, abs=0.4)
    assert not caplog.records


@pytest.mark.parametrize("step", [60, -60])
def test_step_of_the_server_clock_is_reported_once(step: float) -> None:
    server = Server()
    for _ in range(2):
        server.answer()
    assert server.steps == 0
    server.offset = timedelta(seconds=step)
    for _ in range(2):
        server.answer()
    assert (server.steps, server.steps_back) == (1, int(step < 0))


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
