"""Every kind of value in every way: it arrives as it was sent, or is refused with its path and a remedy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from pydantic import BaseModel

from pg_scheduler import PayloadError, Scheduler, current_job
from tests.api.conftest import Make
from tests.support.values import AS_JSON, EQUAL, PYDANTIC, WAYS, Kind, Opaque
from tests.support.values import KINDS as ALL_KINDS

KINDS = [kind for kind in ALL_KINDS if kind.since <= PYDANTIC]
KEEP = timedelta(minutes=5)
NEEDED = {"event_id", "tags", "kind"}
"""Fields of models that arrive as set although they were not: their value is that of the object."""

REMEDY = re.compile("; (pass|declare|use|make|remove|add|return|send|let) ")


class Outcome(NamedTuple):
    given: Any
    arrived: Any = None
    error: str | None = None


Outcomes = dict[tuple[str, str], Outcome]


def given_of(kind: Kind) -> Any:
    value = kind.make()
    return [*value] if isinstance(value, Iterator) else value


def is_equal(given: Any, arrived: Any) -> bool:
    """Return whether a value arrived as it was sent, by another comparison than that of the library."""
    if isinstance(given, BaseModel):
        return (
            type(given) is type(arrived)
            and (vars(given) == vars(arrived) or repr(given) == repr(arrived))
            and given.model_fields_set - NEEDED == arrived.model_fields_set - NEEDED
        )
    if isinstance(given, datetime) and isinstance(arrived, datetime):
        return (given.utcoffset(), given.timestamp()) == (arrived.utcoffset(), arrived.timestamp())
    if type(given) is tuple and isinstance(arrived, list):
        return [*given] == arrived
    if isinstance(given, ZoneInfo) and isinstance(arrived, ZoneInfo):  # a test may have emptied their cache
        return given.key == arrived.key
    if isinstance(given, Opaque) and isinstance(arrived, Opaque):
        return given.text == arrived.text
    return bool(given == arrived)


def problem_of(kind: Kind, way: str, outcome: Outcome) -> str | None:
    """Return what is wrong with an outcome."""
    expected = kind.expectation(way)
    where = f"{kind.name} as {way}"
    if expected in {EQUAL, AS_JSON}:
        if outcome.error is not None:
            return f"{where}: refused: {outcome.error}"
        if expected == EQUAL and not is_equal(outcome.given, outcome.arrived):
            return f"{where}: {outcome.given!r} arrived as {outcome.arrived!r}"
        return None
    if outcome.error is None:
        return f"{where}: {outcome.given!r} arrived as {outcome.arrived!r}, not refused"
    pattern = (
        rf"(args\[0\]|the value|done){'' if expected.startswith(('.', '[')) else ' '}{re.escape(expected)}"
    )
    if not re.search(pattern, outcome.error) or (
        not REMEDY.search(outcome.error) and "finite" not in outcome.error
    ):
        return f"{where}: {outcome.error}; expected: {expected}"
    return None


class Ways:
    """Sends values in every way."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.outcomes: Outcomes = {}
        self.received: dict[int, Any] = {}

    async def run(self) -> None:
        """Send each kind of value in each way."""
        await self.scheduler.start()
        await asyncio.gather(
            *(self.argument(number, kind) for number, kind in enumerate(KINDS)),
            *(self.result(number, kind) for number, kind in enumerate(KINDS)),
            *(self.progress(number, kind) for number, kind in enumerate(KINDS)),
            self.steps(),
            self.signals(),
        )

    def register(self, name: str, func: Callable[..., Any], **annotations: Any) -> str:
        """Register a typed function, and return its name."""
        func.__annotations__ = annotations
        func.__qualname__ = name.replace("-", "_")
        self.scheduler.register(func, name=name, typed=True, keep_result=KEEP)
        return name

    async def argument(self, number: int, kind: Kind) -> None:
        """Pass a value as an argument."""

        async def receive(value: Any) -> None:
            self.received[number] = value

        name = self.register(f"argument-{number}", receive, value=kind.declared)
        sent = kind.make()
        value = given_of(kind) if isinstance(sent, Iterator) else sent
        try:
            job_id = await self.scheduler.enqueue(name, args=(sent,))
        except PayloadError as error:
            self.outcomes[kind.name, "argument"] = Outcome(value, error=str(error))
            return
        result = await self.scheduler.get_job_result(job_id, timeout=60)
        problem = None if number in self.received else f"the job: {result.error}"
        self.outcomes[kind.name, "argument"] = Outcome(value, self.received.get(number), problem)

    async def result(self, number: int, kind: Kind) -> None:
        """Return a value."""
        sent = given_of(kind)

        async def answer() -> Any:
            return sent

        name = self.register(f"result-{number}", answer, **{"return": kind.declared})
        job_id = await self.scheduler.enqueue(name)
        result = await self.scheduler.get_job_result(job_id, timeout=60)
        if result.no_value_reason is not None:
            self.outcomes[kind.name, "result"] = Outcome(sent, error=result.no_value_reason)
        else:
            self.outcomes[kind.name, "result"] = Outcome(sent, result.unwrap(kind.declared))

    async def progress(self, number: int, kind: Kind) -> None:
        """Report a value as progress."""
        sent = given_of(kind)

        async def report() -> str | None:
            try:
                current_job().progress(sent)
            except (TypeError, ValueError) as error:
                return str(error)
            return None

        name = self.register(f"progress-{number}", report)
        job_id = await self.scheduler.enqueue(name)
        error = await self.scheduler.get_job_result(job_id, timeout=60)
        job = await self.scheduler.get_job(job_id)
        assert job
        arrived = None if job.progress is None else job.progress.done
        self.outcomes[kind.name, "progress"] = Outcome(sent, arrived, error.unwrap())

    async def steps(self) -> None:
        """Return each value from a step."""

        async def run_steps() -> None:
            for number, kind in enumerate(KINDS):
                sent = given_of(kind)

                async def answer(value: Any = sent) -> Any:
                    return value

                answer.__annotations__ = {"return": kind.declared}
                try:
                    outcome = Outcome(sent, await current_job().steps.run(f"step-{number}", answer))
                except PayloadError as error:
                    outcome = Outcome(sent, error=str(error))
                self.outcomes[kind.name, "step"] = outcome

        name = self.register("steps", run_steps)
        await self.scheduler.run_job(name, wait_timeout=60)

    async def signals(self) -> None:
        """Send each value as a signal."""
        values: dict[int, Any] = {}

        async def receive() -> None:
            for number, sent in values.items():
                kind = KINDS[number]
                type_of_wait = None if kind.declared is Any else kind.declared
                arrived = await current_job().steps.wait(f"signal-{number}", kind=type_of_wait)
                self.outcomes[kind.name, "signal"] = Outcome(sent, arrived)

        name = self.register("signals", receive)
        job_id = await self.scheduler.enqueue(name, delay=KEEP)
        for number, kind in enumerate(KINDS):
            sent = given_of(kind)
            try:
                await self.scheduler.signal(job_id, f"signal-{number}", sent)
            except PayloadError as error:
                self.outcomes[kind.name, "signal"] = Outcome(sent, error=str(error))
            else:
                values[number] = sent
        await self.scheduler.run_job_now(job_id)
        result = await self.scheduler.get_job_result(job_id, timeout=60)
        result.unwrap()


async def test_every_kind_of_value_arrives_as_it_was_sent_or_is_refused_in_every_way(make: Make) -> None:
    ways = Ways(make())
    await ways.run()
    outcomes = {(kind.name, way): kind for kind in KINDS for way in WAYS}
    problems = [problem_of(kind, key[1], ways.outcomes[key]) for key, kind in outcomes.items()]
    assert not [problem for problem in problems if problem], "\n".join(filter(None, problems))


def test_table_has_a_hundred_kinds_with_names_of_their_own() -> None:
    assert len(ALL_KINDS) >= 100
    assert len({kind.name for kind in ALL_KINDS}) == len(ALL_KINDS)
