"""The Flask application ported from BackgroundScheduler: examples/flask_reminders."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.sync.programs import TIMEOUT_S, gunicorn
from tools.environment import ROOT

pytestmark = pytest.mark.slow


def send(method: str, address: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return json.load(response)


def test_flask_example_sends_each_reminder_once_from_one_of_four_workers(dsn: str, tmp_path: Path) -> None:
    pytest.importorskip("flask", reason="dev.py has not updated this environment")
    now, later = datetime.now(UTC).isoformat(), (datetime.now(UTC) + timedelta(days=1)).isoformat()
    tea = ["ada@example.org", "tea"]
    with gunicorn("examples.flask_reminders.app:create_app()", ROOT, dsn) as (process, address):
        assert process.stdout
        assert send("PUT", f"{address}/reminders/one", {"at": later, "args": tea})["status"] == "pending"
        send("PUT", f"{address}/reminders/two", {"at": later, "args": tea})
        assert send("GET", f"{address}/reminders") == ["one", "two"]
        assert send("DELETE", f"{address}/reminders/two")["status"] == "cancelled"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            send("GET", f"{address}/reminders/three")
        send("PUT", f"{address}/reminders/one", {"at": now, "args": tea})  # replaces the first one
        assert process.stdout.readline() == "to ada@example.org: tea\n"
        assert send("POST", f"{address}/report")["id"].startswith("periodic:")
        assert process.stdout.readline() == "report\n"
        send("PUT", f"{address}/reminders/four", {"at": now, "args": ["ada", "tea"]})
        assert process.stdout.readline().startswith("JobFailed(job_id='four'")
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (0, ""), log
    assert "SIGKILL" not in log
