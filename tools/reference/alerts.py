"""The table of the alerts of ``pg-scheduler alerts``, in the place of a comment."""

from __future__ import annotations

from typing import Any, Final

import yaml

from tools.environment import ROOT

COMMENT: Final = "<!-- alerts -->"
"""A page has the table of all alerts in the place of this comment."""

PREFIX: Final = "PgScheduler"

_RULES = ROOT / "pg_scheduler" / "ops" / "alerts" / "pg_scheduler.rules.yaml"
_UNITS = {"m": "min", "h": "h"}


def with_alerts(page: str) -> str:
    """Return a page with the table of all alerts, if it has the comment for it."""
    return page.replace(COMMENT, _table()) if COMMENT in page else page


def _rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(_RULES.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def _table() -> str:
    rows = [
        f"| [`{name.removeprefix(PREFIX)}`](runbook.md#{name.lower()}) | `{' '.join(rule['expr'].split())}` "
        f"| {_duration(rule.get('for'))} | {rule['labels']['severity']} |"
        for rule in _rules()
        for name in [rule["alert"]]
    ]
    return "\n".join(["| Alert | Condition | For | Severity |", "|---|---|---|---|", *rows])


def _duration(text: str | None) -> str:
    return "" if text is None else f"{text[:-1]} {_UNITS[text[-1]]}"
