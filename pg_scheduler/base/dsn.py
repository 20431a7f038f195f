"""Connection strings: their rules, the spellings of other tools, and the passwords in them.

A special character that is not percent-encoded moves the parts of a URL: a piece of the password becomes the
host, the port, the database or an option. asyncpg quotes those in its errors and looks the host up. Therefore
every DSN that this library receives is checked here before asyncpg reads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from pg_scheduler.base.dsn_options import NAMES, check_hosts, check_options, connect_arguments
from pg_scheduler.errors import ConfigurationError

MASK: Final = "***"
"""Replaces each password."""

MIN_SECRET_LENGTH: Final = 3
MAX_PORT: Final = 65535
DEFAULT_PORT: Final = 5432
SOCKET_NAME: Final = "/.s.PGSQL."
"""What follows the folder of a socket in its path, before the port."""

MAX_LENGTH: Final = 16_384
"""Characters of a DSN. Reading takes time in proportion to them."""

EXPECTED: Final = "postgresql://user:password@host:5432/database"

_DIALECT: Final = re.compile(r"(postgres(?:ql)?)\+\w+")
# The group is the port.
_HOST: Final = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::([0-9]{0,9}))?")
_SECRETS: Final = frozenset(
    {"oauth_client_secret", "password", "scram_client_key", "scram_server_key", "sslpassword"}
)
_LIKE_SECRETS: Final = re.compile(r"pas|pwd|word|secret|token|key", re.IGNORECASE)


def normalise_dsn(dsn: str, name: str) -> str:
    """Return a DSN with the scheme of PostgreSQL: the dialects of SQLAlchemy are accepted.

    Args:
        dsn: The connection string.
        name: The setting that it comes from, for the message.

    Raises:
        ConfigurationError: As `check_dsn()`.
        TypeError: It is not a str, such as None for a variable that is not set.

    Example:
        >>> normalise_dsn("postgresql+asyncpg://app@db/shop?ssl=require", "dsn")
        'postgresql://app@db/shop?ssl=require'
    """
    if not isinstance(dsn, str):
        raise TypeError(f"{name} must be a str such as {EXPECTED}, not {type(dsn).__name__}")
    scheme, separator, address = dsn.strip().partition("://")
    if dialect := _DIALECT.fullmatch(scheme):
        scheme = dialect[1]
    checked_dsn = check_dsn(f"{scheme}{separator}{address}", name)
    return f"postgresql://{checked_dsn.partition('://')[2]}"


def check_dsn(dsn: str, name: str) -> str:
    """Return the DSN without the white space around it.

    Args:
        dsn: The connection string.
        name: The setting that it comes from, for the message.

    Raises:
        ConfigurationError: It is no URL of PostgreSQL, has special characters that are not encoded, or an
            option that cannot be used. The message does not quote it.

    Example:
        >>> check_dsn("postgresql://app:p%40ss@db/shop", "direct_dsn")
        'postgresql://app:p%40ss@db/shop'
    """
    dsn = dsn.strip()
    if len(dsn) > MAX_LENGTH:
        raise ConfigurationError(f"{name} has {len(dsn)} characters; the limit is {MAX_LENGTH}")
    # Readers of URLs remove line breaks and tabs. A password with one would then not be found in a message.
    if any(character < " " or character == "\x7f" for character in dsn):
        raise ConfigurationError(
            f"{name} has a control character, such as a line break; remove it, or write it as %0A"
        )
    scheme, separator, address = dsn.partition("://")
    if not separator or scheme not in {"postgresql", "postgres"}:
        raise ConfigurationError(f"{name} must start with postgresql:// or postgres://; expected {EXPECTED}")
    if characters := _raw_characters(address):
        encoded = ", ".join(f"{character} as {quote(character, safe='')}" for character in characters)
        raise ConfigurationError(
            f"{name} has special characters that are not encoded; write, in its user, password and options, "
            f"{encoded}"
        )
    # Some drivers separate options by a semicolon, so the part behind it may be a password.
    if ";" in address.partition("?")[2]:
        raise ConfigurationError(
            f"{name} has a semicolon in its options; separate them by &, and write %3B in the value of one"
        )
    if not _is_readable(dsn):
        raise ConfigurationError(
            f"{name} has a host, port or option that cannot be read; expected {EXPECTED} with a port from 1 "
            f"to {MAX_PORT}, options as ?name=value, and special characters written as %40, %3A, %26 ..."
        )
    check_hosts(urlsplit(dsn).netloc.rpartition("@")[2], name)
    check_options(dsn, name)
    return dsn


class Address(NamedTuple):
    """Where a connection leads, as its driver reports it: a pooler may lie in between.

    Attributes:
        host: The name of the host, or the folder of its socket.
        port: The port.
        database: The name of the database.
    """

    host: str
    port: int
    database: str

    @classmethod
    def of(cls, host: object, port: object, database: object) -> Address | None:
        """Return an address, equal for all spellings of it; None if its host or its database is not known.

        The host is not known if there are several ones.
        """
        digits = str(port or DEFAULT_PORT)
        if not isinstance(host, str) or not host or "," in host:
            return None
        if not digits.isdecimal() or not database:
            return None
        return cls(host.rstrip("/"), int(digits), str(database))


def address_parts(dsn: str) -> dict[str, str]:
    """Return host, port and database of a DSN, by these names, as far as it has them.

    Example:
        >>> address_parts("postgresql://app@/shop?host=/run/postgresql")
        {'host': '/run/postgresql', 'database': 'shop'}
    """
    parts = urlsplit(dsn)
    hosts = parts.netloc.rpartition("@")[2]
    # The colons of an IPv6 address are in brackets, so none of them is taken for that before a port.
    host, _, port = hosts.rpartition(":") if re.search(r":\d*$", hosts) else (hosts, "", "")
    # Several hosts keep their brackets, which separate each from its port.
    host = re.sub(r"^\[([^]]*)\]$", r"\1", host)
    address = {"host": unquote(host), "port": port, "database": unquote(parts.path[1:])}
    # The options of the DSN may have parts of the address, too.
    for name, values in parse_qs(parts.query).items():
        part = "database" if name == "dbname" else name
        # Of an option that is repeated, the last value counts.
        address[part] = values[-1]
    return {name: address[name] for name in ("host", "port", "database") if address.get(name)}


def server_in(dsn: str | None, name: str) -> str | None:
    """Return where a DSN expects its server; None if it cannot be read. See `server_at()`.

    Args:
        dsn: The connection string; None for the variables and files of libpq.
        name: The setting that it comes from.

    Example:
        >>> server_in("postgresql://app:secret@db/shop", "dsn")
        'db:5432'
    """
    try:
        checked_dsn = None if dsn is None else check_dsn(dsn, name)
        # The host may be in the service that the DSN names.
        address, _ = connect_arguments(checked_dsn, name)
    except ConfigurationError:
        return None
    return server_at(address_parts(address or ""))


def server_at(parts: Mapping[str, object]) -> str:
    """Return where a server is expected, for messages: host and port, or the path of its socket.

    Args:
        parts: The host and the port, as in `address_parts()`. PGHOST and PGPORT stand for missing ones.

    Example:
        >>> server_at({"host": "/run/postgresql", "port": "5433"})
        '/run/postgresql/.s.PGSQL.5433'
    """
    host = str(parts.get("host") or os.environ.get("PGHOST") or "")
    port = str(parts.get("port") or os.environ.get("PGPORT") or DEFAULT_PORT)
    if not host:
        return f"the sockets of this machine, or localhost:{port}"
    if host.startswith("/"):
        return f"{host.rstrip('/')}{SOCKET_NAME}{port}"
    # Several hosts are separated by commas, and may have a port each. Of others, only those of IPv6 have
    # colons.
    return f"[{host}]:{port}" if ":" in host and "," not in host else f"{host}:{port}"


def mask_dsn(dsn: str) -> str:
    """Return the DSN with every password replaced, and the value of every option of an unknown name.

    Such a name is a setting of the server, or the misspelled name of a password.

    Example:
        >>> mask_dsn("postgresql://app:secret@db/shop?password=other&sslmode=require")
        'postgresql://app:***@db/shop?password=***&sslmode=require'
    """
    parts = urlsplit(dsn)
    account, separator, hosts = parts.netloc.rpartition("@")
    user, has_password, _ = account.partition(":")
    netloc = f"{user}:{MASK}{separator}{hosts}" if has_password else parts.netloc
    pairs: list[str] = []
    for pair in _pairs_of(parts.query):
        if _is_secret(pair) or _option_of(pair) not in NAMES:
            name, _, _ = pair.partition("=")
            pairs.append(f"{name}={MASK}")
        else:
            pairs.append(pair)
    query = f"?{'&'.join(pairs)}" if parts.query else ""
    return f"{parts.scheme}://{netloc}{parts.path}{query}"


def passwords_in(dsn: str) -> list[str]:
    """Return the passwords of a DSN, as they are written in it and decoded."""
    parts = urlsplit(dsn)
    account, _, _ = parts.netloc.rpartition("@")
    _, _, password_of_account = account.partition(":")
    passwords = [password_of_account]
    passwords += [pair.partition("=")[2] for pair in _pairs_of(parts.query) if _is_secret(pair)]
    decoded_passwords = map(unquote, passwords)
    return [password for password in dict.fromkeys([*passwords, *decoded_passwords]) if password]


def remove_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text with each secret replaced, except those so short that other words contain them."""
    # The longest first, because a secret may be a part of another one.
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= MIN_SECRET_LENGTH:
            text = text.replace(secret, MASK)
    return text


