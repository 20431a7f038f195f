"""The steps that rows store, and the conversion of their values to JSON and back."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pg_scheduler.base.annotations import (
    UNDECLARED,
    UnusableAnnotationError,
    return_annotation,
    unwrapped,
)
from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.errors import ConfigurationError, PayloadError
from pg_scheduler.jobs.codec import PayloadCodec, decode_value, is_encoded
from pg_scheduler.jobs.payload import encode_value, object_from, value_from
from pg_scheduler.jobs.result import check_value_size, encoded_value
from pg_scheduler.jobs.retry import Abort
from pg_scheduler.jobs.validation import check_text

if TYPE_CHECKING:
    import pydantic

    from pg_scheduler.jobs import values as typed_values
else:
    pydantic = LazyModule("pydantic")
    typed_values = LazyModule("pg_scheduler.jobs.values")


MARK: Final = "steps"
"""The key in the ``options`` of a job that marks it. Without the mark, stored steps of its id do not count.

Its value is the version of the task when the job stored its first step; 0 while only other jobs or callers
have stored anything for the job.
"""

DEFINITION: Final = "definition"
"""The key in the ``options`` of a marked job that distinguishes this definition from others with its id."""

CHILD_OF: Final = "child_of"
"""The key in the ``options`` of a child that names its parent."""

DETACHED: Final = "detached"
"""The key in the ``options`` of a child that continues if its parent is cancelled with its children.

It is not a part of the value of ``CHILD_OF``, which nodes of earlier releases compare as a whole.
"""

MAX_NAME_BYTES: Final = 200
RESERVED_NAME: Final = re.compile("(?:result|child|again|next):[0-9a-f]{64}")
"""The names of results that were passed to a job."""
MAX_DIGITS: Final = 4
"""Digits of the number of a message in the name of its row."""
MESSAGE_NAME: Final = re.compile(r"\x01mail:([0-9]{4}):(.+)", re.DOTALL)
"""The names of signals that are messages of a mailbox: with the number of the message and the mailbox."""
MAX_STEPS: Final = 1000
"""Steps that one job may store. As many signals to it may come before it waits for them."""
MAX_STEP_BYTES: Final = 64 * 2**20
"""Bytes of JSON that the values of all steps of one job may have together. The same limit applies to the
signals that come before the job waits for them."""

STEP: Final = "step"
CURSOR: Final = "cursor"
SLEEP: Final = "sleep"
SIGNAL: Final = "signal"
CHILD: Final = "child"
FIRST: Final = "first"
RETRY: Final = "retry"
"""The kind of a row with the failed attempts of a step."""

RETRY_PREFIX: Final = "\x01retry:"
"""How the name of such a row begins. The name of the step follows."""

NO_TIMEOUT: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""The end of a wait without a limit."""

ENCODED_KEYS: Final = frozenset({"codec", "key", "data", "job_name"})
"""The keys of a value that a codec has encoded."""


class StoredStep(NamedTuple):
    """A step as its row has it.

    Attributes:
        kind: What stored it.
        value: Its value as JSON; None for none.
        has_ended: Whether it is over: False for a sleep or a wait that lasts, and for failed attempts of a
            step that is called again.
        until: The end of a sleep or a wait, or when the next attempt of a step is due; None for other steps.
        left_s: The seconds until then, by the clock of the database; negative after it.
        is_awaited: Whether children of the step have not ended. A step that is neither over nor awaited has
            lost them: an older node has ended them, or they were deleted by hand.
        timeouts: The ends of earlier waits for a signal: they timed out, and the job waited for it again.
        is_renewed: Whether the retries of the step begin again, whose failed attempts this row has: the job
            has failed since they were used up, or was retried by a caller.
    """

    name: str
    kind: str
    value: str | None
    has_ended: bool
    until: datetime | None = None
    left_s: float | None = None
    is_awaited: bool = False
    timeouts: tuple[datetime, ...] = ()
    is_renewed: bool = False

    @property
    def is_early_signal(self) -> bool:
        """Whether it is a signal that came before the job waited for it. It does not count as a step."""
        return self.kind == SIGNAL and self.until is None

    @property
    def is_used_up(self) -> bool:
        """Whether it is the failed attempts of a step whose retries were used up. It has no next attempt."""
        return self.kind == RETRY and self.has_ended and self.until is None

    @property
    def is_counted(self) -> bool:
        """Whether it counts as a step; the failed attempts of a step, whose number is bounded, do not."""
        return self.kind != RETRY and not self.is_early_signal


