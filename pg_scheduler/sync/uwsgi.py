"""Detect a uWSGI server that runs no threads."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from pg_scheduler.errors import ConfigurationError


def check_uwsgi_threads() -> None:
    """Raise ConfigurationError under a uWSGI that suspends threads while no request is handled."""
    try:
        # This module exists in processes of a uWSGI server only.
        uwsgi = importlib.import_module("uwsgi")
    except ImportError:
        return
    options: Mapping[str, Any] = getattr(uwsgi, "opt", {})
    # With several threads for requests, uWSGI enables threads by itself.
    if not _is_on(options.get("enable-threads")) and _count(options.get("threads")) < 2:
        raise ConfigurationError(
            "uWSGI runs without threads, so the thread of the SyncScheduler would not run; start uWSGI with "
            "--enable-threads (enable-threads = true in its ini file)"
        )


def _text(value: object) -> str:
    """Return the value of an option as text: uWSGI has bytes, or True for an option without a value."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_on(value: object) -> bool:
    """Return whether an option of uWSGI is given, and not with a value that turns it off."""
    return value is not None and _text(value).lower() not in {"false", "0", "no", "off"}


def _count(value: object) -> int:
    """Return the number that an option of uWSGI has; 0 if it is not given or has no number."""
    if value is None or not _text(value).isdecimal():
        return 0
    return int(_text(value))