def _raw_characters(address: str) -> list[str]:
    """Return the characters behind the scheme that would have to be encoded.

    An ``@`` may stand only once, where it separates the account from the host.
    """
    account, separator, _ = address.rpartition("@")
    characters = {character for character in "/?#[]" if character in account}
    # Here "account" is what stands before the last "@". In "ann:a/b@host" that is an account, and the "/" has
    # to be encoded. In "host/db?options=a@b" it contains the host, and the "@" has to be encoded. Which of
    # these is meant cannot be known, so both characters are named.
    if "@" in account or (separator and characters):
        characters.add("@")
    if "#" in address:  # it would start a fragment, which asyncpg ignores
        characters.add("#")
    return sorted(characters)


def _is_readable(dsn: str) -> bool:
    """Return whether the hosts and ports of a DSN can be read, and each of its options has a value."""
    try:
        parts = urlsplit(dsn)
    except ValueError:  # its message would quote the DSN
        return False
    for host in parts.netloc.rpartition("@")[2].split(","):
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        port = match[1]
        if port and not 0 < int(port) <= MAX_PORT:
            return False
    return all("=" in pair for pair in parts.query.split("&") if pair)


def _pairs_of(query: str) -> list[str]:
    """Return the options in a query, each as ``name=value``.

    Some drivers accept a semicolon as a separator, too. If it were not one here, a password that follows it
    would be a part of the option before, and would not be found and masked.
    """
    return re.split("[&;]", query)


def _option_of(pair: str) -> str:
    """Return the decoded name of an option, from ``name=value``."""
    return unquote(pair.partition("=")[0])


def _is_secret(pair: str) -> bool:
    """Return whether an option, as ``name=value``, is a password or has an unknown name like that of one."""
    option = _option_of(pair)
    return option.lower() in _SECRETS or (option not in NAMES and _LIKE_SECRETS.search(option) is not None)
