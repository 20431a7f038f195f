"""Encode what jobs store, their arguments, results and progress notes, by a codec of the application.

An encoded text is stored as ``{"codec": "fernet", "key": "3fa9c210", "data": "..."}``, its data in Base64.
Encoded arguments are stored under ``args``. A release without codecs expects a list there, so it fails the
job instead of calling its function with encoded arguments.
"""

from __future__ import annotations

import inspect
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeGuard, TypeVar

from pg_scheduler.base.foreign import class_name, is_a, is_ctrl_c
from pg_scheduler.base.public import public
from pg_scheduler.errors import ConfigurationError, PayloadError

T = TypeVar("T")

NO_ARGUMENTS: Final = '{"args":[],"kwargs":{}}'
"""What ``payload.encode()`` returns without arguments. It is not encoded."""

MAX_LABEL_LENGTH: Final = 80
"""The longest name of a codec, and the longest id of its key. Messages cut longer ones that rows have."""

METHODS: Final = ("encode", "decode")

LABEL: Final = f"of 1 to {MAX_LABEL_LENGTH} printable characters of ASCII"


@public
class Codec(Protocol):
    """Encodes the arguments, results and progress notes of jobs, and decodes them.

    Its methods are called often, in the event loop or in the thread that calls a `SyncScheduler`, so they
    must not wait. An exception ends the call or the attempt.

    Example:
        >>> import zlib
        >>> class Compressed:
        ...     name = "zlib"
        ...     key_id = "1"
        ...
        ...     def encode(self, data: bytes, job_name: str) -> bytes:
        ...         return zlib.compress(data)
        ...
        ...     def decode(self, data: bytes, job_name: str) -> bytes:
        ...         return zlib.decompress(data)
    """

    @property
    def name(self) -> str:
        """The name that is stored with encoded texts; a codec of another name does not decode them."""

    @property
    def key_id(self) -> str | None:
        """The id of the key that encodes, which is stored too; None to decode only."""

    def encode(self, data: bytes, job_name: str) -> bytes:
        """Return data of a job encoded."""

    def decode(self, data: bytes, job_name: str) -> bytes:
        """Return what was passed to ``encode()`` for a job of this name."""


@dataclass(frozen=True, slots=True)
class PayloadCodec:
    """A codec as the Scheduler calls it: as user code that may raise and return anything."""

    name: str
    key_id: str | None
    codec: Codec = field(repr=False)  # it may be a dataclass that has the keys

    def encode_arguments(self, task_data: str, job_name: str) -> str:
        """Return the result of ``payload.encode()`` with encoded arguments.

        It is returned unchanged if it has no arguments, or if the codec has no key to encode.

        Raises:
            PayloadError: The codec failed.
        """
        if task_data == NO_ARGUMENTS or self.key_id is None:
            return task_data
        return f'{{"args":{json.dumps(self.encode(task_data, job_name))}}}'

    def encode(self, text: str, job_name: str) -> dict[str, str]:
        """Return an encoded text as it is stored; only for a codec with a key.

        Raises:
            PayloadError: The codec failed.
        """
        data = _called(self.codec.encode, text.encode(), job_name, f"codec {self.name!r} failed to encode")
        return {"codec": self.name, "key": self.key_id or "", "data": b64encode(data).decode()}


def check_codec(codec: Codec | None) -> PayloadCodec | None:
    """Return the codec as the Scheduler calls it; None if no codec was given.

    Raises:
        TypeError: The object is not a codec, or a method takes other arguments.
        ConfigurationError: Its name, or the id of its key, is not a text that rows can have.
    """
    if codec is None:
        return None
    methods = (getattr(codec, name, None) for name in METHODS)
    if isinstance(codec, type) or not all(map(callable, methods)):
        raise TypeError(
            f"codec must be an object with name, key_id, encode() and decode(), not {type(codec).__name__}; "
            "pass FernetCodec(keys)"
        )
    for method in METHODS:
        _check_signature(codec, method)
    name, key_id = getattr(codec, "name", None), getattr(codec, "key_id", None)
    if not _is_label(name):
        raise ConfigurationError(f"name of the codec must be a text {LABEL}, not {name!r}")
    if key_id is not None and not _is_label(key_id):
        raise ConfigurationError(
            f"key_id of the codec must be None or a text {LABEL}, not a {type(key_id).__name__}"
        )
    return PayloadCodec(name, key_id, codec)


