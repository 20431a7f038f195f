"""Check that a function's signature can bind the arguments of a job, without calling it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pg_scheduler.jobs.model import JobFunction

MAX_SHAPES: Final = 100
"""Combinations of names that are remembered for one function."""


class Arity:
    """The arguments that a function accepts.

    Attributes:
        counts: The numbers of positional arguments that are enough without keyword arguments.
        accepted: The numbers that were enough together with keyword arguments, by the names of those.
        last: The names of the keyword arguments that were accepted last, and the number of the others. To
            compare a list is cheaper than a lookup.
        signature: The signature; None if the function has none that can be read.
    """

    __slots__ = ("_name", "accepted", "counts", "last", "signature")

    def __init__(self, func: JobFunction) -> None:
        self._name = func.__qualname__
        self.accepted: Final[dict[tuple[str, ...], set[int]]] = {}
        self.last: tuple[list[str], int] = ([], 0)
        self.signature: inspect.Signature | None
        try:
            # The call goes to a wrapper itself, whatever function it wraps.
            self.signature = inspect.signature(func, follow_wrapped=False)
        except (TypeError, ValueError):  # a __signature__ that is none
            self.signature = None
        self.counts: Final = _counts(self.signature)

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> None:
        """Raise TypeError unless the function accepts the arguments, and remember their number."""
        named = kwargs or {}
        try:
            if self.signature is not None:
                self.signature.bind(*args, **named)
        except TypeError as error:  # its text has names only, no values
            raise TypeError(
                f"{self._name}() cannot be called with the arguments of the job: {error}; "
                "pass args= and kwargs= that fit its signature"
            ) from None
        if len(self.accepted) < MAX_SHAPES:
            self.accepted.setdefault(tuple(named), set()).add(len(args))


def _counts(signature: inspect.Signature | None) -> range:
    if signature is None:
        return range(sys.maxsize)
    least = most = 0
    for each in signature.parameters.values():
        if each.kind is each.VAR_POSITIONAL:
            most = sys.maxsize - 1
        elif each.kind is each.KEYWORD_ONLY:
            if each.default is each.empty:
                return range(0)
        elif each.kind is not each.VAR_KEYWORD:
            most += 1
            least += each.default is each.empty
    return range(least, most + 1)
