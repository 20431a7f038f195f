"""Loads the statements: ``sql/*.sql``, each after a line ``-- name: <name>``.

``{schema}`` before a table's name becomes the quoted schema, so that statements mean the same tables
whatever the search path of the connection they run on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from pg_scheduler.sqltext import qualify

__all__ = ["load_queries"]

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def load_queries(schema: str) -> Mapping[str, str]:
    """Every statement by name, for the tables in ``schema``."""
    return MappingProxyType({name: qualify(text, schema) for name, text in _statements()})


def _statements() -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for file in sorted(files("pg_scheduler.store").joinpath("sql").iterdir(), key=lambda each: each.name):
        _, *parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            if name in seen:
                raise LookupError(f"two statements are named {name!r}")
            seen.add(name)
            yield name, text.strip()
