"""A function with the arguments of a job, as one value that type checkers understand."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A function and its arguments, made by ``call()``. Its type parameter is what the function returns."""

    func: Callable[..., Any]
    """The function."""
    args: tuple[Any, ...]
    """The positional arguments."""
    kwargs: Mapping[str, Any]
    """The keyword arguments."""


@overload
def call(func: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
@overload
def call(func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
def call(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call[Any]:
    """Return a function and its arguments as one value, instead of ``args=`` and ``kwargs=``.

    It is accepted wherever a function is. So mypy and pyright check the arguments of a job as those of a
    direct call. Nothing is called.

    Args:
        func: The function to run.
        args: Its positional arguments, that JSON can represent.
        kwargs: Its keyword arguments, that JSON can represent.

    Example:
        >>> from pg_scheduler import call
        >>> async def send(to: str, *, copies: int = 1) -> None: ...
        >>> call(send, "ada@example.org", copies=2).args
        ('ada@example.org',)
    """
    return Call(func, args, kwargs)
