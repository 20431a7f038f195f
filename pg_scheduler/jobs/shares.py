"""Shares: the tenants of a task take turns, however many jobs one of them has.

The process that schedules a job computes its key and inserts it with ``blocked_on = 'share:<name>:<key>'``,
so the index of blocked jobs has a queue for each tenant. The feeders of workers move jobs from there to the
claim index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pg_scheduler.base.public import public
from pg_scheduler.jobs.keys import (
    KeyFunction,
    check_key_function,
    check_key_name,
    key_text,
    name_and_key,
    named_prefix,
)
from pg_scheduler.jobs.payload import decode

BLOCKED_BY_SHARE: Final = "share:"
"""How ``blocked_on`` begins in a job that waits for its turn. It sorts after the text of every limit."""


@public
@dataclass(frozen=True, slots=True)
class Share:
    """A share of the slots for each tenant: they take turns instead of starting in the order of time.

    Args:
        name: The name of the share, of at most 200 bytes and without a colon. The tenants of tasks whose
            shares have the same name take turns together. The name of the task when None.
        key: A function that is called with the arguments of the job and returns its tenant, a str or an int
            of at most 200 bytes. It must be fast and must not block, because each call that schedules a job
            calls it.

    Raises:
        ConfigurationError: The name is empty, too long or contains a colon; a ValueError.
        TypeError: A value has the wrong type.

    Example:
        >>> from pg_scheduler import Share, job
        >>> @job(share=Share(key=lambda tenant, **_: tenant))
        ... async def export(tenant: str, table: str) -> None: ...
    """

    name: str | None = None
    key: KeyFunction = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.name is not None:
            check_key_name("Share", self.name, "exports")
        check_key_function(self.key, "tenant")


def check_share(share: object) -> Share:
    """Return the share.

    Raises:
        TypeError: It is not a Share.
    """
    if not isinstance(share, Share):
        raise TypeError(
            f"share must be a Share, not {type(share).__name__}: {share!r}; "
            "write share=Share(key=lambda tenant, **_: tenant)"
        )
    return share


def share_prefix(share: Share, task_name: str) -> str:
    """Return the part of ``share:<name>:<key>`` before the key."""
    return named_prefix(BLOCKED_BY_SHARE, share.name or task_name)


def share_key(share: Share, task_name: str, arguments: str) -> str:
    """Return the text ``share:<name>:<key>`` of a job, for its ``blocked_on``.

    Args:
        share: The share.
        task_name: The name of the task.
        arguments: The arguments of the job as JSON, not encoded by a codec.

    Raises:
        KeyFunctionError: The key function raised, or returned something else than a short str or int.
    """
    args, kwargs = decode(arguments)
    owner = f"share {share.name or task_name!r}"
    return share_prefix(share, task_name) + key_text(share.key, owner, args, kwargs)


def share_of(blocked_on: str | None) -> tuple[str, str]:
    """Return the name and the key of the share in which a job waits; empty texts if it waits in none."""
    return name_and_key(BLOCKED_BY_SHARE, blocked_on)
