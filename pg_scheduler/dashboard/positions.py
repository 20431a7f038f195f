"""Positions of lists in the addresses of requests that may not see everything.

A position contains the key of the last examined row, which can be the key of a limit, and the number of
examined rows. Both also concern rows that the request may not see. So the address of such a request has the
position encrypted: XORed with a stream of HMACs that starts at the authentication tag, which is an HMAC of
the position itself, a synthetic initialization vector.

Every process of the dashboard derives the same key from when the migrations of the database were applied, to
the microsecond, so a list continues in any of them, and nothing has to be configured. The key keeps positions
from those who read the dashboard, not from those who read the database. To find the key, an attacker has to
guess these times. Migrations that were applied together have the same time, a day has about 2**36 possible
times, and each guess takes 600,000 iterations. With enough computing power, the key can be found.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.inspect.positions import MAX_LENGTH

KEY_AGE_S: Final = 3600.0
ITERATIONS: Final = 600_000
"""The iterations of the derivation of the key, which make each guess slow."""

TAG_BYTES: Final = 16
BLOCK_BYTES: Final = 32
PADDED_BYTES: Final = 256
"""Positions are filled up to a multiple of this, because an id can be recognized by its length."""


async def read_after(request: PageRequest) -> str | None:
    """Return the position at which the list of a request continues; None for its start.

    Raises:
        ValueError: It is not a position that such a request was given.
    """
    text = request.parameters.get("after") or None
    if text is None or request.access.sees_everything:
        return text
    return _decrypt(await _key(request), text)


async def write_next(request: PageRequest, position: str | None) -> str | None:
    """Return the position of the following page as the request may see it; None if there is none."""
    if position is None or request.access.sees_everything:
        return position
    return _encrypt(await _key(request), position)


async def _key(request: PageRequest) -> bytes:
    """Return the key with which positions are encrypted; it is derived once an hour."""
    return await request.read_shared(_derive_key, age_s=KEY_AGE_S, is_age_shown=False)


async def _derive_key(request: PageRequest) -> bytes:
    """Derive the key from the times of the migrations, in a thread, because this takes long by intention."""
    times = await request.inspector.migrated_at()
    secret = " ".join(instant.isoformat() for instant in times).encode()
    return await run_in_thread(hashlib.pbkdf2_hmac, "sha256", secret, b"positions", ITERATIONS)


def _encrypt(key: bytes, text: str) -> str:
    """Return a position as Base64 of its tag and its encrypted bytes."""
    data = text.encode()
    # No position contains a NUL character, so _decrypt() can remove the zeros again.
    data += bytes(-len(data) % PADDED_BYTES)
    tag = _hmac(key, b"tag", data)[:TAG_BYTES]
    return base64.urlsafe_b64encode(tag + _xor(key, tag, data)).rstrip(b"=").decode()


def _decrypt(key: bytes, text: str) -> str:
    """Return the position in a text; raise ValueError if `_encrypt()` has not made the text."""
    try:
        if len(text) > MAX_LENGTH:
            raise ValueError(text[:100])  # noqa: TRY301 - as any other text that is no position
        # _encrypt() has removed the padding of Base64.
        sealed = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
    except ValueError:
        sealed = b""
    # The tag is that of the decrypted data, so it can be compared only after the decryption.
    tag = sealed[:TAG_BYTES]
    data = _xor(key, tag, sealed[TAG_BYTES:])
    if not hmac.compare_digest(tag, _hmac(key, b"tag", data)[:TAG_BYTES]):
        raise ValueError(f"after= is no position of this list: {text[:100]!r}; start at its first page")
    return data.rstrip(b"\0").decode()


def _xor(key: bytes, tag: bytes, data: bytes) -> bytes:
    """Return data XORed with the stream of a tag. This encrypts the data, and decrypts encrypted data."""
    # The negations let the division round up, so the stream may be longer than the data.
    blocks = range(-(-len(data) // BLOCK_BYTES))
    stream = b"".join(_hmac(key, b"stream", tag + block.to_bytes(4, "big")) for block in blocks)
    return bytes(a ^ b for a, b in zip(data, stream, strict=False))


def _hmac(key: bytes, purpose: bytes, data: bytes) -> bytes:
    """Return the HMAC of data for a purpose, so that no HMAC can serve for both the tag and the stream."""
    return hmac.digest(key, purpose + b"\0" + data, "sha256")
