"""Read signatures and annotations without evaluating what the caller does not need.

Since Python 3.14 annotations are evaluated when they are read, and a module may name types there that it
imports for type checkers only. So every signature and annotation of user code is read here, in the format
that leaves undefined names as references. Only code that converts values evaluates them, by
``return_annotation()`` and ``type_hints()``.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, ForwardRef, get_type_hints

from pg_scheduler.base.foreign import message_of

UNDECLARED: Final = inspect.Signature.empty
"""Stands for the annotation of a function or a parameter that has none."""


class UnusableAnnotationError(Exception):
    """An annotation cannot be evaluated, or pydantic cannot make a validator of it. Its cause is the error.

    Attributes:
        has_undefined_name: Whether a name in it is not defined, such as one for type checkers only.
        code: The code of the error, if it is one of pydantic's that have a code; else None.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(message_of(cause))
        self.has_undefined_name = isinstance(cause, NameError)
        self.code: str | None = getattr(cause, "code", None)


@contextmanager
def using_annotations() -> Iterator[None]:
    """Raise UnusableAnnotationError for whatever the block raises, which evaluates or uses annotations.

    An annotation may be any expression, and its class may have methods that pydantic calls. So any exception
    may come, and only some of them are pydantic's own.
    """
    try:
        yield
    except UnusableAnnotationError:
        raise
    except Exception as error:
        raise UnusableAnnotationError(error) from error


if sys.version_info >= (3, 14) and not TYPE_CHECKING:
    from annotationlib import Format, get_annotations

    def signature_of(func: Callable[..., Any], *, follow_wrapped: bool = True) -> inspect.Signature:
        """Return the signature of a function, with undefined names of its annotations as references.

        Raises:
            TypeError: The object cannot be called.
            ValueError: Python cannot read the signature of the object.
        """
        return inspect.signature(func, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF)

    def annotations_of(value: Any) -> Mapping[str, Any]:
        """Return the annotations of a function, a class or another object that has some; else none."""
        try:
            return get_annotations(value, format=Format.FORWARDREF)
        except TypeError:
            return getattr(value, "__annotations__", {})

else:

    def signature_of(func: Callable[..., Any], *, follow_wrapped: bool = True) -> inspect.Signature:
        """Return the signature of a function.

        Raises:
            TypeError: The object cannot be called.
            ValueError: Python cannot read the signature of the object.
        """
        return inspect.signature(func, follow_wrapped=follow_wrapped)

    def annotations_of(value: Any) -> Mapping[str, Any]:
        """Return the annotations of a function, a class or another object that has some; else none."""
        return getattr(value, "__annotations__", {})


def text_of(annotation: object) -> str | None:
    """Return the source of an annotation that is not evaluated; None for an evaluated one."""
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else None


def return_annotation(func: Any) -> Any:
    """Return the evaluated return annotation of a function; UNDECLARED without one.

    The annotations of the parameters are not evaluated, so they may have undefined names.

    Raises:
        UnusableAnnotationError: It cannot be evaluated.
    """
    annotations = annotations_of(func)
    if "return" not in annotations:
        return UNDECLARED
    return type_hints(func, {"return": annotations["return"]})["return"]


def type_hints(func: Any, annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return annotations of a function, evaluated in its namespace.

    Raises:
        UnusableAnnotationError: One cannot be evaluated.
    """
    # get_type_hints() evaluates all annotations of an object, so it gets an object with these only.
    holder = SimpleNamespace(__annotations__=dict(annotations))
    namespace = getattr(inspect.unwrap(func), "__globals__", {})
    with using_annotations():
        return get_type_hints(holder, namespace, include_extras=True)


def class_hints(kind: Any, *, include_extras: bool) -> dict[str, Any]:
    """Return the annotations of a class and its bases, evaluated where each of them is defined.

    ``include_extras`` is whether types keep what ``Annotated`` adds to them.

    Raises:
        UnusableAnnotationError: One cannot be evaluated.
    """
    with using_annotations():
        return get_type_hints(kind, include_extras=include_extras)


def unwrapped(func: Any) -> Any:
    """Return the function behind a partial, a method, a decorator or an object that is called."""
    func = inspect.unwrap(func)
    if isinstance(func, functools.partial):
        return unwrapped(func.func)
    if inspect.isroutine(func) or isinstance(func, type):
        return func
    # Any other object is called by the method ``__call__()`` of its class.
    return inspect.unwrap(getattr(type(func), "__call__", func))  # noqa: B004 - not whether, but what is called
