"""Parameters that middleware passes, and the row of a job does not."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar, get_origin

from pg_scheduler.base.annotations import signature_of, text_of
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.model import JobFunction

T = TypeVar("T")

MARKER: Final = "pg_scheduler.Injected"

NAMED: Final = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)

Injected: TypeAlias = Annotated[T, MARKER]
"""The type of a parameter that middleware passes, such as ``session: Injected[Session]``. It is no argument
of the job: calls leave it out, and `@job(typed=True)` does not validate it."""


def own_signature(func: JobFunction) -> inspect.Signature:
    """Return the signature of a function without its injected parameters.

    A decorated function has the signature of its wrapper, because a call reaches the wrapper first.

    Raises:
        ConfigurationError: An injected parameter is positional-only, or precedes a parameter that a job can
            give by its position.
        TypeError: Python cannot read a signature of the function.
        ValueError: Python cannot read a signature of the function.
    """
    signature = signature_of(func, follow_wrapped=False)
    parameters = list(signature.parameters.values())
    injected = [parameter for parameter in parameters if _is_injected(parameter.annotation, func)]
    if not injected:
        return signature
    first = injected[0]
    own_parameters = [parameter for parameter in parameters if parameter not in injected]
    # A job that gave a later parameter by its position would have to give the injected one before it too.
    later_parameters = [
        parameter for parameter in parameters[parameters.index(first) :] if parameter not in injected
    ]
    is_before_positional = any(parameter.kind not in NAMED for parameter in later_parameters)
    if first.kind is first.POSITIONAL_ONLY or is_before_positional:
        raise ConfigurationError(
            f"parameter {first.name!r} of {func.__qualname__}() is Injected, so jobs cannot give a parameter "
            f"by its position after it; make it keyword-only: (..., *, {first.name}: Injected[...])"
        )
    return signature.replace(parameters=own_parameters)


def accepts_anything(signature: inspect.Signature) -> bool:
    """Return whether a signature is ``(*args, **kwargs)``, as of the wrapper that a decorator makes."""
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def wrapped_signature(func: JobFunction, signature: inspect.Signature) -> inspect.Signature:
    """Return the signature that shows which names the arguments of a function have.

    That is its own signature, unless the function is the wrapper of a decorator that accepts anything. Then
    it is the signature of the function below the wrapper. It does not show which arguments are valid, because
    the wrapper may pass further ones.

    Args:
        func: The function.
        signature: Its own signature.
    """
    inner = getattr(func, "__wrapped__", None)
    while accepts_anything(signature) and callable(inner):
        try:
            signature = own_signature(inner)
        # Without a signature of the function below, that of the wrapper stays.
        except (TypeError, ValueError):
            break
        inner = getattr(inner, "__wrapped__", None)
    return signature


def _is_injected(annotation: object, func: JobFunction) -> bool:
    """Return whether an annotation is ``Injected[T]``. The type T need not exist yet."""
    # An annotation may be a text that is not evaluated, as in a module that defers its annotations.
    text = text_of(annotation)
    if text is not None:
        if "[" not in text:
            return False
        # The text is parsed and not evaluated, because names in T may be undefined.
        try:
            node = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            return False
        namespace: Mapping[str, Any] = getattr(inspect.unwrap(func), "__globals__", {})
        return isinstance(node, ast.Subscript) and value_of(node.value, namespace) is Injected
    return get_origin(annotation) is Annotated and MARKER in annotation.__metadata__  # type: ignore[attr-defined]


def value_of(node: ast.expr, namespace: Mapping[str, Any]) -> object:
    """Return the value of a name, or of an attribute such as ``module.Injected``.

    It is None for an unknown name, and for any other expression, which would have to be evaluated.
    """
    match node:
        case ast.Name(id=name):
            return namespace.get(name)
        case ast.Attribute(value=owner, attr=name):
            return getattr(value_of(owner, namespace), name, None)
    return None
