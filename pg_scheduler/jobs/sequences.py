"""Sequences: the jobs of one key run one after the other, in their order.

The process that schedules a job computes its key and inserts it with ``blocked_on =
'zsequence:<name>:<key>'``, so the index of blocked jobs has a queue for each key. The first job of a key is
its head, which alone may start. ``admission/sequences.py`` makes a job the head when the one before has
ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pg_scheduler.base.public import public
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.keys import (
    KeyFunction,
    check_key_function,
    check_key_name,
    key_text,
    name_and_key,
    named_prefix,
)
from pg_scheduler.jobs.payload import decode, object_from

BLOCKED_BY_SEQUENCE: Final = "zsequence:"
"""How ``blocked_on`` begins in a job that waits for its place in a sequence.

In any collation it sorts after ``z``, which is where the scans of limits and shares end. So nodes of earlier
releases, which do not know sequences, never unblock such a job.
"""

SEQUENCE: Final = "sequence"
"""The key of the options of a job that is in a sequence, and of its consequences."""

_PLACE: Final = f'"{SEQUENCE}": {{"key": "{BLOCKED_BY_SEQUENCE}'
"""How the database writes the beginning of such a place: shorter keys of an object come first."""

AfterFailure: TypeAlias = Literal["stop", "skip"]

AFTER_FAILURE: Final = ("stop", "skip")


@public
@dataclass(frozen=True, slots=True)
class Sequence:
    """Jobs with the same key run one after the other, in the order of their due times, then of their ids.

    The next job starts when the one before has ended, however often that was retried, snoozed or suspended.
    Jobs with different keys do not wait for one another.

    Args:
        name: The name of the sequence, of at most 200 bytes and without a colon. The jobs of tasks whose
            sequences have the same name and key run one after the other. The name of the task when None.
        key: A function that is called with the arguments of the job, as JSON has them, and returns its key, a
            str or an int of at most 200 bytes. It must be fast and must not block, because each call that
            schedules a job calls it. A codec does not encrypt the key.
        on_failure: What happens behind a job that has failed finally or expired. With "stop", the jobs behind
            it wait until an operator retries it, or lets the sequence continue behind it. With "skip", the
            next job starts. A job keeps the rule with which it was scheduled.

    Raises:
        ConfigurationError: The name is empty, too long or contains a colon, or ``on_failure`` is neither
            "stop" nor "skip"; a ValueError.
        TypeError: A value has the wrong type.

    Example:
        >>> from pg_scheduler import Sequence, job
        >>> @job(sequence=Sequence("accounts", key=lambda account, **_: account, on_failure="skip"))
        ... async def book(account: str, amount: int) -> None: ...
    """

    name: str | None = None
    key: KeyFunction = field(kw_only=True)
    on_failure: AfterFailure = field(default="stop", kw_only=True)

    def __post_init__(self) -> None:
        if self.name is not None:
            check_key_name("Sequence", self.name, "accounts")
        check_key_function(self.key, "account")
        if self.on_failure not in AFTER_FAILURE:
            raise ConfigurationError(
                f"on_failure of a Sequence must be 'stop' or 'skip', not {self.on_failure!r}; write 'stop' "
                "if later jobs depend on the earlier ones"
            )


def check_sequence(sequence: object) -> Sequence:
    """Return the sequence; that of a key function alone has the defaults.

    Raises:
        TypeError: It is neither a Sequence nor a function.
    """
    if isinstance(sequence, Sequence):
        return sequence
    if callable(sequence):
        return Sequence(key=sequence)
    raise TypeError(
        f"sequence must be a function or a Sequence, not {type(sequence).__name__}: {sequence!r}; "
        "write sequence=lambda account, **_: account"
    )


def sequence_place(sequence: Sequence, task_name: str, arguments: str) -> dict[str, Any]:
    """Return the place of a job in its sequence, as its options store it.

    Args:
        sequence: The sequence.
        task_name: The name of the task.
        arguments: The arguments of the job as JSON, not encoded by a codec.

    Raises:
        KeyFunctionError: The key function raised, or returned something else than a short str or int.
    """
    args, kwargs = decode(arguments)
    name = sequence.name or task_name
    key = key_text(sequence.key, f"sequence {name!r}", args, kwargs)
    return {"key": sequence_prefix(name) + key, "on_failure": sequence.on_failure}


def sequence_prefix(name: str) -> str:
    """Return the part of ``zsequence:<name>:<key>`` before the key."""
    return named_prefix(BLOCKED_BY_SEQUENCE, name)


def sequence_of(blocked_on: str | None) -> tuple[str, str]:
    """Return the name and the key of the sequence in which a job waits; empty texts if it waits in none."""
    return name_and_key(BLOCKED_BY_SEQUENCE, blocked_on)


def sequence_key_of(options: str | None) -> str | None:
    """Return the sequence of a job from its options, as in the ``blocked_on`` of a job that waits for it."""
    if options is None or not has_place(options):
        return None
    place = object_from(options).get(SEQUENCE)
    return place.get("key") if isinstance(place, dict) else None


def has_place(options: str) -> bool:
    """Return whether the options of a claim seem to be those of a job in a sequence, without parsing them.

    It only chooses the statement that writes the completion. Each of them refuses jobs of the other kind,
    which a third one writes then. So a text that people have written by hand costs time, and does no harm.
    """
    return _PLACE in options
