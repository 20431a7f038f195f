"""Encrypt what jobs store. The extra ``[codec]`` installs what this needs."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256

from cryptography.fernet import Fernet, MultiFernet

from pg_scheduler.errors import ConfigurationError

__all__ = ["FernetCodec"]


class FernetCodec:
    """Encrypts the arguments, results and progress notes of jobs with Fernet: AES-128-CBC with an HMAC.

    ``key_id`` consists of the first 8 digits of the SHA-256 hash of the first key.

    Args:
        keys: Keys of ``Fernet.generate_key()``. The first one encrypts, all decrypt.
        encrypt: Whether it encrypts; otherwise it decrypts only.

    Raises:
        TypeError: ``keys`` is not a list.
        ConfigurationError: There is no key, or one is not valid; a ValueError.

    Example:
        >>> from cryptography.fernet import Fernet
        >>> from pg_scheduler.integrations.fernet import FernetCodec
        >>> codec = FernetCodec([Fernet.generate_key()])
        >>> codec.decode(codec.encode(b"secret", "mail.send"), "mail.send")
        b'secret'
    """

    name = "fernet"

    def __init__(self, keys: Sequence[str | bytes], *, encrypt: bool = True) -> None:
        # The message does not contain the value, which is secret.
        if not isinstance(keys, list | tuple):
            raise TypeError(f"keys must be a list, not {type(keys).__name__}; pass keys=[key]")
        if not keys:
            raise ConfigurationError("keys has no key; pass keys=[Fernet.generate_key()]")
        self._fernet = MultiFernet([_fernet(key, index) for index, key in enumerate(keys)])
        # A codec without a key id decrypts only.
        self.key_id = sha256(urlsafe_b64decode(keys[0])).hexdigest()[:8] if encrypt else None

    def encode(self, data: bytes, job_name: str) -> bytes:  # noqa: ARG002
        """Return data encrypted with the first key."""
        # The caller stores the data in Base64, so the Base64 of Fernet is removed.
        return urlsafe_b64decode(self._fernet.encrypt(data))

    def decode(self, data: bytes, job_name: str) -> bytes:  # noqa: ARG002
        """Return data decrypted with the key that encrypted it.

        Raises:
            InvalidToken: No key decrypts the data. It is an error of ``cryptography``.
        """
        decrypted: bytes = self._fernet.decrypt(urlsafe_b64encode(data))
        return decrypted


def _fernet(key: str | bytes, index: int) -> Fernet:
    """Return the Fernet of a key; raise ConfigurationError, without the key itself, if it is invalid."""
    try:
        return Fernet(key)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"keys[{index}] is not a Fernet key, 32 bytes in URL-safe Base64; create one with "
            "Fernet.generate_key()"
        ) from None
