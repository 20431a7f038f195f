"""Errors that contain the id and the error of another job.

The library raises such errors where a job waits for another one, such as a child. A person who may see only
jobs of some names sees the class of such an error only, and cannot search its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pg_scheduler.errors import JobConflictError, JobEndedError
from pg_scheduler.inspect.search.terms import Pattern, TextField, TextTerm


def _class_names(kind: type[Exception]) -> Iterator[str]:
    """Yield the name of a class of errors and, recursively, those of its subclasses."""
    yield kind.__name__
    for subclass in kind.__subclasses__():
        yield from _class_names(subclass)


CLASS_NAMES: Final = tuple(sorted({*_class_names(JobEndedError), *_class_names(JobConflictError)}))
"""The names of the classes of these errors. The text of an error in a row contains the name of its class."""

_CLASS: Final = re.compile(rf"\b(?:{'|'.join(CLASS_NAMES)})\b")

OWN_ERRORS: Final = TextTerm(
    TextField.ERROR, tuple(Pattern(f"%{name}%", None) for name in CLASS_NAMES), is_negated=True
)
"""The term that excludes jobs whose error contains something of another job."""


def error_about_other_job(text: str | None) -> str | None:
    """Return the class of an error that contains something of another job; None if it is another error.

    Example:
        >>> error_about_other_job("JobFailedError: job 'order:7:label' failed: OSError: no paper")
        'JobFailedError'
        >>> error_about_other_job("ValueError: no paper") is None
        True
    """
    match = _CLASS.search(text or "")
    return None if match is None else match[0]
