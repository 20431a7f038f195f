"""Public callables that take a Scheduler, a pool or what reads one refuse any other object at once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

from pg_scheduler import ConnectionAdapter, Scheduler
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.telemetry.probes import serve_health
from pg_scheduler.telemetry.prometheus import serve_metrics
from tools.reference.source import PUBLIC_MODULES, public_names

ROOMS = re.compile(r"pg_scheduler\.(dashboard|inspect|integrations|telemetry|testing)\b")

SUBJECT = re.compile(r"\b(\w*Scheduler|HealthSource|Source|Inspector|Collector|asyncpg\.Pool)\b")
"""The annotations of the parameters, as the source has them."""

OTHER_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "AsyncTestKit": {"connection": ConnectionAdapter(lambda *_: [])},
    "DoctorWebhook": {"url": "https://example.org/hook"},
    "TestKit": {"connection": ConnectionAdapter(lambda *_: [], is_async=False)},
    "dashboard": {"authorize": lambda _: None},
    "fail_event": {"token": "token", "reason": "no"},
    "resolve_event": {"token": "token"},
    "stream_response": {"request": None, "job_id": "job", "name": "words"},
    "stream_route": {"access": lambda *_: None},
}
"""What each callable needs besides, by its name."""

FUNCTIONS = ("dashboard: source", "stream_route: scheduler")
"""The parameters that may also be a function which returns a Scheduler."""

DSNS = ("TestScheduler: pool",)
"""The parameters that may also be a DSN."""

BLOCKING = ("TestKit: scheduler", "AsyncTestKit: scheduler", "instrument: scheduler")
"""The parameters that may also be a SyncScheduler, besides those for anything that has a health."""

UNCHECKED = {
    "crash_everywhere: arrange": "a function that gets a pool",
    "crash_everywhere: at": "functions that get a Scheduler",
    "crash_everywhere: observe": "a function that gets a pool",
    "job_context: scheduler": "a unit test may pass a mock",
}
"""The parameters that no call checks, with the reasons."""


class Case(NamedTuple):
    """A parameter, and the callable that has it."""

    call: Any
    parameter: inspect.Parameter

    @property
    def name(self) -> str:
        return f"{self.call.__name__}: {self.parameter.name}"


def cases() -> Iterator[Case]:
    """Yield each parameter for a Scheduler, a pool or what reads one."""
    for module in PUBLIC_MODULES:
        if not ROOMS.match(module):
            continue
        for name in public_names(module):
            try:
                call = getattr(import_module(module), name)
            except ImportError:  # a library that this environment does not have
                continue
            # Other classes are values, which the library makes.
            is_constructor = inspect.isclass(call) and "__init__" in vars(call)
            if not is_constructor and not inspect.isfunction(call):
                continue
            for parameter in inspect.signature(call).parameters.values():
                if SUBJECT.search(str(parameter.annotation)):
                    yield Case(call, parameter)


CASES = {case.name: case for case in cases()}


def wrong_values(case: Case) -> Iterator[Any]:
    """Yield values that the parameter must refuse."""
    yield from (5, object(), Scheduler, SyncScheduler)
    if case.parameter.default is not None:
        yield None
    if case.name not in FUNCTIONS:
        yield lambda: None
    if case.name not in DSNS:
        yield "postgresql://localhost/shop"
    if case.name not in BLOCKING and case.parameter.annotation != "HealthSource":
        yield SyncScheduler()


async def call_with(case: Case, value: Any) -> None:
    """Call a function, and use what it returns, as far as an error may come there."""
    arguments = {**OTHER_ARGUMENTS.get(case.call.__name__, {}), case.parameter.name: value}
    if case.parameter.name == "read_pool":
        arguments["source"] = Scheduler(asyncpg.create_pool("postgresql://localhost/shop"))
    result = case.call(**arguments)
    if inspect.isawaitable(result):
        await result
    elif hasattr(result, "__enter__"):
        with result:
            pass


@pytest.mark.parametrize("name", sorted(CASES.keys() - UNCHECKED.keys()))
async def test_wrong_object_is_refused_with_the_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "socket"))
    case = CASES[name]
    for value in wrong_values(case):
        with pytest.raises(TypeError) as raised:
            await call_with(case, value)
        message = str(raised.value)
        assert message.startswith(f"{case.parameter.name} must "), value
        assert "; " in message, "the remedy"
        assert "postgresql" not in message, "a DSN may have a password"


def test_all_kinds_of_parameters_are_there() -> None:
    assert len(CASES) > 15
    assert {*FUNCTIONS, *DSNS, *BLOCKING, *UNCHECKED} <= CASES.keys()


@pytest.mark.parametrize("serve", [serve_health, serve_metrics])
@pytest.mark.parametrize(
    ("port", "error"),
    [("x", TypeError), (None, TypeError), (True, TypeError), (-1, ValueError), (70_000, ValueError)],
)
def test_wrong_port_is_refused(pool: asyncpg.Pool, serve: Any, port: Any, error: type[Exception]) -> None:
    with (
        pytest.raises(error, match=r"port must be .*; pass 0 for a free one"),
        serve(Scheduler(pool), port=port),
    ):
        pass


@pytest.mark.parametrize("serve", [serve_health, serve_metrics])
def test_wrong_host_is_refused(pool: asyncpg.Pool, serve: Any) -> None:
    with (
        pytest.raises(TypeError, match=r"host must be a str, not int; pass .* every interface"),
        serve(Scheduler(pool), 5),
    ):
        pass
