"""A router that keeps the tables out of the default database."""

from typing import Any


class NotHere:
    """Lets no migration of pg_scheduler run."""

    def allow_migrate(self, _db: str, app_label: str, **_hints: Any) -> bool | None:
        return False if app_label == "pg_scheduler" else None
