"""The options of a DSN: those of libpq, and those that hosting services and other libraries write into one.

asyncpg knows some options of libpq. It sends every other name to the server as a setting, and the server
rejects the connection. Therefore every DSN that this library opens is translated here. An option has one of
four effects: asyncpg reads it, it becomes something that asyncpg takes, it is left out because nothing
depends on it, or it is an error that names the option and the remedy. Other names are settings of the server.
"""

from __future__ import annotations

import configparser
import getpass
import math
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from pg_scheduler.errors import ConfigurationError

READ: Final = frozenset(
    {
        "database",
        "dbname",
        "gsslib",
        "host",
        "krbsrvname",
        "passfile",
        "password",
        "port",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcrl",
        "sslkey",
        "sslmode",
        "sslpassword",
        "target_session_attrs",
        "user",
    }
)
"""Options that asyncpg reads as libpq does."""

SETTINGS: Final = frozenset({"application_name", "options"})
"""Options of libpq that are settings of the session, and sent as such."""

TRANSLATED: Final = frozenset(
    {
        "channel_binding",
        "connect_timeout",
        "fallback_application_name",
        "pgbouncer",
        "requiressl",
        "service",
        "servicefile",
        "ssl",
        "sslnegotiation",
        "sslrootcert",
    }
)
"""Options that become something else; see `connect_arguments()`."""

_OFF: Final = frozenset({"0", "false", "off", "no"})
_ON: Final = frozenset({"1", "true", "on", "yes"})

LEFT_OUT: Final[Mapping[str, frozenset[str] | None]] = {
    "client_encoding": frozenset({"utf8", "utf-8", "unicode", "auto"}),
    "gssdelegation": _OFF,
    "gssencmode": frozenset({"disable", "prefer"}),
    "keepalives": None,
    "keepalives_count": None,
    "keepalives_idle": None,
    "keepalives_interval": None,
    "load_balance_hosts": None,
    "max_protocol_version": None,
    "min_protocol_version": frozenset({"3.0"}),
    "replication": _OFF,
    "sslcertmode": frozenset({"allow"}),
    "sslcompression": None,
    "sslsni": _ON,
    "tcp_user_timeout": None,
}
"""Options that are left out, with the values for which that is right; None if it is right for all values."""

NOT_SUPPORTED: Final = "asyncpg does not support it; remove it"

REFUSED: Final[Mapping[str, str]] = {
    **{
        name: f"{NOT_SUPPORTED}, or use another value"
        for name, values in LEFT_OUT.items()
        if values is not None and name != "client_encoding"
    },
    "client_encoding": "asyncpg works with UTF8 only; remove it",
    "hostaddr": "write the address in place of the host",
    "oauth_client_id": NOT_SUPPORTED,
    "oauth_client_secret": NOT_SUPPORTED,
    "oauth_issuer": NOT_SUPPORTED,
    "oauth_scope": NOT_SUPPORTED,
    "requirepeer": NOT_SUPPORTED,
    "require_auth": NOT_SUPPORTED,
    "scram_client_key": NOT_SUPPORTED,
    "scram_server_key": NOT_SUPPORTED,
    "sslcrldir": "asyncpg reads one file; pass it as sslcrl=",
    "sslkeylogfile": "set the variable SSLKEYLOGFILE instead",
    **dict.fromkeys(
        ("schema", "currentSchema"),
        "it is an option of another library; pass the schema to pg_scheduler as schema= or --schema",
    ),
    **dict.fromkeys(
        ("pool_size", "pool_timeout", "pool_mode", "max_overflow", "connection_limit", "max_conns"),
        "it is an option of the pool of another library; remove it",
    ),
    **dict.fromkeys(("socket_timeout", "socketTimeout", "pool_recycle"), "remove it; calls have time limits"),
    **dict.fromkeys(("connectTimeout", "loginTimeout"), "write connect_timeout="),
    **dict.fromkeys(("prepareThreshold", "preparedStatementCacheQueries"), "write pgbouncer=true"),
    **dict.fromkeys(("prepared_statement_cache_size", "statement_cache_size"), "write pgbouncer=true"),
    **dict.fromkeys(
        ("sslaccept", "sslidentity", "sslfactory", "ssl-mode"), "write sslmode= and sslrootcert="
    ),
    "ApplicationName": "write application_name=",
    "async_fallback": "it is an option of SQLAlchemy; remove it",
    "targetServerType": "write target_session_attrs=",
}
"""Options that cannot be used, with the remedy. Those of ``LEFT_OUT`` are refused with other values only."""

