"""Make public classes and functions name the package from which users import them."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def public(value: T) -> T:
    """Return a class or function after changing its module to ``pg_scheduler``.

    Tracebacks, documentation and pickles show this module, so the private one can change.
    """
    named: Any = value
    named.__module__ = "pg_scheduler"
    return value
