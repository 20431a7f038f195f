"""Arguments as fields of a form: one for each parameter of a task that a worker reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.dashboard.texts import visible
from pg_scheduler.jobs.worker_report import Parameter

FIELD: Final = "arg."


class FieldError(ValueError):
    """A field of a form is wrong.

    Attributes:
        field: Its name.
    """

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def read_fields(
    fields: Mapping[str, str], parameters: Sequence[Parameter], json_arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments that were entered in fields. An empty field leaves its parameter out.

    Args:
        fields: The texts of the fields.
        parameters: The parameters of the task.
        json_arguments: Arguments that were entered as JSON.

    Raises:
        FieldError: A required argument is missing, an argument was entered both in its field and as JSON, or
            a field belongs to no parameter of the task, as after the user has chosen another task.
    """
    texts = {name.removeprefix(FIELD): text for name, text in fields.items() if text}
    for name, is_required in parameters:
        if name in texts and name in json_arguments:
            raise FieldError(FIELD + name, "it is among the other arguments too; remove one of them")
        if is_required and name not in texts and name not in json_arguments:
            raise FieldError(FIELD + name, "enter a value")
    parameter_names = {parameter.name for parameter in parameters}
    if unknown_names := [name for name in texts if name not in parameter_names]:
        text = f"no live worker reports that the task has the parameter {unknown_names[0][:100]!r}"
        raise FieldError("kwargs", text)
    return {name: value_of(text) for name, text in texts.items()}


def value_of(text: str) -> Any:
    """Return the value of a text that is JSON; else the text itself."""
    try:
        return load_json(text, parse_constant=_reject)
    except ValueError:
        return text


def text_of(value: Any) -> str:
    """Return what a field of a form shows for a value: JSON, or the text itself if it can be sent back."""
    if isinstance(value, str) and _can_be_entered(value):
        return value
    return json_of(value)


def _can_be_entered(text: str) -> bool:
    """Return whether a field sends this text back as it is, and `value_of()` returns the same text.

    The text ``7`` is an example of one that does not: it would return as a number.
    """
    has_blank_ends = text != text.strip()
    is_shown = text.isprintable() and visible(text) == text
    return text != "" and not has_blank_ends and is_shown and value_of(text) == text


def json_of(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON that a page shows without escapes of its own, so that a form can send it again.

    Raises:
        TypeError: JSON has no such value: a codec has decoded arguments to other types.
        ValueError: The value contains itself.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return text if visible(text) == text else json.dumps(value, indent=indent)


def fields_of(kwargs: Mapping[str, Any], parameters: Sequence[Parameter]) -> tuple[dict[str, str], str]:
    """Return the texts of the fields for keyword arguments, and the arguments without a field as JSON.

    An argument has a field if a worker reports a parameter of its name. Without other arguments, the second
    text is empty.

    Raises:
        TypeError: JSON has no such value; see `json_of()`.
        ValueError: A value contains itself.
    """
    names = {parameter.name for parameter in parameters}
    other_arguments = {name: value for name, value in kwargs.items() if name not in names}
    fields = {FIELD + name: text_of(value) for name, value in kwargs.items() if name in names}
    return fields, json_of(other_arguments, 2) if other_arguments else ""


def _reject(name: str) -> None:
    """Reject NaN and Infinity, which the parser of Python accepts although they are not JSON."""
    raise ValueError(f"{name} is not JSON")
