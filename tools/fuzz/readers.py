"""Where the library reads text: a list made from its code, compared with what is known about each place.

A call of one of ``READING`` turns a text into something else. A module with such a call must be in
``MODULES``: with the parser of ``parsers.py`` that reaches it, or with the reason for which its text is not
foreign. ``python -m tools.fuzz.readers`` prints the calls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple

from tools.fuzz.parsers import ROOT

PACKAGE: Final = ROOT / "pg_scheduler"

READING: Final = frozenset(
    {
        *("b64decode", "urlsafe_b64decode", "fromhex", "raw_decode", "literal_eval", "loads", "load_json"),
        *("validate_json", "model_validate_json", "fromisoformat", "strptime", "read_timestamp"),
        *("urlsplit", "urlparse", "parse_qs", "parse_qsl", "unquote", "ZoneInfo", "expand"),
        *("fullmatch", "match", "finditer", "findall", "search"),
    }
)
"""The names of functions and methods that read a text."""


OWN: Final = "written by this library, or by the code that imports it"
OPERATOR: Final = "an option or a file of the person who starts the process"
SERVER: Final = "made by PostgreSQL from what this library has sent"
CHECKED: Final = "compares a text with a pattern of bounded length, and converts nothing"

MODULES: Final[Mapping[str, str]] = {
    "base/blocking": OWN,
    "base/dsn": "dsn",
    "base/dsn_options": "dsn",
    "base/sqlbuiltins": OWN,
    "base/sqltext": "search-position",
    "base/text/durations": "time",
    "base/text/json_text": "trigger-json",
    "base/text/times": "time",
    "base/validators": "the value is JSON that was read already; pydantic checks it",
    "cli/completion": CHECKED,
    "cli/deployment": OWN,
    "cli/health": OPERATOR,
    "cli/local_zone": OPERATOR,
    "cli/main": OPERATOR,
    "cli/output": OPERATOR,
    "cli/schedule_times": OWN,
    "cli/settings": OPERATOR,
    "cli/values": "command",
    "cli/worker/logs": OWN,
    "cli/worker/supervisor": OWN,
    "cluster_events/wire": "events",
    "dashboard/access": "headers",
    "dashboard/actions/job_forms": "form",
    "dashboard/actions/request": "form",
    "dashboard/actions/schedule_form": "form",
    "dashboard/app": CHECKED,
    "dashboard/arguments": "form",
    "dashboard/context": "entered-time",
    "dashboard/csrf": "headers",
    "dashboard/job_rows": CHECKED,
    "dashboard/messages": "cookie",
    "dashboard/pages/calendar": CHECKED,
    "dashboard/pages/completion": CHECKED,
    "dashboard/pages/errors": "error",
    "dashboard/pages/schedule_form": "trigger-form",
    "dashboard/pages/workflows": "workflow-position",
    "dashboard/positions": "sealed-position",
    "dashboard/snapshot": "versions",
    "dashboard/switch": OWN,
    "dashboard/team_views": OWN,
    "dashboard/texts": "error",
    "dashboard/tracebacks": "error",
    "database/callers/connection": SERVER,
    "database/faults": "server-message",
    "database/identity": "options",
    "database/migrations/plan": OWN,
    "database/migrations/routines": OWN,
    "database/migrations/shape": OWN,
    "database/migrations/sql": OWN,
    "database/queries": OWN,
    "embedded/binaries": OPERATOR,
    "embedded/server": OWN,
    "embedded/supervisor_process": OWN,
    "importing/apscheduler": "apscheduler",
    "importing/django_celery_beat": "celery",
    "importing/procrastinate": "procrastinate",
    "inspect/audit": CHECKED,
    "inspect/bulk_runs": "options",
    "inspect/dependencies": "cause",
    "inspect/doctor/schedules": "trigger-json",
    "inspect/fire_searches": OWN,
    "inspect/other_jobs": CHECKED,
    "inspect/pages": OWN,
    "inspect/positions": "search-position",
    "inspect/search/conditions": "search",
    "inspect/search/parser": "search",
    "inspect/store/inspections": SERVER,
    "inspect/store/searches": OWN,
    "inspect/texts": CHECKED,
    "integrations/django/address": "dsn",
    "integrations/django/paginator": SERVER,
    "integrations/fernet": "the ciphertext is authenticated before it is read",
    "integrations/pydantic_ai": "token",
    "integrations/sentry": CHECKED,
    "jobs/codec": "arguments",
    "jobs/context": "options",
    "jobs/deadlines": "options",
    "jobs/history": "history",
    "jobs/metadata": OWN,
    "jobs/payload": "arguments",
    "jobs/result": OWN,
    "jobs/rows": OWN,
    "jobs/step_values": CHECKED,
    "jobs/typed": "the value is JSON that was read already; pydantic checks it",
    "jobs/unique": OWN,
    "jobs/values": "the value is JSON that was read already; pydantic checks it",
    "queue/passed_results": "options",
    "schedules/job_builder": "options",
    "schedules/planner": OWN,
    "schedules/timing": OWN,
    "telemetry/probes": "probe",
    "telemetry/webhook": OPERATOR,
    "testing/crashing_worker": OWN,
    "triggers/cron_fields": "cron",
    "triggers/during": "trigger-json",
    "triggers/serialization": "trigger-json",
    "triggers/zones": "zone",
    "worker/runners/child": "written by the process that has started this one",
    "worker/runners/process": "written by a process that runs the functions of this service",
    "worker/runners/protocol": "written by a process that runs the functions of this service",
    "worker/worker_rows": SERVER,
}
"""For each module with such a call, the parser that reaches it, or why its text is not foreign."""


class Call(NamedTuple):
    """A call that reads a text."""

    module: str
    line: int
    name: str


@cache
def calls() -> tuple[Call, ...]:
    """Return the calls in the package, but for the demo, which is an application."""
    return tuple(_calls())


def _calls() -> Iterator[Call]:
    """Yield them, in the order of the modules."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if module.startswith("cli/demo/"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                function = node.func
                name = getattr(function, "attr", getattr(function, "id", ""))
                if name in READING:
                    yield Call(module, node.lineno, name)


if __name__ == "__main__":
    for call in calls():
        print(f"{call.module}:{call.line} {call.name}: {MODULES.get(call.module, 'unknown')}")
