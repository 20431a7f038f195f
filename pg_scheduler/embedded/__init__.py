"""A private PostgreSQL server for demos, tests and development: see `EmbeddedPostgres`."""

from pg_scheduler.embedded.binaries import EmbeddedError, find_binaries
from pg_scheduler.embedded.server import (
    EmbeddedPostgres,
    ExternalPostgres,
    Server,
    StopMode,
    server,
    server_dsn,
)

__all__ = [
    "EmbeddedError",
    "EmbeddedPostgres",
    "ExternalPostgres",
    "Server",
    "StopMode",
    "find_binaries",
    "server",
    "server_dsn",
]
