"""The arguments that a function accepts, without calling it, and calls as values."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler import Call, JobSpec, PayloadError, call
from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.jobs.task import MAX_SHAPES, Arity, Task

DUE = datetime(2030, 1, 1, tzinfo=UTC)


async def nothing() -> None: ...
async def one(a: int) -> None: ...
async def optional(a: int, b: int = 0) -> None: ...
async def positional(a: int, b: int = 0, /) -> None: ...
async def keyword(a: int, *, b: int) -> None: ...
async def optional_keyword(a: int = 0, *, b: int = 0) -> None: ...
async def any_positional(a: int, *rest: int) -> None: ...
async def any_keyword(a: int = 0, **rest: int) -> None: ...
async def anything(*args: int, **kwargs: int) -> None: ...


class Service:
    async def method(self, a: int) -> None: ...


FUNCTIONS: list[JobFunction] = [
    nothing,
    one,
    optional,
    positional,
    keyword,
    optional_keyword,
    any_positional,
    any_keyword,
    anything,
    Service().method,
]


@given(
    func=st.sampled_from(FUNCTIONS),
    count=st.integers(0, 4),
    names=st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=3),
)
def test_encode_accepts_exactly_the_arguments_with_which_a_call_begins(
    func: JobFunction, count: int, names: list[str]
) -> None:
    args, kwargs = [1] * count, dict.fromkeys(names, 2)
    try:
        func(*args, **kwargs).close()
    except TypeError:
        fits = False
    else:
        fits = True
    task = Task(func, "name")
    for _ in range(2):  # the second time from memory
        if fits:
            task.encode(args, kwargs)
        else:
            with pytest.raises(TypeError, match=r"\w+\(\) cannot be called with the arguments of the job: "):
                task.encode(args, kwargs)


def test_error_names_the_function_and_the_parameter_but_no_value() -> None:
    for kwargs, found in (({"a": "secret"}, "missing a required argument: 'b'"), ({}, "'a'")):
        with pytest.raises(TypeError) as raised:
            Task(keyword, "name").encode((), kwargs)
        assert "keyword() cannot be called" in str(raised.value)
        assert found in str(raised.value)
        assert "secret" not in str(raised.value)
        assert not isinstance(raised.value, PayloadError)


def test_wrapper_is_checked_by_its_own_signature() -> None:
    def decorated(func: JobFunction) -> JobFunction:
        @functools.wraps(func)
        async def wrapper(*args: Any) -> None:
            await func("injected", *args)

        return wrapper

    Task(decorated(optional), "name").encode((1,), {})
    Task(decorated(one), "name").encode((), {})


def test_function_without_a_valid_signature_accepts_everything() -> None:
    async def strange() -> None: ...

    strange.__signature__ = "none"  # type: ignore[attr-defined]
    Task(strange, "name").encode((1, 2), {"c": 3})
    Task(strange, "name").encode((), None)


def test_arguments_are_checked_once_while_their_names_and_number_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[tuple[int, list[str]]] = []
    bind = Arity.check

    def check(arity: Arity, args: Any, kwargs: Any) -> None:
        checked.append((len(args), [*(kwargs or {})]))
        bind(arity, args, kwargs)

    monkeypatch.setattr(Arity, "check", check)
    task = Task(optional_keyword, "name")
    for args, kwargs in [((), {"a": 1, "b": 2})] * 3 + [((1,), {"b": 2})] * 3 + [((), None)] * 3:
        task.encode(args, kwargs)
    assert checked == [(0, ["a", "b"]), (1, ["b"])]
    with pytest.raises(TypeError, match="multiple values for argument 'a'"):
        task.encode((1,), {"a": 1, "b": 2})


def test_number_of_remembered_combinations_is_bounded() -> None:
    arity = Arity(anything)
    for number in range(MAX_SHAPES + 10):
        arity.check((), {f"name{number}": 1})
    assert len(arity.accepted) == MAX_SHAPES


# -- calls as values -----------------------------------------------------------------------------------


async def send(to: str, *, func: int = 1) -> bool:
    return bool(to) and bool(func)


def test_call_keeps_the_function_and_its_arguments_without_calling_it() -> None:
    made = call(send, "ada", func=2)
    assert made == Call(send, ("ada",), {"func": 2})
    assert call(send, "ada") != made


def test_job_spec_takes_a_call_apart() -> None:
    spec = JobSpec(call(send, "ada", func=2), DUE, max_retries=1)
    assert spec == JobSpec(send, DUE, ("ada",), {"func": 2}, max_retries=1)


@pytest.mark.parametrize("extra", [{"args": (1,)}, {"kwargs": {"func": 1}}])
def test_job_spec_raises_when_arguments_are_given_beside_a_call(extra: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"a call\(\) has its arguments; pass no args= and kwargs= with it"):
        JobSpec(call(send, "ada"), DUE, **extra)
