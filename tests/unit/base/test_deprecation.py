"""What is deprecated works as before, and warns the code that uses it."""

from __future__ import annotations

import asyncio
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pg_scheduler.base.deprecation import deprecated, deprecated_parameter

HERE = Path(__file__).name
VERSIONS = {"since": "1.2", "removal": "2.0"}


@contextmanager
def warned_lines() -> Iterator[list[str]]:
    """Collect the messages of deprecations, each with the line of this file that it is about."""
    warnings_seen: list[str] = []
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeprecationWarning)
        yield warnings_seen
    for warning in caught:
        assert Path(warning.filename).name == HERE, warning
        assert warning.category is DeprecationWarning
        warnings_seen.append(f"{source[warning.lineno - 1].strip()} -> {warning.message}")


@deprecated(**VERSIONS, instead="total()")
def count(first: int, second: int = 2) -> int:
    """Add two numbers.

    Args:
        first: A number.
    """
    return first + second


@deprecated(**VERSIONS, instead="atotal()")
async def acount(first: int) -> int:
    """Return a number, later."""
    await asyncio.sleep(0)
    return first


class Box:
    """A box."""

    @deprecated(**VERSIONS, instead="Box()")
    def open(self) -> str:
        return type(self).__name__

    @classmethod
    @deprecated(**VERSIONS, instead="Box()")
    def new(cls) -> Box:
        return cls()

    @property
    @deprecated(**VERSIONS, instead="width")
    def size(self) -> int:
        return 7

    @deprecated_parameter("wide", **VERSIONS, instead="width=")
    def resize(self, width: int = 1, wide: int = 0, *, deep: int = 0) -> int:
        return width + wide + deep

    @deprecated_parameter("deep", **VERSIONS, instead="depth=")
    async def aresize(self, *, deep: int = 0) -> int:
        return deep


@deprecated(**VERSIONS, instead="Box")
class Crate:
    """A crate."""

    def __init__(self, size: int) -> None:
        self.size = size


@deprecated(**VERSIONS, instead="Box")
class Bag(tuple[int, ...]):
    def __new__(cls, *sizes: int) -> Bag:
        return super().__new__(cls, sizes)


GONE = "is deprecated since pg_scheduler 1.2 and goes in 2.0; use"


def test_deprecated_function_warns_the_line_that_calls_it() -> None:
    with warned_lines() as lines:
        assert count(1, second=3) == 4
    assert lines == [f"assert count(1, second=3) == 4 -> count() {GONE} total() instead"]


async def test_deprecated_coroutine_function_warns_the_line_that_calls_it() -> None:
    with warned_lines() as lines:
        assert await acount(5) == 5
    assert lines == [f"assert await acount(5) == 5 -> acount() {GONE} atotal() instead"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 cannot mark coroutine functions")
async def test_deprecated_coroutine_function_warns_the_line_that_makes_a_task_of_it() -> None:
    with warned_lines() as lines:
        task = asyncio.create_task(acount(6))
        assert await task == 6
    assert lines == [f"task = asyncio.create_task(acount(6)) -> acount() {GONE} atotal() instead"]


def test_deprecated_methods_warn_with_the_name_of_their_class() -> None:
    box = Box()
    with warned_lines() as lines:
        assert box.open() == "Box"
        assert isinstance(Box.new(), Box)
        assert box.size == 7
    assert [line.partition(" -> ")[2] for line in lines] == [
        f"Box.open() {GONE} Box() instead",
        f"Box.new() {GONE} Box() instead",
        f"Box.size() {GONE} width instead",
    ]


@pytest.mark.parametrize(
    ("call", "value", "warns"),
    [
        (lambda box: box.resize(), 1, False),
        (lambda box: box.resize(2, deep=3), 5, False),
        (lambda box: box.resize(wide=0), 1, True),
        (lambda box: box.resize(2, 3), 5, True),
    ],
    ids=["none", "others", "by keyword", "by position"],
)
def test_deprecated_parameter_warns_when_a_call_passes_it(
    call: Callable[[Box], int], value: int, warns: bool
) -> None:
    with warned_lines() as lines:
        assert call(Box()) == value
    texts = [line.partition(" -> ")[2] for line in lines]
    assert texts == ([f"wide= of Box.resize() {GONE} width= instead"] if warns else [])


async def test_deprecated_parameter_of_a_coroutine_function_warns_when_a_call_passes_it() -> None:
    with warned_lines() as lines:
        assert await Box().aresize() == 0
        assert await Box().aresize(deep=4) == 4
    assert lines == [
        f"assert await Box().aresize(deep=4) == 4 -> deep= of Box.aresize() {GONE} depth= instead"
    ]


def test_deprecated_parameter_must_be_one_of_the_function() -> None:
    with pytest.raises(ValueError, match=r"count\(\) has no parameter 'third'; correct the name"):
        deprecated_parameter("third", **VERSIONS, instead="second=")(count)


def test_deprecated_class_warns_where_it_is_called_and_where_it_is_subclassed() -> None:
    with warned_lines() as lines:
        crate = Crate(3)

        class Small(Crate):
            """A small crate."""

        small = Small(1)
        bag = Bag(1, 2)
    assert (crate.size, small.size, bag, type(bag)) == (3, 1, (1, 2), Bag)
    assert isinstance(small, Crate)
    assert lines == [
        f"crate = Crate(3) -> Crate {GONE} Box instead",
        f"class Small(Crate): -> Crate {GONE} Box instead",
        f"bag = Bag(1, 2) -> Bag {GONE} Box instead",
    ]


def test_deprecated_class_keeps_its_own_hook_for_subclasses() -> None:
    prepared: list[tuple[str, str]] = []

    class Base:
        def __init_subclass__(cls, label: str = "none", **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            prepared.append((cls.__name__, label))

    deprecated(**VERSIONS, instead="Box")(Base)
    with warned_lines() as lines:

        class Child(Base, label="red"):
            pass

    assert prepared == [("Child", "red")]
    assert len(lines) == 1


def test_decorators_keep_the_signature_and_add_a_sentence_to_the_docstring() -> None:
    assert str(inspect.signature(count)) == "(first: 'int', second: 'int' = 2) -> 'int'"
    assert inspect.iscoroutinefunction(acount)
    assert not inspect.iscoroutinefunction(count)
    assert str(inspect.signature(Crate)) == "(size: 'int') -> 'None'"
    assert inspect.getdoc(count) == (
        "Add two numbers.\n\n"
        "Deprecated since 1.2: count() goes in 2.0; use total() instead.\n\n"
        "Args:\n    first: A number."
    )
    assert inspect.getdoc(Crate) == ("A crate.\n\nDeprecated since 1.2: Crate goes in 2.0; use Box instead.")
    assert "wide= of Box.resize() goes in 2.0" in str(Box.resize.__doc__)


def test_warning_is_shown_once_for_each_line() -> None:
    """This is what Python does by default for the code of an application."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", DeprecationWarning)
        for _ in range(3):
            count(1)
        count(1)
    assert len(caught) == 2
