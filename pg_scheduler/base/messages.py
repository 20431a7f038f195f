"""The messages that the processes of a schema send to one another by NOTIFY.

Messages are few and short; receivers read the details from the tables:

- ``due <mark> <time> ...``: a job is due, or will be soon. The mark identifies the sender, which ignores its
  own message; it is empty if the message was sent in a caller's transaction. The times are those of jobs, in
  seconds since 1970. An older release sends no times; ``?`` stands for an unknown time.
- ``check <worker id>``: a request for a heartbeat. A job of this worker was cancelled or changed, or another
  node suspects the worker.
- ``periodic``: a schedule was enabled or disabled.
- ``tasks``: a task was paused or resumed.
- ``subscriptions <worker id>``: this worker changed the classes of events that it wants.
- ``events <sender> <number> <JSON>``: events of a node, for the workers that subscribe to them.
- ``ended``: a transaction of the application has added jobs that wait for a job which had already ended, or
  has ended jobs at an isolation level other than READ COMMITTED. A scan applies the consequences.
- ``result <job id>``: a job has ended whose result is kept.
- ``look <worker id> <log or stack> <job id>``: a person looks at a running job of this worker.
- ``hello <worker id>``: a worker checks whether its connection receives messages.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

DUE: Final = "due"
HEARTBEAT_REQUEST: Final = "check"
PERIODIC: Final = "periodic"
TASKS: Final = "tasks"
SUBSCRIPTIONS: Final = "subscriptions"
EVENTS: Final = "events"
ENDED: Final = "ended"
RESULT: Final = "result"
PROBE: Final = "hello"
LOOK: Final = "look"

LOG: Final = "log"
STACK: Final = "stack"
"""What a person looks at: the last log lines for a minute; with ``stack``, the stack once as well."""


class Look(NamedTuple):
    """A request to a worker to show a job that it runs."""

    worker_id: str
    part: str
    job_id: str

    @property
    def message(self) -> str:
        """The message that sends it."""
        return f"{LOOK} {self.worker_id} {self.part} {self.job_id}"

    @classmethod
    def of(cls, content: str) -> Look | None:
        """Return the request that the content of a message has; None if the content has another form."""
        parts = content.split(" ", 2)
        return cls(*parts) if len(parts) == len(cls._fields) else None


def due_message(mark: str, *times: datetime | None) -> str:
    """Return the message that jobs are due at these times; None for an unknown time.

    It ends with a time or the mark, so a statement may append a blank and one more time.
    """
    texts = ["?" if time is None else f"{time.timestamp():.6f}" for time in times]
    return " ".join([DUE, mark, *texts])


def earliest_due(times: str) -> datetime | None:
    """Return the earliest time in a message about due jobs; None without times, or if one is unknown."""
    # float() rejects "?", which stands for an unknown time, and "", which remains if there are no times.
    try:
        return min(datetime.fromtimestamp(float(time), UTC) for time in times.split(" "))
    except (ValueError, OverflowError, OSError):  # the last two for numbers that people have sent by hand
        return None
