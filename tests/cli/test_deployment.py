"""The files for deployments: what they contain, and that other programs accept them."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler.cli.deployment import FILES, PRINTED
from pg_scheduler.cli.main import program
from tests.cli.conftest import Run
from tests.docs.snippets import ROOT
from tests.support.debian import required
from tests.support.inside import ExitCode
from tests.support.prometheus import promtool
from tests.support.world import HOUR, MINUTE, SECOND, World

yaml = pytest.importorskip("yaml")

OPS = ROOT / "pg_scheduler" / "ops"
STOP_S = 75
CLUSTER, PROCESS = "pg_scheduler_cluster_", "pg_scheduler_"
"""The prefixes of the metrics of all workers, and of one process."""


def text(kind: str, name: str) -> str:
    return (OPS / kind / name).read_text(encoding="utf-8")


def documents(kind: str, name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text(kind, name)))


def manifests() -> list[dict[str, Any]]:
    """Return the manifests that ``k8s`` prints, but for the rules."""
    return [manifest for name in FILES["k8s"][: PRINTED["k8s"]] for manifest in documents("k8s", name)]


def commands(node: object) -> list[list[str]]:
    """Return every command of the program in a document."""
    if isinstance(node, list):
        own = [node] if node and node[0] == "pg-scheduler" else []
        return own + [each for child in node for each in commands(child)]
    return [each for child in node.values() for each in commands(child)] if isinstance(node, dict) else []


def test_every_file_is_shipped_and_printed_or_written() -> None:
    assert {kind: set(names) for kind, names in FILES.items()} == {
        kind: {path.relative_to(OPS / kind).as_posix() for path in (OPS / kind).rglob("*") if path.is_file()}
        for kind in FILES
    }


def test_commands_print_the_files(call: Run) -> None:
    assert call("systemd").out == text("systemd", "pg-scheduler-worker.service")
    assert call("compose").out == text("compose", "compose.yaml")
    assert list(yaml.safe_load_all(call("k8s").out))[:-1] == manifests()


def test_kubernetes_gets_the_alerting_rules_as_its_own_resource(call: Run, tmp_path: Path) -> None:
    *_, rule = yaml.safe_load_all(call("k8s").out)
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(call("alerts").out)
    assert call("k8s", "--into", str(tmp_path)).code == 0
    assert yaml.safe_load((tmp_path / "rules.yaml").read_text(encoding="utf-8")) == rule


@pytest.mark.parametrize("kind", list(FILES))
def test_files_are_written_once(call: Run, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / kind
    assert call(kind, "--into", str(folder)).code == 0
    written = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert {name: written.pop(name) for name in FILES[kind]} == {
        name: text(kind, name) for name in FILES[kind]
    }
    if kind == "compose":
        rules = written.pop("rules/pg_scheduler.rules.yaml")
        assert rules == text("alerts", "pg_scheduler.rules.yaml")
        assert all(json.loads(written.pop(name))["panels"] for name in sorted(written))
    assert written.pop("rules.yaml", "").startswith("# For the Prometheus Operator") == (kind == "k8s")
    assert not written
    again = call(kind, "--into", str(folder))
    assert again.code == ExitCode.REFUSED
    assert f"has {', '.join(FILES[kind])}" in again.err
    assert "already; nothing was written" in again.err
    (tmp_path / "file").touch()
    assert call(kind, "--into", str(tmp_path / "file" / "x")).code == ExitCode.REFUSED


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit_and_rates_its_exposure(tmp_path: Path) -> None:
    unit = tmp_path / "pg-scheduler-worker.service"
    content = text("systemd", unit.name)
    unit.write_text(re.sub(r"ExecStart=\S+", f"ExecStart={shutil.which('true')}", content), encoding="utf-8")
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    own = [line for line in verified.stderr.splitlines() if unit.name in line]
    assert own == []
    secure = ["systemd-analyze", "security", "--offline=yes", "--threshold=40", str(unit)]
    rated = subprocess.run(secure, capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout + rated.stderr


def test_unit_stops_the_main_process_first_and_in_time() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text("systemd", "pg-scheduler-worker.service"))
    service = unit["Service"]
    assert (service["Type"], service["KillMode"]) == ("notify", "mixed")
    assert int(service["TimeoutStopSec"]) == STOP_S
    assert service["RestartPreventExitStatus"] == str(int(ExitCode.USAGE))


def test_compose_mounts_the_files_that_are_written_beside_it() -> None:
    (compose,) = documents("compose", "compose.yaml")
    mounted = {
        source.removeprefix("./")
        for service in compose["services"].values()
        for volume in service.get("volumes", ())
        if (source := volume.partition(":")[0]).startswith("./")
    }
    assert mounted - {"rules", "dashboards"} == set(FILES["compose"]) - {"compose.yaml", "Dockerfile"}
    published = {port for service in compose["services"].values() for port in service.get("ports", ())}
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    worker = compose["services"]["worker"]
    assert worker["stop_grace_period"] == f"{STOP_S}s"
    assert worker["environment"]["PG_SCHEDULER_WORKER_HEALTH_PORT"] == "8080"
    assert worker["environment"]["PG_SCHEDULER_DSN"].startswith("postgresql://")
    for name in ("prometheus.yml", "alertmanager.yml", "grafana-datasource.yml", "grafana-dashboards.yml"):
        assert documents("compose", name)


def served(command: list[str], variables: dict[str, Any]) -> tuple[str, int] | None:
    """Return the prefix of the metrics that a container serves to others, and their port; None for none."""
    if command[1] == "exporter":
        options = dict(zip(command[2::2], command[3::2], strict=True))
        assert options["--host"] == "0.0.0.0"
        return CLUSTER, int(options.get("--port", 9465))
    if command[1] == "worker" and "PG_SCHEDULER_WORKER_METRICS_PORT" in variables:
        assert variables["PG_SCHEDULER_WORKER_HEALTH_HOST"] == "0.0.0.0"
        return PROCESS, int(variables["PG_SCHEDULER_WORKER_METRICS_PORT"])
    return None


def scraped_by_compose() -> set[str]:
    """Return the prefixes of the metrics that the Prometheus of Compose scrapes."""
    (compose,), (prometheus,) = documents("compose", "compose.yaml"), documents("compose", "prometheus.yml")
    found = set()
    for job in prometheus["scrape_configs"]:
        assert re.match("pg[-_]scheduler", job["job_name"])  # as the alert on missing targets expects
        targets = [each for static in job.get("static_configs", ()) for each in static["targets"]]
        targets += [f"{name}:{dns['port']}" for dns in job.get("dns_sd_configs", ()) for name in dns["names"]]
        for target in targets:
            name, _, port = target.partition(":")
            service = compose["services"][name]
            prefix, own = served(service["command"], service["environment"]) or ("", 0)
            assert (own, service.get("deploy", {}).get("replicas", 1) > 1) == (
                int(port),
                "dns_sd_configs" in job,
            )
            found.add(prefix)
    return found


def scraped_by_kubernetes() -> set[str]:
    """Return the prefixes of the metrics of the Pods that the monitors select."""
    found = set()
    for monitor in (each for each in manifests() if each["kind"] == "PodMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"].items()
        (template,) = (
            each["spec"]["template"]
            for each in manifests()
            if each["kind"] == "Deployment"
            and labels <= each["spec"]["template"]["metadata"]["labels"].items()
        )
        (container,) = template["spec"]["containers"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        variables = {each["name"]: each.get("value") for each in container["env"]}
        prefix, own = served(container["args"], variables) or ("", 0)
        assert ports[endpoint["port"]] == own
        found.add(prefix)
    return found


@pytest.mark.parametrize("scraped", [scraped_by_compose, scraped_by_kubernetes])
def test_every_metric_of_alerts_and_dashboards_is_scraped(scraped: Callable[[], set[str]]) -> None:
    files = [*(OPS / "alerts").iterdir(), *(OPS / "grafana").iterdir()]
    used = set(
        re.findall(
            rf"{CLUSTER}|{PROCESS}(?=[a-z])", "".join(each.read_text(encoding="utf-8") for each in files)
        )
    )
    assert scraped() == used == {CLUSTER, PROCESS}


def test_prometheus_accepts_the_configuration_of_compose(call: Run, tmp_path: Path) -> None:
    assert call("compose", "--into", str(tmp_path)).code == 0
    promtool("check", "config", str(tmp_path / "prometheus.yml"))  # and the rules that it names


def test_image_installs_the_wheel_that_lies_beside_it() -> None:
    (install,) = re.findall(r"RUN (pip .*)", text("compose", "Dockerfile"))
    assert '"$(ls pg_scheduler-*.whl)[cli,dashboard,metrics]"' in install
    (copied,) = re.findall(r"COPY (.*requirements.*)", text("compose", "Dockerfile"))
    assert "pg_scheduler-*.whl" in copied


def test_commands_of_the_files_are_accepted_by_the_parser() -> None:
    (compose,) = documents("compose", "compose.yaml")
    image = [json.loads(each) for each in re.findall(r"CMD (\[.*\])", text("compose", "Dockerfile"))]
    unit = re.findall(r"ExecStart=\S+/(pg-scheduler .*)", text("systemd", "pg-scheduler-worker.service"))
    found = [*commands(compose), *commands(manifests()), *image, *map(str.split, unit)]
    assert len(found) >= 9
    for name, *words in found:
        assert name == "pg-scheduler"
        group: Any = program()
        group.commands[words[0]].make_context(words[0], words[1:])  # raises an error of usage


@pytest.mark.parametrize("file", [None, "docker-compose.yml"], ids=str)
def test_docker_compose_accepts_the_file(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None
) -> None:
    binary = required("docker-compose") / "usr/libexec/docker/cli-plugins/docker-compose"

    def checked(*options: str) -> subprocess.CompletedProcess[str]:
        command = [str(binary), "--file", str(path), "config", *options]
        return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)

    if file is None:
        assert call("compose", "--into", str(tmp_path)).code == 0
        path = tmp_path / "compose.yaml"
        assert "set a password" in checked().stderr
        monkeypatch.setenv("POSTGRES_PASSWORD", "one")
        monkeypatch.setenv("DASHBOARD_PASSWORD", "two")
    else:
        path = ROOT / file
    ran = checked("--format", "json")
    assert (ran.returncode, ran.stderr) == (0, "")
    services = json.loads(ran.stdout)["services"]
    assert set(services) == set(yaml.safe_load(path.read_text(encoding="utf-8"))["services"])


def test_variables_of_the_files_are_read_by_the_worker(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = call("worker", "--help").out
    texts = "".join(text(kind, name) for kind, names in FILES.items() for name in names)
    for variable in set(re.findall(r"PG_SCHEDULER_WORKER_\w+", texts)):
        assert variable in shown


async def test_sql_of_the_scaler_returns_the_age_of_the_oldest_due_job(
    pool: asyncpg.Pool, world: World
) -> None:
    (scaled,) = documents("k8s", "keda/postgresql.yaml")
    (trigger,) = scaled["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert await pool.fetchval(query) == 0
    # A pause holds the jobs of all names of a task.
    aliases = {"paused.before": "paused", "held.before": "held"}
    await world.worker(names=["x", "paused", "held", *aliases], settings={"aliases": aliases})
    await world.paused_task("paused")
    await world.paused_task("held.before")
    for job_id, name, due, priority in (
        ("a", "x", -MINUTE, 8),
        ("b", "x", HOUR, 1),
        ("c", "x", -SECOND, 3),
        ("d", "paused", -HOUR, 3),
        ("f", "paused.before", -HOUR, 3),
        ("g", "held", -HOUR, 3),
        ("h", "held.before", -HOUR, 3),
        ("e", "unknown", -HOUR, 3),
    ):
        await world.job(job_id, name, due=due, priority=priority)
    assert 60 <= await pool.fetchval(query) < 120