NAMES: Final = READ | SETTINGS | TRANSLATED | LEFT_OUT.keys() | REFUSED.keys()
"""Every name that is no setting of the server."""

SSL_MODES: Final[Mapping[str, str]] = {
    **dict.fromkeys(_ON, "require"),
    **dict.fromkeys(_OFF, "disable"),
    "no-verify": "require",
}
"""The ``sslmode`` for values of ``ssl=`` that other drivers accept. Other values become the ``sslmode``."""

VERIFYING: Final = frozenset({"verify-ca", "verify-full"})
SYSTEM: Final = "system"
"""The value of ``sslrootcert=`` for the certificates of the operating system."""

ROOT_FILE: Final = ".postgresql/root.crt"
SERVICE_FILE: Final = "pg_service.conf"
MAX_DIGITS: Final = 10
"""Characters of the number of seconds of ``connect_timeout=``."""

ALPN: Final = "postgresql"


class ConnectArguments(NamedTuple):
    """What asyncpg takes.

    Attributes:
        dsn: The DSN with the options that it reads; None for the variables and files of libpq.
        settings: Keyword arguments of ``asyncpg.connect()``.
    """

    dsn: str | None
    settings: dict[str, Any]


def check_options(dsn: str, name: str) -> None:
    """Raise ConfigurationError if a DSN has an option that cannot be used.

    Args:
        dsn: The connection string.
        name: The setting that it comes from, for the message.
    """
    _check_values(_options_of(dsn), name)


def connect_arguments(dsn: str | None, name: str) -> ConnectArguments:
    """Return what asyncpg takes in place of a DSN, with the options of its service and of ``PGSERVICE``.

    Args:
        dsn: The connection string; None for the variables and files of libpq.
        name: The setting that it comes from, for the message.

    Raises:
        ConfigurationError: An option cannot be used, the service is not defined, a file of certificates
            cannot be read, or there is no user.

    Example:
        >>> connect_arguments("postgresql://app@db/shop?connect_timeout=10&keepalives=1", "dsn")
        ConnectArguments(dsn='postgresql://app@db/shop', settings={'timeout': 10.0})
    """
    parts = urlsplit(dsn or "postgresql://")
    options = _options_of(dsn or "")
    _, _, hosts = parts.netloc.rpartition("@")
    has_host = bool(hosts) or "host" in options
    # Without a host in the DSN, asyncpg connects to the hosts in PGHOST.
    if not has_host:
        check_hosts(os.environ.get("PGHOST", ""), "PGHOST")
    # Without a DSN and a service, asyncpg reads the variables and files itself. Nothing has to be translated.
    if dsn is None and not os.environ.get("PGSERVICE"):
        _check_user("", {}, name)
        return ConnectArguments(None, _tls_settings({}, name))
    netloc = parts.netloc
    path = "" if parts.path == "/" else parts.path
    _add_service(options, netloc, path, name)
    _check_user(netloc, options, name)
    _check_values(options, name)
    # Both calls remove the options that asyncpg does not read, so the others remain in the DSN. The first one
    # may change the sslmode, which the second one reads.
    settings = _translate(options, name)
    settings |= _tls_settings(options, name)
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return ConnectArguments(f"postgresql://{netloc}{path}{query}", settings)


