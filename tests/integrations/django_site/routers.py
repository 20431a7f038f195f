"""Routers of the tables."""

from typing import Any


class NotHere:
    """Lets no migration of pg_scheduler run."""

    def allow_migrate(self, _db: str, app_label: str, **_hints: Any) -> bool | None:
        return False if app_label == "pg_scheduler" else None


class Jobs:
    """Chooses the database of the tables."""

    def db_for_read(self, model: Any, **_hints: Any) -> str | None:
        return "jobs" if model._meta.app_label == "pg_scheduler" else None

    db_for_write = db_for_read
