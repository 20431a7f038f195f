"""Deprecate public names and parameters: they work as before, and warn those who use them.

``deprecated()`` is for functions, methods and classes, ``deprecated_parameter()`` for parameters. Both state
since which version the name is deprecated, in which it goes, and what to write instead. The warning and the
docstring have all three. The rules for the versions are in docs/project/stability.md, and a test holds every
use in the package to them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T", bound=Callable[..., Any])

WARNED_FRAME: Final = 3
"""The stack level of the code that uses a name: that of ``warn()`` is 1, and that of its caller here is 2."""


class Deprecation(NamedTuple):
    """What is deprecated.

    Attributes:
        what: The name, as a warning shows it.
        since: The minor version that warns first, such as "1.2".
        removal: The version in which the name goes, such as "2.0".
        instead: What to write instead.
    """

    what: str
    since: str
    removal: str
    instead: str

    @property
    def sentence(self) -> str:
        """The sentence of the docstring."""
        return (
            f"Deprecated since {self.since}: {self.what} goes in {self.removal}; use {self.instead} instead."
        )

    def warn(self) -> None:
        """Warn the code that has called the caller of this method.

        Python itself shows a warning once for each line of code that uses the name.
        """
        warnings.warn(
            f"{self.what} is deprecated since pg_scheduler {self.since} and goes in {self.removal}; use "
            f"{self.instead} instead",
            DeprecationWarning,
            stacklevel=WARNED_FRAME,
        )


def deprecated(*, since: str, removal: str, instead: str) -> Callable[[T], T]:
    """Return a decorator that deprecates a function, a method or a class.

    A deprecated class warns where it is called or subclassed. Below ``@classmethod``, ``@staticmethod`` or
    ``@property``, the decorator comes first::

        @classmethod
        @deprecated(since="1.2", removal="2.0", instead="connect()")
        def from_url(cls, url: str) -> Self: ...

    Args:
        since: The minor version that warns first.
        removal: The version in which the name goes.
        instead: What to write instead, such as ``connect()``.
    """

    def decorate(target: T) -> T:
        """Deprecate a function or a class."""
        if isinstance(target, type):
            _warn_of_class(target, Deprecation(target.__qualname__, since, removal, instead))
            return target
        deprecation = Deprecation(f"{target.__qualname__}()", since, removal, instead)
        return _warning(target, deprecation, lambda _args, _kwargs: True)

    return decorate


def deprecated_parameter(name: str, *, since: str, removal: str, instead: str) -> Callable[[T], T]:
    """Return a decorator that deprecates a parameter of a function or a method.

    A call that passes the parameter warns, whatever the value is, and the function gets the value as before.

    Args:
        name: The parameter.
        since: The minor version that warns first.
        removal: The version in which the parameter goes.
        instead: What to pass instead, such as ``timeout=``.
    """

    def decorate(target: T) -> T:
        """Deprecate the parameter of a function."""
        parameters = inspect.signature(target).parameters
        if name not in parameters:
            raise ValueError(f"{target.__qualname__}() has no parameter {name!r}; correct the name")
        # A keyword-only parameter has no place.
        is_positional = parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
        place = [*parameters].index(name) if is_positional else sys.maxsize
        deprecation = Deprecation(f"{name}= of {target.__qualname__}()", since, removal, instead)
        return _warning(target, deprecation, lambda args, kwargs: name in kwargs or len(args) > place)

    return decorate


def _warning(
    target: T, deprecation: Deprecation, uses: Callable[[tuple[Any, ...], dict[str, Any]], bool]
) -> T:
    """Return a function that does the same and warns, if a call uses what is deprecated.

    A coroutine function warns when it is called, because only then its caller is known: a task may await it.
    """

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        """Warn, and call the function."""
        if uses(args, kwargs):
            deprecation.warn()
        return target(*args, **kwargs)

    function: Callable[..., Any] = call
    if inspect.iscoroutinefunction(target):
        if sys.version_info >= (3, 12):
            function = inspect.markcoroutinefunction(call)
        else:
            # Python 3.11 cannot mark a function, so this one warns when its coroutine begins. If a task runs
            # the coroutine, the caller is not known any more, and the warning is about the event loop.
            @functools.wraps(target)
            async def await_call(*args: Any, **kwargs: Any) -> Any:
                """Warn, and await the function."""
                if uses(args, kwargs):
                    deprecation.warn()
                return await target(*args, **kwargs)

            function = await_call
    function.__doc__ = with_sentence(target.__doc__, deprecation.sentence)
    return function  # type: ignore[return-value] # it has the signature of the target


def _warn_of_class(target: type, deprecation: Deprecation) -> None:
    """Let a class warn where it is called or subclassed. Objects of subclasses do not warn again."""
    construct: Callable[..., None] = target.__init__  # type: ignore[misc]
    takes_nothing = construct is object.__init__

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        """Warn, and construct the object."""
        if type(self) is target:
            deprecation.warn()
        # If only ``__new__`` takes arguments, object.__init__() would refuse them here.
        if takes_nothing:
            construct(self)
        else:
            construct(self, *args, **kwargs)

    def init_subclass(cls: type, **kwargs: Any) -> None:
        """Warn, and prepare the subclass."""
        deprecation.warn()
        super(target, cls).__init_subclass__(**kwargs)  # type: ignore[arg-type] # the class is a subclass

    # Python makes a function of this name a class method only in the body of a class.
    own_hook = target.__dict__.get("__init_subclass__")
    if own_hook is None:
        target.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment, arg-type]
    else:
        target.__init_subclass__ = classmethod(  # type: ignore[assignment]
            _warning(own_hook.__func__, deprecation, lambda _args, _kwargs: True)
        )
    target.__init__ = init  # type: ignore[misc]
    target.__doc__ = with_sentence(target.__doc__, deprecation.sentence)


def with_sentence(docstring: str | None, sentence: str) -> str:
    """Return a docstring with a sentence as its second paragraph."""
    summary, _, remainder = inspect.cleandoc(docstring or "").partition("\n\n")
    return "\n\n".join(filter(None, [summary, sentence, remainder]))
