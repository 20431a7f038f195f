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

for _name in __all__:  # tracebacks and docs name the module that users import from
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__
