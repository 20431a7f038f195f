"""The command health, against a real server and real rows."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import jsonschema
import pytest

from pg_scheduler.telemetry.probes import serve_health
from tests.cli.conftest import Ran, Run, schema
from tests.support.inside import ExitCode, Health, HealthCheck
from tests.support.world import HOUR, World, populate


class Source:
    is_ok = True

    def health(self) -> Health:
        check = HealthCheck(
            "lease", self.is_ok, "trusted" if self.is_ok else "not trusted", ("ready", "live")
        )
        return Health("running", 25, 3, (check,))


def document(ran: Ran) -> dict[str, object]:
    found: dict[str, object] = json.loads(ran.out)
    jsonschema.validate(found, schema("health"))
    return found


def test_probe_is_asked_without_a_proxy(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    source = Source()
    with serve_health(source, port=0) as server:
        url = f"http://127.0.0.1:{server.port}/readyz"
        ran = call("health", "--url", url)
        assert (ran.code, document(ran)["text"]) == (0, "ok")
        source.is_ok = False
        ran = call("health", "--url", url)
        assert ran.code == ExitCode.NEGATIVE
        assert "[-]lease failed: not trusted" in str(document(ran)["text"])
        monkeypatch.setenv("PG_SCHEDULER_WORKER_HEALTH_PORT", str(server.port))
        assert document(call("health"))["source"] == f"http://127.0.0.1:{server.port}/livez"
    ran = call("health", "--url", url)
    assert ran.code == ExitCode.NEGATIVE
    assert "no answer" in str(document(ran)["text"])


def test_port_is_read_from_the_settings_file(call: Run, tmp_path: Path) -> None:
    with serve_health(Source(), port=0) as server:
        text = f"[tool.pg-scheduler.worker]\nhealth-port = {server.port}\n"
        (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
        assert document(call("health"))["source"] == f"http://127.0.0.1:{server.port}/livez"


@pytest.mark.parametrize("options", [("--url", "file:///etc/passwd"), ("--url", "http://x/", "--self")])
def test_wrong_options_exit_with_2(call: Run, options: tuple[str, ...]) -> None:
    assert call("health", *options).code == ExitCode.USAGE


def test_rows_of_this_machine_decide(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:

    async def add_others(world: World) -> None:
        await world.worker("w0", hostname="another", lease=HOUR)
        await world.worker("w1", hostname=platform.node(), lease=-HOUR)

    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    assert document(call("health"))["text"] == f"no worker runs on {platform.node()}"
    populate(dsn, add_others)
    assert call("health", "--self").code == ExitCode.NEGATIVE
    populate(dsn, lambda world: world.worker("w2", hostname=platform.node(), lease=HOUR))
    ran = call("health")
    assert (ran.code, document(ran)["is_ok"]) == (0, True)
    assert "1 of 2 workers" in str(document(ran)["text"])