def check_hosts(hosts: str, origin: str) -> None:
    """Raise ConfigurationError if one of several hosts is empty, which asyncpg cannot read.

    Args:
        hosts: The hosts, separated by commas.
        origin: Where they come from, for the message, which does not quote them.
    """
    names = [host.partition(":")[0] for host in hosts.split(",")]
    if len(names) > 1 and "" in names:
        raise ConfigurationError(
            f"{origin} has {len(names)} hosts separated by commas, of which number {names.index('') + 1} is "
            "empty; write that host, or remove the comma"
        )


def _check_user(netloc: str, options: Mapping[str, str], origin: str) -> None:
    """Raise ConfigurationError if nothing names the user, as in a container whose user has only a number.

    ``origin`` is the setting that the DSN comes from, for the message; likewise in the functions below.
    """
    account, _, _ = netloc.rpartition("@")
    user, _, _ = account.partition(":")
    if user or options.get("user") or os.environ.get("PGUSER"):
        return
    # asyncpg then takes the user of the process, by the same call.
    try:
        getpass.getuser()
    except (OSError, KeyError, ImportError):
        raise ConfigurationError(
            f"{origin} has no user, and the user of this process has no name, only the number {os.getuid()}; "
            "write one, as in postgresql://user@host/database, or set PGUSER"
        ) from None


def _in_home(path: str) -> Path:
    """Return the path of a file in the home folder; it begins with "~" if the user has no such folder."""
    return Path(os.path.expanduser(f"~/{path}"))  # noqa: PTH111 - pathlib raises an error then


def _options_of(dsn: str) -> dict[str, str]:
    """Return the options of a DSN. An option without a value is left out, as by libpq."""
    return dict(parse_qsl(urlsplit(dsn).query))


def _check_values(options: Mapping[str, str], origin: str) -> None:
    """Raise ConfigurationError if an option or its value cannot be used."""
    for option, value in options.items():
        # With these values the option is left out; with None, whatever its value is.
        harmless_values = LEFT_OUT.get(option, frozenset())
        is_left_out = harmless_values is None or value.lower() in harmless_values
        if option in REFUSED and not is_left_out:
            raise ConfigurationError(f"{origin} has the option {option}: {REFUSED[option]}")
    if options.get("channel_binding", "prefer") not in {"disable", "prefer", "require"}:
        raise ConfigurationError(f"{origin} has channel_binding=, which must be disable, prefer or require")
    check_hosts(options.get("host", ""), f"host= of {origin}")
    # _timeout_of() raises ConfigurationError if the value is not a number.
    _timeout_of(options, origin)


def _timeout_of(options: Mapping[str, str], origin: str) -> float | None:
    """Return the seconds of ``connect_timeout=``; infinity for 0, as for libpq, None without the option."""
    text = options.get("connect_timeout")
    if text is None:
        return None
    try:
        # libpq rejects numbers of more than 32 bits, too.
        timeout_s = int(text) if len(text) <= MAX_DIGITS else None
    except ValueError:
        timeout_s = None
    if timeout_s is None:
        raise ConfigurationError(
            f"{origin} has connect_timeout=, which must be a number of seconds such as 10"
        )
    return float(timeout_s) if timeout_s > 0 else math.inf


