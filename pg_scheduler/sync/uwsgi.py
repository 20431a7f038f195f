"""Detect a uWSGI server that runs no threads."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from pg_scheduler.errors import ConfigurationError


def check_uwsgi_threads() -> None:
    """Raise ConfigurationError under a uWSGI that suspends threads while no request is handled."""
    try:
        uwsgi = importlib.import_module("uwsgi")  # it exists inside of the server only
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
    return value is not None and _text(value).lower() not in {"false", "0", "no", "off"}


def _count(value: object) -> int:
    return int(_text(value)) if value is not None and _text(value).isdecimal() else 0
