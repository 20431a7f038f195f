"""Store the error of a request to a model as JSON, and raise it again in another attempt of the job.

An agent may continue after such an error, for example with another model. A later attempt has to take the
same way, and the class of the error decides which one that is.
"""

from __future__ import annotations

import builtins
from typing import Any, TypedDict, cast

from pydantic import TypeAdapter
from pydantic_ai import exceptions
from pydantic_ai.exceptions import ModelHTTPError

from pg_scheduler.errors import StepFailedError

__all__ = ["StoredError", "error_from", "stored_error"]

_JSON = TypeAdapter[Any](Any)


class StoredError(TypedDict):
    """An error as a step stores it."""

    type: str
    """The name of its class, which is one of Python, of the library, or ``StepFailedError``."""
    is_http: bool
    """Whether it is also a ``ModelHTTPError``, whose category is the class of that name."""
    arguments: list[Any]
    """The arguments of its constructor."""
    state: dict[str, Any]
    """Its further attributes."""


def stored_error(error: Exception) -> StoredError | None:
    """Return an error as a step stores it; None if it cannot be rebuilt, as one of another library."""
    # What pickle would need: the class, the arguments, and perhaps further attributes.
    _, arguments, *states = cast("tuple[Any, ...]", error.__reduce__())[:3]
    state = states[0] if states and isinstance(states[0], dict) else {}
    stored: StoredError = {
        "type": type(error).__name__,
        "is_http": isinstance(error, ModelHTTPError),
        # An error of HTTP has its category among the arguments too.
        "arguments": [argument for argument in arguments if not isinstance(argument, type)],
        # What the library or Python has attached, such as notes, is no part of the error.
        "state": {name: value for name, value in state.items() if not name.startswith("_")},
    }
    stored = _JSON.dump_python(stored, mode="json", fallback=str)
    return stored if type(error_from(stored)) is type(error) else None


def error_from(stored: StoredError) -> Exception | None:
    """Return a stored error; None if it cannot be rebuilt, as after a change of its class."""
    places = (vars(exceptions), vars(builtins), {StepFailedError.__name__: StepFailedError})
    kind = next((place[stored["type"]] for place in places if stored["type"] in place), None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return None
    arguments = stored["arguments"]
    try:
        if stored["is_http"]:
            category = None if kind is ModelHTTPError else cast("Any", kind)
            status_code, model_name, body = arguments
            error: Exception = ModelHTTPError.for_category(
                category, status_code=status_code, model_name=model_name, body=body
            )
        else:
            error = kind(*arguments)
        if stored["state"]:
            error.__setstate__(stored["state"])
    except (TypeError, ValueError):
        return None
    return error