def _translate(options: dict[str, str], origin: str) -> dict[str, Any]:
    """Remove the options that asyncpg does not read, and return the arguments of ``connect()`` for them."""
    settings: dict[str, Any] = {}
    for option in LEFT_OUT:
        options.pop(option, None)
    timeout_s = _timeout_of(options, origin)
    if timeout_s is not None:
        del options["connect_timeout"]
        # None is asyncpg's way to say that there is no limit.
        settings["timeout"] = None if math.isinf(timeout_s) else timeout_s
    if fallback := options.pop("fallback_application_name", None):
        options.setdefault("application_name", fallback)
    if options.pop("pgbouncer", "false").lower() in _ON:
        settings["statement_cache_size"] = 0
    # An sslmode= in the DSN precedes these two options of other libraries and of older releases of libpq.
    if (mode := options.pop("ssl", None)) is not None:
        options.setdefault("sslmode", SSL_MODES.get(mode.lower(), mode))
    if (required := options.pop("requiressl", None)) is not None:
        options.setdefault("sslmode", "require" if required == "1" else "prefer")
    if options.pop("sslnegotiation", "postgres") == "direct":
        settings["direct_tls"] = True
    # asyncpg cannot bind the channel. A certificate that is verified protects from the same attack.
    if options.pop("channel_binding", None) == "require" and options.get("sslmode") not in VERIFYING:
        options["sslmode"] = "verify-full"
        # If no root certificates are named, those of the operating system verify the certificate.
        if "sslrootcert" not in options and not os.environ.get("PGSSLROOTCERT"):
            options["sslrootcert"] = SYSTEM
    return settings


# -- services ------------------------------------------------------------------------------------------


def _add_service(options: dict[str, str], netloc: str, path: str, origin: str) -> None:
    """Replace the name of a service by the options that a file defines for it, unless the DSN has them.

    ``origin`` is the setting that the DSN comes from, for messages.
    """
    file = options.pop("servicefile", None) or os.environ.get("PGSERVICEFILE")
    service = options.pop("service", None) or os.environ.get("PGSERVICE")
    if not service:
        return
    account, _, hosts = netloc.rpartition("@")
    # What the DSN has itself, in its options or before these, takes precedence.
    names_in_dsn = set(options)
    # A host of the DSN is not combined with the port of the service, which belongs to another host.
    if hosts or "host" in options:
        names_in_dsn |= {"host", "port"}
    if path or "database" in options:
        names_in_dsn |= {"dbname", "database"}
    user, has_password, _ = account.partition(":")
    if user:
        names_in_dsn.add("user")
    if has_password:
        names_in_dsn.add("password")
    values = _read_service(service, file, origin)
    options.update({option: value for option, value in values.items() if option not in names_in_dsn})


def _read_service(service: str, file: str | None, origin: str) -> Mapping[str, str]:
    """Return the options of a service from the first file that defines it."""
    paths = [Path(file) if file else _in_home(f".{SERVICE_FILE}")]
    if folder := os.environ.get("PGSYSCONFDIR"):
        paths.append(Path(folder) / SERVICE_FILE)
    for path in paths:
        # libpq knows no other comments and delimiters.
        parser = configparser.RawConfigParser(comment_prefixes=("#",), delimiters=("=",))
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            # The message of the error may quote a password.
            raise ConfigurationError(
                f"{origin} names the service {service!r}, but {path} cannot be read ({type(error).__name__})"
            ) from None
        if parser.has_section(service):
            return dict(parser[service])
    raise ConfigurationError(
        f"{origin} names the service {service!r}, which is not defined in {' or '.join(map(str, paths))}; "
        "define it there, or set PGSERVICEFILE to the file that does"
    )


# -- certificates --------------------------------------------------------------------------------------


def _tls_settings(options: dict[str, str], origin: str) -> dict[str, Any]:
    """Check the files of certificates. Return ``ssl=`` if the operating system's are used, otherwise nothing.

    asyncpg itself reads the files that the options name. Here they are loaded only for clearer errors.
    """
    mode = options.get("sslmode") or os.environ.get("PGSSLMODE") or ""
    root = _file_of(options, "sslrootcert")
    # asyncpg would take this value for the path of a file, so it gets a context for TLS instead.
    if root is not None and root.text == SYSTEM:
        if mode not in {"", "verify-full"}:
            raise ConfigurationError(
                f"{root.place(origin)} needs sslmode=verify-full, not {mode}: public authorities sign the "
                "certificates of everyone, for other names"
            )
        return {"ssl": _system_context(options, origin)}
    if mode == "disable":
        return {}
    # In all other modes, asyncpg does not verify the server, so it does not read these two files.
    if mode in VERIFYING | {"require"}:
        for option in ("sslrootcert", "sslcrl"):
            if (file := _file_of(options, option)) is not None:
                _load(file, origin, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations, file.text)
    if mode in VERIFYING and root is None and not _in_home(ROOT_FILE).exists():
        raise ConfigurationError(
            f"{origin} has sslmode={mode}, but no root certificate (~/{ROOT_FILE} does not exist); pass "
            "sslrootcert= with the file of your hosting service, or sslrootcert=system for the certificates "
            "of the operating system"
        )
    _load_client_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), options, origin)
    return {}


