"""Write the JSON files in pg_scheduler/ops/grafana."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.dashboards.panels import DASHBOARDS, SCHEMA, C, Panel
from tools.environment import ROOT

FOLDER = ROOT / "pg_scheduler" / "ops" / "grafana"
WIDTH = 24
SCHEMA_VERSION = 39


def dashboard(name: str) -> dict[str, Any]:
    """Return a dashboard as Grafana reads it."""
    return {
        "uid": f"pg-scheduler-{name}",
        "title": f"pg_scheduler: {name}",
        "tags": ["pg_scheduler"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards",
                "title": "pg_scheduler",
                "tags": ["pg_scheduler"],
                "asDropdown": True,
                "includeVars": True,
            }
        ],
        "templating": {"list": list(_variables())},
        "panels": list(_panels(DASHBOARDS[name])),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    queries = {
        "schema": ("Schema", f"label_values({C}workers, schema)"),
        "name": ("Job name", f"label_values({C}jobs_ended_total{{{SCHEMA}}}, job_name)"),
    }
    for name, (label, query) in queries.items():
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }


def _panels(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    x = y = height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > WIDTH:
            x, y = 0, y + height
        height = 4 if panel.kind == "stat" else 8
        if x and panel.kind != "stat" and panels[number - 2].kind == "stat":
            x, y = 0, y + 4
        yield {
            "id": number,
            "type": panel.kind,
            "title": panel.title,
            "description": panel.text,
            "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
            "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
            "options": {},
            "targets": [_target(panel, *each, place) for place, each in enumerate(panel.queries)],
        }
        x += panel.width


def _target(panel: Panel, query: str, legend: str, place: int) -> dict[str, Any]:
    target: dict[str, Any] = {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": query}
    if panel.kind == "timeseries":
        return {**target, "legendFormat": legend, "range": True}
    return {**target, "instant": True, **({"format": "table"} if panel.kind == "table" else {})}


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def texts() -> dict[Path, str]:
    """Return the files and their contents."""
    return {
        FOLDER / f"{name}.json": json.dumps(dashboard(name), indent=2, ensure_ascii=False) + "\n"
        for name in DASHBOARDS
    }


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, text in texts().items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