def new_definition() -> str:
    """Return a random text for a new definition of a job.

    It distinguishes the definition from earlier ones that had the same id.
    """
    noise = os.urandom(6).hex()
    return f"{noise[:8]}-{noise[8:]}"


def version_of(options: str | None) -> int | None:
    """Return the mark of a job that has stored steps, from its options; None if it has none.

    The mark is the version of the task when the job stored its first step; 0 while only others have stored
    anything for the job.
    """
    if options is None or MARK not in options:
        return None
    # The text may be elsewhere in the options, so only the parsed object shows whether there is a mark.
    mark = object_from(options).get(MARK)
    return mark if isinstance(mark, int) else None


def row_of_retries(step: str) -> str:
    """Return the name of the row with the failed attempts of a step."""
    return RETRY_PREFIX + step


def step_of_row(name: str) -> str:
    """Return the name of the step to which a row belongs: its own name, unless it has failed attempts."""
    return name.removeprefix(RETRY_PREFIX)


def check_step_name(name: object, *, noun: str = "step") -> str:
    """Return the name of a step, or of a signal. A signal has the name of the step that waits for it.

    Raises:
        TypeError: It is not a str.
        ValueError: It is empty, too long, or reserved for rows that are not steps.
    """
    subject = f"the name of a {noun}"
    if name == "":
        raise ValueError(f"{subject} must not be empty; pass a name such as 'quote'")
    text = check_text(subject, name, max_bytes=MAX_NAME_BYTES)
    if text.startswith("\x01") or RESERVED_NAME.fullmatch(text):
        raise ValueError(f"{subject} must not be {text!r}, which is reserved; use another name")
    return text


def message_name(mailbox: str, number: int) -> str:
    """Return the name of the signal that is a message of a mailbox; the first one has the number 1."""
    return f"\x01mail:{number:0{MAX_DIGITS}}:{mailbox}"


def mailbox_of(name: str) -> str | None:
    """Return the mailbox of which the signal of a name is a message; None if the step is none."""
    message = MESSAGE_NAME.fullmatch(name)
    return None if message is None else message[2]


def shown_name(name: str) -> str:
    """Return the name of a step as people see it: a message is ``orders#3``, the third of ``orders``."""
    message = MESSAGE_NAME.fullmatch(name)
    return name if message is None else f"{message[2]}#{int(message[1])}"


def stored_name(name: str) -> str:
    """Return the name that the row of a message has, from the name that people see; another name as it is."""
    mailbox, _, number = name.rpartition("#")
    is_message = mailbox and number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS
    return message_name(mailbox, int(number)) if is_message else name


def described_signal(name: str) -> str:
    """Return which signal or message has a name, for a sentence."""
    message = MESSAGE_NAME.fullmatch(name)
    return f"signal {name!r}" if message is None else f"message {int(message[1])} of {message[2]!r}"


def check_step_function(func: Any) -> None:
    """Raise TypeError unless ``is_coroutine_function()`` is true for the function of a step."""
    if not is_coroutine_function(func):
        raise TypeError(
            f"a step needs a coroutine function, not {func!r}; pass an async function and its arguments: "
            "steps.run(name, function, argument)"
        )


def is_coroutine_function(func: Any) -> bool:
    """Return whether a function is a coroutine function, or stands for one.

    A partial of a coroutine function stands for it, as do a decorated one and an object whose ``__call__()``
    is a coroutine function.
    """
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(unwrapped(func))


def step_text(
    name: str,
    value: object,
    limit: int | None,
    codec: PayloadCodec | None = None,
    job_name: str = "",
    *,
    verb: str = "return",
) -> str:
    """Return the value of a step as it is stored: JSON, encoded if there is a codec with a key.

    Args:
        name: The name of the step.
        value: Its value.
        limit: The maximum size of the returned text in bytes; None for no limit.
        codec: Encodes it; None for none.
        job_name: The name of the job, for the codec.
        verb: The verb of the remedy in an error: to "return" or to "send" another value.

    Raises:
        PayloadError: JSON cannot represent the value, the codec failed, or it is too large.
    """
    if isinstance(value, dict) and value.keys() == ENCODED_KEYS:
        raise PayloadError(
            f"step {name!r}: the value has exactly the keys of an encoded one, {sorted(ENCODED_KEYS)}; "
            "add another key"
        )
    try:
        text, _ = encoded_value(encode_value(value, verb), codec, job_name)
        check_value_size(text, limit, verb)
    except PayloadError as error:
        raise PayloadError(f"step {name!r}: {error}") from error
    return text


