"""Codecs of tests, without a library: keys are secret texts."""

from __future__ import annotations

import os
from hashlib import sha256
from itertools import cycle


def xor(data: bytes, key: bytes) -> bytes:
    return bytes(each ^ other for each, other in zip(data, cycle(key), strict=False))


class KeyedCodec:
    """Encodes with the first of its keys, and decodes with all; no two results are equal."""

    name = "xor"

    def __init__(self, *keys: str, encrypt: bool = True) -> None:
        self.keys = keys
        self.key_id = keys[0] if encrypt else None

    def encode(self, data: bytes, job_name: str) -> bytes:
        salt = os.urandom(8)
        key = sha256(salt + self.keys[0].encode()).digest()
        return salt + xor(f"{job_name}\n".encode() + data, key)

    def decode(self, data: bytes, job_name: str) -> bytes:
        for each in self.keys:
            found = xor(data[8:], sha256(data[:8] + each.encode()).digest())
            if found.startswith(f"{job_name}\n".encode()):
                return found.partition(b"\n")[2]
        raise LookupError("no key")


class OtherCodec(KeyedCodec):
    """The same by another name."""

    name = "rot"
