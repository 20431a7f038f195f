"""Statements that give a database the defects of engines that speak the protocol of PostgreSQL."""

from __future__ import annotations

from typing import Final

_EDIT: Final = """
    SET allow_system_table_mods = on;
    SET search_path = pg_catalog;
    ALTER FUNCTION version() RENAME TO lost_version;
    CREATE FUNCTION version() RETURNS text LANGUAGE sql AS 'SELECT ''CockroachDB CCL v25.2.0''';
    ALTER FUNCTION pg_try_advisory_xact_lock(bigint) RENAME TO lost_try;
"""

NO_FUNCTION: Final = _EDIT
"""The server names another engine, and one of the functions for advisory locks is missing."""

NO_LOCKS: Final = f"""{_EDIT}
    ALTER FUNCTION pg_advisory_xact_lock(bigint) RENAME TO lost_lock;
    CREATE FUNCTION pg_advisory_xact_lock(bigint) RETURNS void LANGUAGE sql AS '';
    CREATE FUNCTION pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
"""
"""The server names another engine, and advisory locks have no effect."""