def _system_context(options: dict[str, str], origin: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates of the operating system, and has the client's one.

    The options that the context replaces are removed from ``options``.
    """
    context = ssl.create_default_context()
    _load_client_certificate(context, options, origin)
    if (revoked := _file_of(options, "sslcrl")) is not None:
        _load(revoked, origin, context.load_verify_locations, revoked.text)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    if ssl.HAS_ALPN:
        context.set_alpn_protocols([ALPN])
    # asyncpg gets the context in place of these options.
    for option in ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl"):
        options.pop(option, None)
    for option, attribute in (
        ("ssl_min_protocol_version", "minimum_version"),
        ("ssl_max_protocol_version", "maximum_version"),
    ):
        if version := options.pop(option, None):
            try:
                # The member for "TLSv1.2" is called TLSv1_2.
                setattr(context, attribute, ssl.TLSVersion[version.replace(".", "_")])
            except KeyError:
                raise ConfigurationError(
                    f"{origin} has {option}=, which must be TLSv1.2 or TLSv1.3"
                ) from None
    return context


def _load_client_certificate(context: ssl.SSLContext, options: Mapping[str, str], origin: str) -> None:
    """Load the certificate of the client into a context, if the options or the environment name one."""
    certificate = _file_of(options, "sslcert")
    if certificate is None:
        return
    key = _file_of(options, "sslkey")
    # load_cert_chain() would not report which of the two files cannot be read.
    for file in (certificate, key):
        if file is not None:
            _load(file, origin, _read_byte, file.text)
    password = options.get("sslpassword", "")
    # Without a callable, OpenSSL would ask for the password of the key on the terminal.
    _load(
        certificate,
        origin,
        context.load_cert_chain,
        certificate.text,
        None if key is None else key.text,
        lambda: password,
    )


class _File(NamedTuple):
    """A file of certificates or keys, whose path is the value of an option or of an environment variable."""

    option: str
    variable: str
    text: str
    """The value: a path, or ``SYSTEM``."""
    is_of_dsn: bool
    """Whether the option of the DSN has the path; otherwise the environment variable does."""

    def place(self, dsn_origin: str) -> str:
        """Return where the path comes from, for a message: an option of the DSN, or a variable."""
        return f"{self.option} of {dsn_origin}" if self.is_of_dsn else self.variable


def _file_of(options: Mapping[str, str], option: str) -> _File | None:
    """Return the file that an option or its environment variable names; None if neither does."""
    variable = f"PG{option.upper()}"
    text = options.get(option) or os.environ.get(variable)
    if not text:
        return None
    return _File(option, variable, text, option in options)


def _load(file: _File, origin: str, load: Any, *arguments: Any) -> None:
    """Call ``load(*arguments)``, which reads the file; raise ConfigurationError if that fails.

    ``origin`` is the setting that the DSN comes from, for the message.
    """
    try:
        load(*arguments)
    # An SSLError is an OSError too, so it comes first.
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"{file.place(origin)} names a file without a certificate and key in the format PEM that fit: "
            f"{file.text} ({error.reason or type(error).__name__})"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{file.place(origin)} names a file that cannot be read: {file.text} ({error.strerror}); "
            "correct the path, which is relative to the working directory, or mount the file"
        ) from None


def _read_byte(path: str) -> None:
    """Raise OSError if a file cannot be read."""
    with Path(path).open("rb") as file:
        file.read(1)
