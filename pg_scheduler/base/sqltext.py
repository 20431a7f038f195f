"""Quote identifiers and qualify table names in SQL text, and check texts that PostgreSQL stores."""

from __future__ import annotations

import re
from typing import Final

from pg_scheduler.errors import ConfigurationError

MAX_IDENTIFIER_BYTES: Final = 63

RESERVED_PREFIX: Final = "pg_"
"""How the names of PostgreSQL's own schemas begin; no other schema may have such a name."""

NOT_RESERVED: Final = f"not begin with {RESERVED_PREFIX}, as only PostgreSQL's own schemas do"
"""The rule for the name of a schema, after "must" or "should"."""

_STORABLE: Final = re.compile(r"[^\x00\ud800-\udfff]*")


def qualify(sql: str, schema: str) -> str:
    """Replace every ``{schema}``, which directly precedes a name, by the quoted schema and a dot.

    Example:
        >>> qualify("SELECT 1 FROM {schema}scheduled_jobs", "jobs")
        'SELECT 1 FROM "jobs".scheduled_jobs'
    """
    return sql.replace("{schema}", f"{quote_identifier(schema)}.")


def quote_identifier(name: str) -> str:
    """Quote an identifier for SQL.

    Raises:
        ConfigurationError: The name is empty, has a NUL character, or is longer than 63 bytes, which the
            server would truncate without an error.

    Example:
        >>> print(quote_identifier('the "odd" jobs'))
        "the ""odd"" jobs"
    """
    size = len(name.encode())
    if not 0 < size <= MAX_IDENTIFIER_BYTES or "\0" in name:
        raise ConfigurationError(
            f"the name of a schema, role or function must have 1 to {MAX_IDENTIFIER_BYTES} bytes in UTF-8 "
            f"and no NUL character, not {name!r}"
        )
    return '"' + name.replace('"', '""') + '"'


def check_new_schema(name: str) -> None:
    """Raise ConfigurationError if PostgreSQL creates no schema of this name."""
    if name.startswith(RESERVED_PREFIX):
        raise ConfigurationError(f"schema must {NOT_RESERVED}, not {name!r}")


def is_storable(text: str) -> bool:
    """Return whether PostgreSQL can store a text: one without NUL and lone surrogates."""
    return _STORABLE.fullmatch(text) is not None


def storable(text: str) -> str:
    """Return a text that PostgreSQL can store, with escapes for NUL and lone surrogates."""
    # A subclass of str may override its methods.
    return str.replace(text, "\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
