"""The source of the templates: lines that a person can review."""

from __future__ import annotations

from pathlib import Path

import pytest

from pg_scheduler import dashboard

TEMPLATES = Path(dashboard.__file__).parent / "templates"
MAX_COLUMNS = 120
LONG = {
    "_error_actions.html", "_job_actions.html", "_job_rows.html", "_use.html", "error_group.html",
    "errors.html", "job.html", "job_form.html", "jobs.html", "limit.html", "limits.html", "overview.html",
    "schedule.html", "schedules.html", "task.html", "tasks.html", "worker.html", "workers.html",
}  # fmt: skip
"""Templates that have longer lines still; the set only becomes smaller."""


@pytest.mark.parametrize("path", sorted(TEMPLATES.iterdir()), ids=lambda path: path.name)
def test_lines_of_templates_are_short(path: Path) -> None:
    lengths = [len(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert path.name in LONG or max(lengths) <= MAX_COLUMNS
