"""Values and exceptions whose inspection raises, and jobs of every kind that return and raise them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NoReturn

from pg_scheduler import Abort, JobCancelledError, Retry, Snooze, current_job, job

MISTAKES: Final = (
    RuntimeError,
    KeyError,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    asyncio.CancelledError,
)
"""What an inspection raises."""


class Vanished(Exception):
    """What a detached object of a database session raises."""


def raising(kind: type[BaseException]) -> Callable[..., NoReturn]:
    def method(*_args: object, **_options: object) -> NoReturn:
        raise kind("inspected")

    return method


def overriding(base: type[Any], kind: type[BaseException], *names: str, **attributes: object) -> Any:
    """Return a class whose methods, or whose properties if their name begins with @, raise an exception."""
    method = raising(kind)
    members: dict[str, Any] = {
        name.removeprefix("@"): property(method) if name.startswith("@") else method for name in names
    }
    return type("Hostile", (base,), members | attributes)


class Meta(type):
    """A class that does not show its name, its module or its bases."""

    __getattribute__ = raising(Vanished)


class Changing(dict[str, str]):
    """A mapping that gives a text that PostgreSQL cannot store to all but its first reader."""

    def __init__(self) -> None:
        super().__init__(key="good")
        self._reads = 0

    def items(self) -> Any:
        self._reads += 1
        return {"key": "good" if self._reads == 1 else "bad \x00 \ud800"}.items()


class Text(str):
    """A text that is hostile wherever it is read."""

    __slots__ = ()
    __str__ = __repr__ = __format__ = __len__ = __getitem__ = raising(Vanished)
    encode = replace = isascii = isprintable = startswith = raising(Vanished)


VALUES: Final[dict[str, Callable[[type[BaseException]], object]]] = {
    "no class": lambda kind: overriding(object, kind, "@__class__")(),
    "no attributes": lambda kind: overriding(object, kind, "__getattr__", "__getattribute__")(),
    "lazy dict": lambda kind: overriding(dict, kind, "items", "keys", "__iter__", "__len__")(a=1),
    "lazy list": lambda kind: overriding(list, kind, "__iter__", "__len__")([1]),
    "key": lambda kind: {overriding(object, kind, "__repr__", "@__class__")(): 1},
    "text": lambda kind: overriding(str, kind, "isascii", "encode", "__len__", "__contains__")("é"),
    "int": lambda kind: overriding(int, kind, "bit_length", "__repr__", "__str__")(5),
    "float": lambda kind: overriding(float, kind, "__float__", "__repr__", "__str__")(1.5),
    "in a list": lambda kind: [1, [overriding(object, kind, "__repr__", "@__class__")()]],
    "meta": lambda _: Meta("Hidden", (), {})(),
    "changing": lambda _: Changing(),
}

ERRORS: Final[dict[str, Callable[[type[BaseException]], BaseException]]] = {
    "str": lambda kind: overriding(Exception, kind, "__str__", "__repr__")("no"),
    "text": lambda _: overriding(Exception, Vanished, __str__=lambda _: Text("mine"))("no"),
    "class": lambda kind: overriding(Exception, kind, "@__class__")("no"),
    "traceback": lambda kind: overriding(Exception, kind, "@__traceback__")("no"),
    "cause": lambda kind: overriding(Exception, kind, "@__cause__", "@__context__")("no"),
    "notes": lambda kind: overriding(Exception, kind, "@__notes__")("no"),
    "getattr": lambda kind: overriding(Exception, kind, "__getattr__")("no"),
    "getattribute": lambda kind: overriding(Exception, kind, "__getattribute__")("no"),
    "bool": lambda kind: overriding(Exception, kind, "__bool__", "__len__")("no"),
    "equality": lambda kind: overriding(Exception, kind, "__eq__", "__hash__")("no"),
    "base": lambda kind: overriding(BaseException, kind, "@__class__", "@__traceback__", "__str__")("no"),
    "attribute error": lambda kind: AttributeError("no", obj=overriding(object, kind, "__dir__")(), name="x"),
    "hidden cause": lambda kind: caused_by(overriding(Exception, kind, "__str__", "@__traceback__")("no")),
    "meta": lambda _: Meta("Hidden", (Exception,), {})("no"),
    "remote traceback": lambda kind: overriding(Exception, kind, "@remote_traceback")("no"),
    "abort": lambda kind: overriding(Abort, kind, "__str__", "@__class__", "@__cause__")("no"),
    "itself": lambda kind: kind("no"),
    "stop iteration": lambda _: StopIteration(1),
    "cancelled": lambda _: JobCancelledError("no"),
}


def caused_by(cause: BaseException) -> BaseException:
    error = ValueError("no")
    error.__cause__ = cause
    return error


def value_of(name: str, mistake: int) -> object:
    return VALUES[name](MISTAKES[mistake])


def error_of(name: str, mistake: int) -> BaseException:
    return ERRORS[name](MISTAKES[mistake])


@job(name="foreign.give", max_retries=0)
async def give(name: str, mistake: int) -> object:
    return value_of(name, mistake)


@job(name="foreign.give_later", max_retries=0)
async def give_later(name: str, mistake: int) -> object:
    await asyncio.sleep(0)
    return value_of(name, mistake)


@job(name="foreign.give_in_thread", max_retries=0)
def give_in_thread(name: str, mistake: int) -> object:
    return value_of(name, mistake)


@job(name="foreign.give_in_process", max_retries=0, executor="process")
def give_in_process(name: str, mistake: int) -> object:
    return value_of(name, mistake)


@job(name="foreign.fail", max_retries=0)
async def fail(name: str, mistake: int) -> None:
    raise error_of(name, mistake)


@job(name="foreign.fail_later", max_retries=0)
async def fail_later(name: str, mistake: int) -> None:
    await asyncio.sleep(0)
    raise error_of(name, mistake)


@job(name="foreign.fail_in_thread", max_retries=0)
def fail_in_thread(name: str, mistake: int) -> None:
    raise error_of(name, mistake)


@job(name="foreign.fail_in_process", max_retries=0, executor="process")
def fail_in_process(name: str, mistake: int) -> None:
    raise error_of(name, mistake)


@job(name="foreign.snooze")
async def snooze(mistake: int) -> None:
    raise overriding(Snooze, MISTAKES[mistake], "@delay", "__str__")(5)


@job(name="foreign.retry", max_retries=1)
async def retry(mistake: int) -> None:
    raise overriding(Retry, MISTAKES[mistake], "@delay", "@__cause__", "__str__")(5)


@job(name="foreign.report")
async def report() -> None:
    class Number(float):
        def __abs__(self) -> float:
            return 0.0

    current_job().progress(3, 4, Text("half"))
    current_job().progress(Number("inf"))


@job(name="foreign.neighbour")
async def neighbour(number: int) -> int:
    await asyncio.sleep(0)
    return number
