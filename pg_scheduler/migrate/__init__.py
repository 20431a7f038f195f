"""The schema: which migrations there are, which a database has, and the way from one to the other.

``verify`` is one cheap query and changes nothing; ``migrate`` takes a lock and runs what is missing, all in
one transaction.
"""

from .apply import migrate
from .plan import Migration, shipped_migrations
from .verify import REMEDY, home_schema, verify

__all__ = [
    "REMEDY",
    "Migration",
    "home_schema",
    "migrate",
    "shipped_migrations",
    "verify",
]
