"""The author of a change, for the audit."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

MAX_RELEASE_LENGTH: Final = 200


class Author(NamedTuple):
    """The author of a change.

    Attributes:
        actor: The person or the Scheduler.
        via: The way: ``api``, ``code``, ``cli``, ``dashboard`` or ``inspector``.
        release: The release of the application.
    """

    actor: str
    via: str = "api"
    release: str | None = None

    def values(self, via: str | None = None, **details: Any) -> tuple[str, str, str]:
        """Return the parameters of a statement that writes a record: actor, way and details as JSON."""
        about = {"host": platform.node(), **({} if self.release is None else {"release": self.release})}
        return self.actor, via or self.via, json.dumps({**about, **details})


def release_of(metadata: Mapping[str, Any] | None) -> str | None:
    """Return the release of the application that the metadata of a Scheduler name."""
    release = (metadata or {}).get("release")
    return release[:MAX_RELEASE_LENGTH] if isinstance(release, str) and release else None


_acting: ContextVar[Author | None] = ContextVar("pg_scheduler_author", default=None)


@contextmanager
def acting_as(author: Author) -> Iterator[None]:
    """Make this author responsible for the changes that are made within."""
    token = _acting.set(author)
    try:
        yield
    finally:
        _acting.reset(token)


def current_author() -> Author | None:
    """Return the author of the caller's context; None for the Scheduler itself."""
    return _acting.get()
