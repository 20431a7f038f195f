"""A dashboard as an ASGI application, to be mounted in a web application or served by itself.

It needs the extra ``[dashboard]``. Every request passes ``authorize=``, which has no default.
"""

from pg_scheduler.dashboard.access import (
    Access,
    allow_anyone,
    basic_auth,
    bearer,
    trusted_header,
)
from pg_scheduler.dashboard.app import dashboard

__all__ = [
    "Access",
    "allow_anyone",
    "basic_auth",
    "bearer",
    "dashboard",
    "trusted_header",
]

for _name in __all__:  # docs name the module that users import from
    globals()[_name].__module__ = __name__