def step_value(name: str, text: str | None, codec: PayloadCodec | None = None) -> Any:
    """Return the value of a step from what is stored.

    Raises:
        Abort: It cannot be read, which a retry would not change.
    """
    try:
        value = value_from(text)
        # Any other object is a value of the job: step_text() refuses one with exactly these keys.
        if is_encoded(value) and value.keys() == ENCODED_KEYS:
            return decode_value(value, codec, value["job_name"], value_from)
    except ValueError as error:  # a PayloadError is one
        raise Abort(f"the stored value of step {name!r} cannot be read: {error}") from error
    return value


class ReturnType:
    """Converts what a function returns by its return annotation; without one, values stay as they are."""

    def __init__(self, func: Callable[..., Any]) -> None:
        inner = unwrapped(func)
        self._name = inner.__qualname__
        self._type: typed_values.ValueType | None = None
        self._undefined: Exception | None = None
        try:
            annotation = return_annotation(inner)
            self._type = None if annotation is UNDECLARED else typed_values.ValueType(annotation)
        except UnusableAnnotationError as error:
            if not error.has_undefined_name:
                raise self._unusable(error) from error
            # The name may exist for type checkers only. Values that are JSON do not need the annotation.
            self._undefined = error

    def to_json(self, step: str, value: Any) -> Any:
        """Return a value in a form that JSON can represent.

        Raises:
            PayloadError: It does not fit the annotation, or it would not arrive equal.
            ConfigurationError: It is no JSON, and the annotation, which would convert it, has a name that is
                not defined.
        """
        if self._type is None:
            # A value that is JSON needs no conversion, so an annotation that cannot be read does not matter.
            if self._undefined is not None and not typed_values.is_json(value):
                raise self._unusable(self._undefined) from self._undefined
            return value
        try:
            return self._type.encode(value, "the value")
        except PayloadError as error:
            raise PayloadError(f"step {step!r}: {error}") from error
        except pydantic.ValidationError as error:
            raise PayloadError(
                f"step {step!r}: the value does not fit the return annotation of {self._name}(): {error}; "
                "return a value that fits, or change the annotation"
            ) from error

    def from_json(self, step: str, plain: Any) -> Any:
        """Return what the function returned, as its return annotation declares it, from its form as JSON.

        Raises:
            Abort: It does not fit the annotation, which has changed. A retry would not change that.
        """
        if self._type is None:
            return plain
        try:
            return self._type.read(plain)
        except pydantic.ValidationError as error:
            raise Abort(
                f"the stored value of step {step!r} does not fit the return annotation of {self._name}(): "
                f"{error}; accept former values, or give the step another name"
            ) from error

    def _unusable(self, error: Exception) -> ConfigurationError:
        """Return the error about a return annotation that cannot be evaluated or used."""
        return ConfigurationError(
            f"a step cannot use the return annotation of {self._name}(): {error}; "
            "define the type at the top level of a module, or remove the annotation"
        )


class SignalType:
    """Converts the values of signals from JSON to the type ``kind`` for which a job waits.

    If ``kind`` is None, the job takes any value as JSON carries it.

    Raises:
        ConfigurationError: pydantic does not support the type.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        try:
            self._type = None if kind is None else typed_values.ValueType(kind)
        except UnusableAnnotationError as error:
            raise ConfigurationError(f"kind={kind!r} of a wait is no type for pydantic: {error}") from error

    def from_json(self, name: str, plain: Any) -> Any:
        """Return the value of a signal as the type for which the job waits, from its form as JSON.

        Raises:
            Abort: It does not fit the type, which a retry would not change.
        """
        if self._type is None:
            return plain
        try:
            return self._type.read(plain)
        except pydantic.ValidationError as error:
            remedy = "send a value that fits, or accept this one"
            if mailbox_of(name) is not None:
                remedy = "a retry reads this message again, so change the code to accept it, as by kind=None"
            subject = f"the value of the {described_signal(name)}"
            raise Abort(f"{subject} does not fit kind={self._kind!r}: {error}; {remedy}") from error