def _check_signature(codec: object, name: str) -> None:
    """Raise TypeError unless a method of a codec takes the data and the name of the job."""
    method = getattr(codec, name)
    try:
        signature = inspect.signature(method)
    except ValueError:  # a function of C may have none
        return
    try:
        signature.bind(b"", "")
    except TypeError as error:
        raise TypeError(
            f"{name}() of the codec must take the data and the name of the job, not {signature}; write "
            f"def {name}(self, data: bytes, job_name: str) -> bytes"
        ) from error


def _is_label(text: object) -> TypeGuard[str]:
    """Return whether a value is a text of 1 to 80 printable characters of ASCII, which every encoding has."""
    return (
        isinstance(text, str) and 0 < len(text) <= MAX_LABEL_LENGTH and text.isascii() and text.isprintable()
    )


def is_encoded(value: object) -> TypeGuard[dict[str, str]]:
    """Return whether a value of JSON has the form of an encoded text."""
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("codec", "key", "data")
    )


def encoding_of(envelope: dict[str, str]) -> str:
    """Return how a text is encoded, for people: ``encrypted with fernet, key 3fa9c210``."""
    return f"encrypted with {envelope['codec'][:MAX_LABEL_LENGTH]}, key {envelope['key'][:MAX_LABEL_LENGTH]}"


def decode_text(envelope: dict[str, str], codec: PayloadCodec | None, job_name: str) -> str:
    """Return the decoded text of an envelope, which has the form of ``is_encoded()``.

    Raises:
        PayloadError: This Scheduler does not have the codec, the data is not Base64, or the codec failed, for
            example because it lacks the key.
    """
    encoding = encoding_of(envelope)
    if codec is None or codec.name != envelope["codec"]:
        own_codec = "no codec" if codec is None else f"the codec {codec.name!r}"
        raise PayloadError(f"{encoding}; this Scheduler has {own_codec}: pass codec=")
    try:
        data = b64decode(envelope["data"], validate=True)
    except ValueError as error:
        raise PayloadError(f"{encoding}; the data is not Base64") from error
    problem = _problem_of(envelope, codec)
    try:
        return _called(codec.codec.decode, data, job_name, problem).decode()
    except UnicodeDecodeError:
        # The cause is left out, because it quotes the data.
        raise PayloadError(f"{problem}: the result is no text") from None


def decode_value(
    envelope: dict[str, str], codec: PayloadCodec | None, job_name: str, read: Callable[[str], T]
) -> T:
    """Return the decoded value of an envelope, which a function reads from the text.

    Raises:
        PayloadError: The text cannot be decoded, as for ``decode_text()``; or the function raised a
            ValueError, so the codec has returned something else than what was encoded.
    """
    text = decode_text(envelope, codec, job_name)
    try:
        return read(text)
    except ValueError:
        # The cause is left out, because it may quote the data.
        raise PayloadError(
            f"{_problem_of(envelope, codec)}: the result is not what was encoded; let decode() return what "
            "encode() was called with"
        ) from None


def _problem_of(envelope: dict[str, str], codec: PayloadCodec | None) -> str:
    """Return the beginning of an error about a text that a codec does not decode."""
    key_id = None if codec is None else codec.key_id
    return f"{encoding_of(envelope)}; the codec here, with key {key_id}, failed to decode it"


def _called(method: Callable[[bytes, str], bytes], data: bytes, job_name: str, problem: str) -> bytes:
    """Return what a method of the codec returns.

    Raises:
        PayloadError: It raised an exception, or did not return bytes. A PayloadError is stored and logged, so
            it contains neither the message nor the traceback of that exception, which may quote the data.
    """
    try:
        output: Any = method(data, job_name)
    except BaseException as error:  # user code; sys.exit() and the like end the call only
        if is_ctrl_c(error):
            raise
        raise PayloadError(f"{problem}: {class_name(error)}") from None
    if not is_a(output, bytes):
        raise PayloadError(f"{problem}: it returned {class_name(output)}, not bytes")
    # This makes a copy of plain bytes, because a subclass may override any method.
    return b"".join((output,))
