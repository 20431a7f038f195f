"""Connection strings: the spellings of other tools, and the passwords in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from .errors import CommandError, ExitCode

__all__ = ["MASK", "mask_dsn", "normalise_dsn", "passwords_in", "remove_secrets"]

MASK: Final = "***"
"""Replaces each password."""

MIN_SECRET_LENGTH: Final = 3
MAX_PORT: Final = 65535

_SCHEME: Final = re.compile(r"postgres(?:ql)?(?:\+\w+)?")
_HOST: Final = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::\d*)?")
_SECRETS: Final = frozenset({"password", "sslpassword"})


def normalise_dsn(dsn: str, name: str = "the DSN") -> str:
    """Return the DSN as asyncpg takes it: ``postgres://`` and the dialects of SQLAlchemy are accepted.

    Args:
        dsn: The connection string.
        name: The setting that it comes from, for the message.

    Raises:
        CommandError: It is not a URL of PostgreSQL. The message does not quote it.

    Example:
        >>> normalise_dsn("postgresql+asyncpg://app@db/shop?ssl=require")
        'postgresql://app@db/shop?sslmode=require'
    """
    scheme, separator, rest = dsn.strip().partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise CommandError(
            ExitCode.USAGE,
            f"{name} must be a URL such as postgresql://user@host/database; it starts otherwise",
        )
    if "+" in scheme:
        base, mark, query = rest.partition("?")
        pairs = [("sslmode" if key == "ssl" else key, value) for key, value in parse_qsl(query)]
        rest = base + mark + urlencode(pairs)
    normal = f"postgresql://{rest}"
    if not _is_well_formed(normal):
        raise CommandError(
            ExitCode.USAGE,
            f"{name} is no valid URL; write special characters of a password as %40, %2F ...",
        )
    hosts = urlsplit(normal).netloc.rpartition("@")[2].split(",")
    ports = [port for _, separator, port in (each.rpartition(":") for each in hosts) if separator]
    if any(port.isdigit() and not 0 < int(port) <= MAX_PORT for port in ports):
        raise CommandError(ExitCode.USAGE, f"{name} has a port that is not from 1 to {MAX_PORT}")
    return normal


def mask_dsn(dsn: str) -> str:
    """Return the DSN with every password replaced.

    Example:
        >>> mask_dsn("postgresql://app:secret@db/shop?password=other&sslmode=require")
        'postgresql://app:***@db/shop?password=***&sslmode=require'
    """
    parts = urlsplit(dsn)
    account, separator, hosts = parts.netloc.rpartition("@")
    user, has_password, _ = account.partition(":")
    netloc = f"{user}:{MASK}{separator}{hosts}" if has_password else parts.netloc
    query = [
        f"{pair.partition('=')[0]}={MASK}" if _is_secret(pair) else pair for pair in parts.query.split("&")
    ]
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{'&'.join(query)}" if parts.query else "")


def passwords_in(dsn: str) -> list[str]:
    """Return the passwords of a DSN, as they are written in it and decoded."""
    parts = urlsplit(dsn)
    account = parts.netloc.rpartition("@")[0]
    written = [account.partition(":")[2]]
    written += [pair.partition("=")[2] for pair in parts.query.split("&") if _is_secret(pair)]
    return [word for word in dict.fromkeys([*written, *map(unquote, written)]) if word]


def remove_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text with each secret replaced, the longest first, except those that are mere letters."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= MIN_SECRET_LENGTH:
            text = text.replace(secret, MASK)
    return text


def _is_well_formed(dsn: str) -> bool:
    """Return whether the parts of the URL are what they seem: a raw # ? / in a password would shift them."""
    try:
        parts = urlsplit(dsn)
    except ValueError:  # its message would quote the DSN
        return False
    hosts = parts.netloc.rpartition("@")[2].split(",")
    return (
        "#" not in dsn
        and "@" not in parts.path
        and all("=" in pair for pair in parts.query.split("&") if pair)
        and all(_HOST.fullmatch(host) for host in hosts)
    )


def _is_secret(pair: str) -> bool:
    return unquote(pair.partition("=")[0]).lower() in _SECRETS
