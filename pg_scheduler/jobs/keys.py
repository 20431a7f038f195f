"""Key functions of limits and shares, and the texts in ``blocked_on`` that identify a limit or a share.

Such a text is ``<kind>:<name>:<key>``. It is ASCII and short enough for an index, and every node computes the
same text.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import md5
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from pg_scheduler.base.foreign import class_name, is_a, is_ctrl_c
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.validation import check_text


class KeyOfFirstArgument(Protocol):
    """The type of ``lambda account, **_: account``.

    With ``Callable[...]`` alone, pyright could not infer the types of the parameters of a lambda.
    """

    def __call__(self, first: Any, /, **kwargs: Any) -> str | int:
        """Return the key of a job."""


KeyFunction: TypeAlias = KeyOfFirstArgument | Callable[..., str | int]

MAX_NAME_BYTES: Final = 200
MAX_KEY_BYTES: Final = 200

ESCAPE: Final = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
"""What ``ascii_text()`` writes for a character that is not in ASCII."""

MAX_TEXT_LENGTH: Final = 300
"""Characters of a name, and of a key, in ASCII: rows of an index contain both and the id of a job."""


class KeyFunctionError(ConfigurationError):
    """A key function raised, or returned a value that is not a valid key."""

    remedy: ClassVar[str] = "correct it"
    """What to do if it raised."""


def check_key_name(kind: str, name: object, example: str) -> None:
    """Raise unless this is a name for a limit or share.

    Args:
        kind: "Limit" or "Share".
        name: The name.
        example: A name for the message.
    """
    text = check_text("name", name)
    if not text or ":" in text:
        raise ConfigurationError(
            f"name {text!r} of a {kind} is empty or contains a colon; write a name such as {example!r}"
        )
    if len(text.encode()) > MAX_NAME_BYTES:
        raise ConfigurationError(
            f"the name of a {kind} must have at most {MAX_NAME_BYTES} bytes, not {len(text.encode())}"
        )


def check_key_function(key: object, example: str, *, name: str = "key") -> None:
    """Raise TypeError unless this is a plain function.

    The message shows a function whose parameter is called ``example``, as the parameter ``name``.
    """
    if not callable(key):
        raise TypeError(
            f"{name} must be a function, not {type(key).__name__}: {key!r}; "
            f"write {name}=lambda {example}, **_: {example}"
        )
    if inspect.iscoroutinefunction(key):
        raise TypeError(f"{name} must be a plain function, since the event loop calls it; it cannot await")


def key_text(
    function: KeyFunction,
    owner: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    error: type[KeyFunctionError] = KeyFunctionError,
) -> str:
    """Return the text for ``blocked_on`` that stands for the key of a job; see ``key_value()``."""
    return short_ascii(str(key_value(function, owner, args, kwargs, error=error)))


def key_value(
    function: KeyFunction,
    owner: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    error: type[KeyFunctionError] = KeyFunctionError,
) -> str | int:
    """Return the key of a job with these arguments.

    Args:
        function: The key function.
        owner: What the function belongs to, such as "limit 'stripe'", for messages.
        args: The positional arguments of the job.
        kwargs: Its keyword arguments.
        error: The class of the error.

    Raises:
        KeyFunctionError: The function raised, or returned something else than a short str or int.
    """
    subject = f"the key function of the {owner}"
    try:
        key = function(*args, **kwargs)
    except BaseException as raised:  # user code; sys.exit() and the like concern the job only
        if is_ctrl_c(raised):
            raise
        raise error(f"{subject} raised {class_name(raised)}; {error.remedy}") from raised
    # A subclass of int or str may have methods of its own, which are not called.
    value: str | int
    if is_a(key, int) and not is_a(key, bool):
        key = value = int.__int__(key)
        # A digit has less than 4 bits, so such a number is too long. str() of a huge one may raise.
        if key.bit_length() > MAX_KEY_BYTES * 4:
            raise error(f"{subject} returned an int of {key.bit_length()} bits; return a shorter key")
        text = str(key)
    elif is_a(key, str):
        text = value = str.__str__(key)
    else:
        raise error(f"{subject} returned a {class_name(key)}; return a str or an int")
    # A lone surrogate is accepted, because ascii_text() escapes it.
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_KEY_BYTES:
        raise error(f"{subject} returned {size} bytes, more than {MAX_KEY_BYTES}; return a shorter key")
    return value


def short_ascii(text: str) -> str:
    """Return the key of a job as a text in ``blocked_on`` has it.

    A key that people copy from a list is such a text already, in which characters are escaped or replaced by
    a hash, and stays as it is.
    """
    return _short(ascii_text(text))


def named_prefix(kind: str, name: str) -> str:
    """Return the part of a text before its key; ``kind`` ends with a colon, such as ``limit:``."""
    return f"{kind}{_name_text(name)}:"


def prefix_of(kind: str, blocked_on: str) -> str:
    """Return the part of a text in ``blocked_on`` before its key, which ``named_prefix()`` has made."""
    # The name has no colon, so the next colon ends it.
    return blocked_on[: blocked_on.find(":", len(kind)) + 1]


def name_and_key(kind: str, blocked_on: str | None) -> tuple[str, str]:
    """Return the name and the key in a text of this kind; empty texts if it is of another one."""
    if blocked_on is None or not blocked_on.startswith(kind):
        return "", ""
    name, _, key = blocked_on.removeprefix(kind).partition(":")
    return name, key


def readable(text: str) -> str:
    """Return a name or key from ``blocked_on`` with its characters beyond ASCII, as people wrote it.

    Characters that cannot be printed stay escaped. The result is for people: it identifies nothing, because
    a key may contain a backslash itself.
    """
    return ESCAPE.sub(_character, text)


def _character(escape: re.Match[str]) -> str:
    """Return the character that was escaped, or the escape itself if the character cannot be printed."""
    # Each group is for one length of the escape. Only one of them has matched: the digits of the character.
    number = int("".join(filter(None, escape.groups())), 16)
    is_printable = 0x7F < number <= sys.maxunicode and chr(number).isprintable()
    return chr(number) if is_printable else escape[0]


@lru_cache(maxsize=1024)
def _name_text(name: str) -> str:
    """Return the name without a colon, in ASCII and short enough for an index."""
    return _short(ascii_text(name).replace(":", "\\x3a"))


def _short(text: str) -> str:
    """Return a text, with a hash in place of its end if an index could not hold it."""
    if len(text) <= MAX_TEXT_LENGTH:
        return text
    return f"{text[:MAX_NAME_BYTES]}-{md5(text.encode(), usedforsecurity=False).hexdigest()}"


def ascii_text(text: str) -> str:
    """Return a text that a database of any encoding stores, the same one on every node."""
    return text.encode("ascii", "backslashreplace").decode().replace("\x00", "\\x00")
