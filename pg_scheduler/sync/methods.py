"""The public members of `Scheduler`, blocking. Type checkers read methods.pyi instead."""

from typing import Any

from pg_scheduler.base.blocking import derive
from pg_scheduler.scheduler import Scheduler

Settings = dict[str, Any]
"""The keyword parameters of `Scheduler`."""

BlockingMethods = derive(Scheduler, "BlockingMethods", by_hand=("register", "subscribe"))
