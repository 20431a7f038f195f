"""The tables of the metrics, from the table that the exporters read.

A comment names what they are of: ``<!-- metrics: process -->`` or ``<!-- metrics: cluster -->``.
"""

from __future__ import annotations

import re
from typing import Final

from pg_scheduler.telemetry.metrics import CLUSTER, PROCESS

TABLES: Final = {"process": PROCESS, "cluster": CLUSTER}
COMMENT: Final = re.compile(r"^<!-- metrics: (?P<of>\w+) -->$", re.MULTILINE)


def with_metrics(page: str) -> str:
    """Return a page with a table in the place of each comment."""
    return COMMENT.sub(lambda comment: _table(comment["of"]), page)


def _table(of: str) -> str:
    rows = [
        f"| `{family.sample_name}` | {', '.join(f'`{label}`' for label in family.labels)} | "
        f"{family.text.removesuffix('.')} |"
        for family in TABLES[of].values()
    ]
    return "\n".join(["| Family | Labels | Value |", "|---|---|---|", *rows])
