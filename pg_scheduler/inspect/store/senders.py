"""The functions by which a role without privileges on the tables adds, cancels and signals jobs.

The functions are created for one role, and contain the names of tasks and signals that the role may use.
PostgreSQL checks whether a role may call a function, and the function checks the names. The function for
signals has copies of the statements of `Scheduler.signal()`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from pg_scheduler.base.sqltext import is_storable, quote_identifier
from pg_scheduler.database.queries import channel_of, load_query
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.inspect.store.grants import SENDER_ACTIONS
from pg_scheduler.jobs.step_values import MAX_NAME_BYTES, MAX_STEP_BYTES, MAX_STEPS, RESERVED_NAME

MAX_VALUE_BYTES: Final = 1_048_576
"""The maximum bytes of a signal's value, as for a Scheduler with default settings."""


def sender_script(schema: str, grantee: str, tasks: Sequence[str], signals: Sequence[str]) -> str:
    """Return a transaction that creates the functions of a role and lets it call them.

    Args:
        schema: The schema of the tables.
        grantee: The role. Its name also begins the names of the functions.
        tasks: The names of tasks whose jobs it may add, cancel and signal; ``*`` stands for any text.
        signals: The names of signals that it may send; ``*`` stands for any text.

    Raises:
        ConfigurationError: A name is empty or cannot be stored, or the name of a function would be too long.

    Example:
        >>> 'FUNCTION "jobs"."shop_cancel"' in sender_script("jobs", "shop", ["orders.*"], ["approved"])
        True
    """
    quoted_schema = quote_identifier(schema)
    # The values that take the places of {names} in the template.
    functions = {
        action: f"{quoted_schema}.{quote_identifier(f'{grantee}_{action}')}" for action in SENDER_ACTIONS
    }
    statements = {
        name: load_query(schema, name).text.removesuffix(";")
        for name in ("store_signal", "find_signal", "wake_signalled")
    }
    hint = f"The tasks are {', '.join(tasks)}; the signals are {', '.join(signals)}."
    values = {
        **functions,
        **statements,
        "schema": f"{quoted_schema}.",
        "jobs_table": _literal(f"{quoted_schema}.scheduled_jobs"),
        "home": quoted_schema,
        "grantee": quote_identifier(grantee),
        "channel": channel_of(schema),
        "tasks": _patterns(tasks),
        "signals": _patterns(signals),
        "hint": _literal(hint),
        "reserved": RESERVED_NAME.pattern,
        "max_name_bytes": str(MAX_NAME_BYTES),
        "max_value_bytes": str(MAX_VALUE_BYTES),
        "max_signals": str(MAX_STEPS),
        "max_bytes": str(MAX_STEP_BYTES),
    }
    lines = files(__package__).joinpath("senders.sql").read_text(encoding="utf-8").splitlines(keepends=True)
    # The comments of the file are for readers of this library.
    template = "".join(line for line in lines if not line.startswith("--"))
    script = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], template)
    return f"BEGIN;\n\n{script}\nCOMMIT;\n"


def _patterns(names: Sequence[str]) -> str:
    """Return an array of patterns of LIKE, as SQL, for names in which ``*`` stands for any text.

    Raises:
        ConfigurationError: A name is empty or cannot be stored.
    """
    for name in names:
        if not name or not is_storable(name):
            raise ConfigurationError(
                f"a name must be a text that is not empty and that PostgreSQL can store, not {name!r}"
            )
    # The special characters of LIKE stand for themselves, and "%" stands for any text.
    patterns = [re.sub(r"([\\%_])", r"\\\1", name).replace("*", "%") for name in names]
    return f"ARRAY[{', '.join(map(_literal, patterns))}]::text[]"


def _literal(text: str) -> str:
    """Return a text as a literal that may stand in the body of a function."""
    # A dollar sign could end the body of the function. A literal with E does not depend on a setting of the
    # server.
    quoted = text.replace("\\", "\\\\").replace("'", "''").replace("$", "\\044")
    return f"E'{quoted}'"
