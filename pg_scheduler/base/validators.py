"""Validate values as types, by pydantic."""

from __future__ import annotations

import functools
import json
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticUserError

from pg_scheduler.base.annotations import using_annotations

ANY: Final[TypeAdapter[Any]] = TypeAdapter(Any)
"""What validates a value that may have any type."""


def validated(kind: Any, plain: Any) -> Any:
    """Return a value that was read from JSON, converted to a type.

    Raises:
        UnusableAnnotationError: pydantic does not support the type, or a name in it is not defined.
        ValidationError: The value does not fit it.
    """
    adapter = adapter_of(kind)
    # pydantic has a mode for JSON, in which even a strict model accepts a str as a datetime, for example.
    return plain if adapter is None else adapter.validate_json(json.dumps(plain))


def adapter_of(annotation: Any) -> TypeAdapter[Any] | None:
    """Return what validates an annotation; None for Any, which every value fits.

    Raises:
        UnusableAnnotationError: pydantic does not support it, or a name in it is not defined.
    """
    # The text distinguishes unions in the cache; see _cached_adapter().
    try:
        text = repr(annotation)
    except Exception:  # noqa: BLE001 - repr() of metadata of the application
        return new_adapter(annotation)
    try:
        return _cached_adapter(annotation, text)
    except TypeError:  # an annotation that cannot be hashed
        return new_adapter(annotation)


def new_adapter(annotation: Any) -> TypeAdapter[Any] | None:
    """Make what validates an annotation, or the calls of a function; see ``adapter_of()``."""
    if annotation is Any:
        return None
    with using_annotations():
        adapter = _adapter(annotation)
        # Since 2.10, pydantic reports undefined names at the first value only. This reports them now.
        if not getattr(adapter, "pydantic_complete", True):
            adapter.rebuild()
    return adapter


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    """Make an adapter whose errors hide the values, unless a model has its own configuration."""
    try:
        return TypeAdapter(annotation, config=ConfigDict(hide_input_in_errors=True))
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":  # a model has a configuration of its own
            raise
        return TypeAdapter(annotation)


@functools.lru_cache(maxsize=1000)
def _cached_adapter(annotation: Any, _text: str) -> TypeAdapter[Any] | None:
    """Return what validates an annotation with this text.

    The text is a part of the key of the cache, because a union equals one of the same types in another order.
    But if a value fits several of them, pydantic may choose the first, so each order needs its own adapter.
    """
    return new_adapter(annotation)
