"""Validate values as types, by pydantic."""

from __future__ import annotations

import functools
import json
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError


def validated(kind: Any, plain: Any) -> Any:
    """Return a value of JSON as a type.

    Raises:
        PydanticUserError: pydantic does not support the type, or a name in it is not defined.
        ValidationError: The value does not fit it.
    """
    adapter = adapter_of(kind)
    return plain if adapter is None else adapter.validate_json(json.dumps(plain))


def adapter_of(annotation: Any) -> TypeAdapter[Any] | None:
    """Return what validates an annotation; None for Any, which every value fits.

    Raises:
        PydanticUserError: pydantic does not support it, or a name in it is not defined.
    """
    try:
        text = repr(annotation)
    except Exception:  # noqa: BLE001 - repr() of metadata of the application
        return _new_adapter(annotation)
    try:
        return _cached_adapter(annotation, text)
    except TypeError:  # an annotation that cannot be hashed
        return _new_adapter(annotation)


def _new_adapter(annotation: Any) -> TypeAdapter[Any] | None:
    if annotation is Any:
        return None
    try:
        adapter = _adapter(annotation)
        # Since 2.10, pydantic reports undefined names at the first value only. This reports them now.
        if not getattr(adapter, "pydantic_complete", True):
            adapter.rebuild()
    except PydanticUndefinedAnnotation as error:
        raise PydanticUserError(error.message, code=error.code) from error
    return adapter


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=ConfigDict(hide_input_in_errors=True))
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":  # a model has a configuration of its own
            raise
        return TypeAdapter(annotation)


@functools.lru_cache(maxsize=1000)
def _cached_adapter(annotation: Any, _text: str) -> TypeAdapter[Any] | None:
    """Return what validates an annotation with this text.

    A union equals one of the same types in another order. But of several types that a value fits, pydantic
    chooses the first one, so each order has an adapter of its own.
    """
    return _new_adapter(annotation)
