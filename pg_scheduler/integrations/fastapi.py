"""Use a Scheduler in the endpoints of FastAPI.

The lifespan of the application yields the Scheduler as its state: ``yield {"scheduler": scheduler}``.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import Depends
from starlette.requests import HTTPConnection

from pg_scheduler import ConfigurationError, Scheduler

__all__ = ["SchedulerDep", "get_scheduler"]


async def get_scheduler(connection: HTTPConnection) -> Scheduler:
    """Return the Scheduler that the lifespan yields, as a dependency of endpoints and websockets.

    Tests replace it by another one: ``app.dependency_overrides[get_scheduler] = lambda: scheduler``.

    Raises:
        ConfigurationError: The lifespan has not run, or yields no Scheduler under this name.
    """
    scheduler = getattr(connection.state, "scheduler", None)
    if not isinstance(scheduler, Scheduler):
        raise ConfigurationError(
            f"the state of the lifespan has {scheduler!r} as its scheduler; let the lifespan of the "
            'application end with `yield {"scheduler": scheduler}`, or override get_scheduler in tests'
        )
    return scheduler


SchedulerDep: TypeAlias = Annotated[Scheduler, Depends(get_scheduler)]
"""The type of a parameter that receives the Scheduler: ``async def endpoint(scheduler: SchedulerDep)``."""
