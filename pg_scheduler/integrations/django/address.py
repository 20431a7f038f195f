"""The address of a database in ``DATABASES``, for a driver that is not Django's.

It is read from the connection, whose database the test runner changes. So a worker in a test uses the
database of the test.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from pg_scheduler.base.dsn import normalise_dsn
from pg_scheduler.base.dsn_options import NAMES, check_options
from pg_scheduler.errors import ConfigurationError

IGNORED: Final = frozenset(
    {
        "application_name",
        "client_encoding",
        "connect_timeout",
        "cursor_factory",
        "fallback_application_name",
        "isolation_level",
        "pool",
        "prepare_threshold",
        "server_side_binding",
    }
)
"""Options that a worker does not need: it has its own, or they belong to Django's driver."""

MAPPED: Final = NAMES - IGNORED
"""Options of libpq that are written into the DSN, where one that a worker cannot use is an error."""

ASSUME_ROLE: Final = "assume_role"
"""Django's name of a setting of the server, ``role``."""

DEFAULT_DATABASE: Final = "postgres"
"""The database that Django uses if ``NAME`` is None."""

_names_before_tests: Final[dict[str, Any]] = {}
"""The names of databases before a test runner has changed them, by alias."""


def remember_names() -> None:
    """Remember the names of the databases in the settings: a test runner changes them later."""
    _names_before_tests.update({alias: connections.settings[alias]["NAME"] for alias in connections})


def dsn_of(alias: str, dsn: str | None = None) -> str:
    """Return the DSN of a database.

    Args:
        alias: The alias in ``DATABASES``.
        dsn: A DSN of the same database, to be used instead of the address in ``DATABASES``. In a test run it
            leads to the test database.

    Raises:
        ImproperlyConfigured: An option of libpq has no counterpart.
    """
    settings = connections[alias].settings_dict
    if dsn is not None:
        parts = urlsplit(normalise_dsn(dsn, "DSN"))
        # A test runner has given the database another name.
        if alias in _names_before_tests and settings["NAME"] != _names_before_tests[alias]:
            parts = parts._replace(path=f"/{quote(settings['NAME'])}")
        return urlunsplit(parts)
    options = dict(settings["OPTIONS"])
    # The options of libpq become parameters of the DSN, in alphabetical order. The other ones are left.
    query = {name: options.pop(name) for name in sorted(MAPPED & options.keys())}
    if ASSUME_ROLE in options:
        query["role"] = options.pop(ASSUME_ROLE)
    unknown_names = sorted(options.keys() - IGNORED)
    if unknown_names:
        raise ImproperlyConfigured(
            f"a worker cannot use {unknown_names[0]!r} in DATABASES[{alias!r}]['OPTIONS']; write its "
            "address as OPTIONS['DSN'] in TASKS: postgresql://user@host:5432/database?name=value"
        )
    try:
        check_options(
            f"postgresql://?{urlencode(query, quote_via=quote)}", f"DATABASES[{alias!r}]['OPTIONS']"
        )
    except ConfigurationError as error:
        raise ImproperlyConfigured(str(error)) from error
    # A list of hosts or the folder of a socket can only be a parameter of the query.
    for name in ("HOST", "PORT"):
        if settings[name]:
            query[name.lower()] = settings[name]
    user = quote(str(settings["USER"] or ""), safe="")
    password = quote(str(settings["PASSWORD"] or ""), safe="")
    account = ""
    if user or password:
        account = f"{user}:{password}@" if password else f"{user}@"
    database = DEFAULT_DATABASE if settings["NAME"] is None else str(settings["NAME"])
    # The name is empty if a service of libpq names the database.
    path = f"/{quote(database, safe='')}" if database else ""
    return f"postgresql://{account}{path}?{urlencode(query, quote_via=quote)}"
