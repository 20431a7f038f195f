"""Many cases in one test, where the set-up of a test for each would take longer than the cases."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import pytest

from tests.support.catalogues import own_registrations

Test = TypeVar("Test", bound=Callable[..., Any])


def each_case(names: str | Sequence[str], cases: Iterable[Any], ids: Any = None) -> Callable[[Test], Test]:
    """Run all cases in one test, and raise the errors of all; the arguments are those of ``parametrize``.

    The cases share the fixtures, so they must not change what the next one depends on. What a case registers
    is forgotten. A skipped case is an error: it would hide the others.
    """
    del ids  # the notes of the errors contain the values
    words = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    values = [_values(case, len(words)) for case in cases]
    assert values, "no case"

    def decorate(test: Test) -> Test:
        if inspect.iscoroutinefunction(test):

            @wraps(test)
            async def run(**fixtures: Any) -> None:
                errors: list[BaseException] = []
                for case in values:
                    with _collect(errors, case):
                        await test(**fixtures, **dict(zip(words, case, strict=True)))
                _raise_all(errors)

        else:

            @wraps(test)
            def run(**fixtures: Any) -> None:
                errors: list[BaseException] = []
                for case in values:
                    with _collect(errors, case):
                        test(**fixtures, **dict(zip(words, case, strict=True)))
                _raise_all(errors)

        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in words]
        assert len(left) == len(signature.parameters) - len(words), words
        vars(run)["__signature__"] = signature.replace(parameters=left)
        return cast("Test", run)

    return decorate


def _values(case: Any, count: int) -> Sequence[Any]:
    """Return the values of a case, which ``pytest.param`` may hold."""
    if isinstance(case, type(pytest.param())):
        assert not case.marks, "marks belong to tests"
        return cast("Sequence[Any]", case.values)
    return cast("Sequence[Any]", case) if count > 1 else (case,)


@contextmanager
def _collect(errors: list[BaseException], case: Sequence[Any]) -> Iterator[None]:
    try:
        with own_registrations():
            yield
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - raised at the end
        error.add_note(f"case: {case!r:.1000}")
        errors.append(error)


def _raise_all(errors: list[BaseException]) -> None:
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} cases failed", errors)
