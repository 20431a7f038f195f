"""Injected parameters: no arguments of jobs, for arity and for types."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Annotated, Any

import pytest

import pg_scheduler
from pg_scheduler import Injected
from pg_scheduler.errors import ConfigurationError, PayloadError
from pg_scheduler.jobs.injected import own_signature
from pg_scheduler.jobs.naming import required_parameters
from tests.support.inside import TaskOptions, TaskRegistry

if TYPE_CHECKING:
    from nowhere import Session  # type: ignore[import-not-found] # a type of type checkers only


async def last(order: int, session: Injected[Session]) -> int:
    return order


async def keyword(order: int, *, session: pg_scheduler.Injected[Session], count: int = 1) -> int:
    return order * count


async def alone(*, session: Injected[Session]) -> None: ...


async def others(
    order: Annotated[int, "Injected"], text: str = "Injected[Session]", **rest: list[int]
) -> None: ...


@functools.wraps(last)
async def wrapper(order: int, session: Injected[Session]) -> int:
    return await last(order, session)


def evaluated() -> Any:
    async def func(order: int, session: Any) -> None: ...

    func.__annotations__["session"] = Injected[dict[str, int]]
    return func


@pytest.mark.parametrize(
    ("func", "names"),
    [
        (last, ["order"]),
        (keyword, ["order", "count"]),
        (alone, []),
        (others, ["order", "text", "rest"]),
        (wrapper, ["order"]),
        (evaluated(), ["order"]),
    ],
)
def test_own_signature_has_no_injected_parameters(func: Any, names: list[str]) -> None:
    assert [*own_signature(func).parameters] == names
    assert inspect.signature(func).parameters.keys() > set(names) or func is others


async def first(session: Injected[Session], order: int) -> None: ...


async def before_any(session: Injected[Session], *orders: int) -> None: ...


async def positional_only(session: Injected[Session], /) -> None: ...


@pytest.mark.parametrize("func", [first, before_any, positional_only])
def test_register_raises_when_an_argument_would_be_positional_after_an_injected_parameter(func: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'session' of \w+\(\) is Injected.*make it keyword-only"):
        TaskRegistry().register(func)


@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize("func", [last, keyword, wrapper])
def test_calls_leave_out_injected_parameters_and_cannot_give_them(func: Any, is_typed: bool) -> None:
    task = TaskRegistry().register(func, options=TaskOptions(typed=is_typed))
    assert task.encode((7,), None) == '{"args":[7],"kwargs":{}}'
    assert task.encode((), {"order": 7}) == '{"args":[],"kwargs":{"order":7}}'
    for args, kwargs in [((), {}), ((7, 8), {}), ((7,), {"session": 8})]:
        with pytest.raises((TypeError, PayloadError), match=r"argument|session"):
            task.encode(args, kwargs)
    if is_typed:
        with pytest.raises(PayloadError, match="order: Input should be a valid integer"):
            task.encode(("x",), {})


def test_injected_parameters_are_not_required() -> None:
    assert required_parameters(last) == ["order"]
    assert required_parameters(alone) == []
