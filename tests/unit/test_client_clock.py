"""The clock of the process: where the package reads it, and why it need not read that of the server.

The clock of a host may be wrong. A due time that the server can compute is computed there, by the statement
that writes it or by a statement before.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Final

import pg_scheduler
from tests.support.source import parsed

ROOT: Final = Path(pg_scheduler.__file__).parent
READERS: Final = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("time", "time"),
    ("time", "time_ns"),
}

SHOWN: Final = "It is compared with what the machine of a person shows, or shown there."
DEMO: Final = "The demo runs on one machine, with a server of its own."
TYPED: Final = "A person has written a time, such as +15m, at this machine; the doctor compares its clock."
LENGTH: Final = "It measures a length on one machine."
TEST_KIT: Final = "A test chooses the time."

USES: Final = {
    "cli/assistant/changes.py": (1, "A proposal expires in the process that made it."),
    "cli/assistant/reads.py": (2, SHOWN),
    "cli/demo/afterwards.py": (2, DEMO),
    "cli/demo/history.py": (1, DEMO),
    "cli/demo/jobs.py": (1, DEMO),
    "cli/demo/scenario.py": (5, DEMO),
    "cli/imports.py": (
        2,
        "It leaves out what the other scheduler, which has this clock, would not run any more.",
    ),
    "cli/job_show.py": (1, SHOWN),
    "cli/runs.py": (2, SHOWN),
    "cli/schedule_edit.py": (1, TYPED),
    "cli/schedule_times.py": (1, SHOWN),
    "cli/status.py": (1, SHOWN),
    "cli/values.py": (1, TYPED),
    "clock.py": (1, "A clock for tests."),
    "dashboard/team_views.py": (1, "It checks whether a search can be read."),
    "queue/enqueuer.py": (
        1,
        "It finds the delay that a caller has added to the clock of a host that is behind.",
    ),
    "queue/prepare.py": (1, "A generated id begins with it, so that the ids of a process are in order."),
    "queue/headers.py": (1, "Middleware reads the due time; the job gets that of the server."),
    "inspect/cluster.py": (2, "It measures by how much the clocks differ."),
    "inspect/job_actions.py": (2, "It checks whether a search can be read."),
    "inspect/store/server.py": (1, "It measures by how much the clocks differ."),
    "integrations/django/backend.py": (1, "Django shows when the task was enqueued."),
    "integrations/django/results.py": (1, "Django distinguishes tasks that are due from others."),
    "integrations/pydantic_ai.py": (
        1,
        "The run of an agent begins by the clock with which the library of the agent compares it.",
    ),
    "integrations/sentry.py": (3, LENGTH),
    "base/meter.py": (1, "The lateness of attempts is measured on the host of their worker."),
    "database/statements.py": (1, "It corrects the time by the offset that heartbeats measure."),
    "testing/context.py": (2, TEST_KIT),
    "testing/scheduler.py": (1, TEST_KIT),
    "testing/transaction.py": (1, TEST_KIT),
    "telemetry/webhook.py": (1, SHOWN),
    "triggers/phrases.py": (1, TYPED),
    "cluster_events/relay.py": (1, "It tells from when on events of others may be missing."),
    "worker/lease.py": (1, "It measures by how much the clocks differ."),
    "worker/notifications.py": (1, "It tells from when on events of others may be missing."),
    "worker/attempt_runner.py": (1, LENGTH),
    "worker/looks.py": (1, SHOWN),
    "worker/reporter.py": (
        2,
        "The model needs instants; the statement writes those of the server. Shown ones are corrected.",
    ),
    "worker/runners/child.py": (1, LENGTH),
}
"""The files that read the clock of the process, with the number of places and the reason."""


def reads(tree: ast.AST) -> int:
    return sum(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in READERS
        for node in ast.walk(tree)
    )


def test_package_reads_the_clock_of_the_process_only_where_the_list_has_a_reason() -> None:
    found = Counter[str]()
    for path in ROOT.rglob("*.py"):
        found[path.relative_to(ROOT).as_posix()] = reads(parsed(path))
    assert +found == Counter({path: count for path, (count, _) in USES.items()})


def test_readers_of_a_clock_are_found() -> None:
    source = "import time\nread = datetime.now\nat = time.time() + time.monotonic()\n"
    assert reads(ast.parse(source)) == 2
