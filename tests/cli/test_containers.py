"""The image and the manifests: the rules of a restricted cluster, and that other programs accept them."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from pg_scheduler import Scheduler
from tests.cli.conftest import Run
from tests.cli.test_deployment import documents, manifests, text
from tests.docs.snippets import ROOT, snippets_of
from tests.support.debian import required
from tests.support.prometheus import promtool

yaml = pytest.importorskip("yaml")

CLOSE_S: Final = 5
"""Seconds that a process has to close its connections, after all steps of its shutdown."""

SCALERS: Final = ("keda/prometheus.yaml", "keda/postgresql.yaml")
"""The two files of which the component of Kustomize takes one."""

UNDEFINED: Final[dict[str, Any]] = {"additionalProperties": False}
NAME: Final[dict[str, Any]] = {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"}
TEXT: Final[dict[str, Any]] = {"type": "string"}
TEXTS: Final[dict[str, Any]] = {"type": "object", "additionalProperties": TEXT}
POLICIES: Final[dict[str, Any]] = {
    "type": "array",
    "items": {
        "required": ["type", "value", "periodSeconds"],
        "properties": {
            "type": {"enum": ["Pods", "Percent"]},
            "value": {"type": "integer", "minimum": 1},
            "periodSeconds": {"type": "integer", "minimum": 1, "maximum": 1800},
        },
        **UNDEFINED,
    },
}
SPECS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("keda.sh/v1alpha1", "ScaledObject"): {
        "required": ["scaleTargetRef", "triggers"],
        "properties": {
            "scaleTargetRef": {"required": ["name"], "properties": {"name": NAME}, **UNDEFINED},
            "pollingInterval": {"type": "integer"},
            "minReplicaCount": {"type": "integer"},
            "maxReplicaCount": {"type": "integer"},
            "advanced": {
                "properties": {
                    "horizontalPodAutoscalerConfig": {
                        "properties": {
                            "behavior": {
                                "properties": {
                                    "scaleDown": {
                                        "properties": {
                                            "stabilizationWindowSeconds": {
                                                "type": "integer",
                                                "minimum": 0,
                                                "maximum": 3600,
                                            },
                                            "policies": POLICIES,
                                        },
                                        **UNDEFINED,
                                    }
                                },
                                **UNDEFINED,
                            }
                        },
                        **UNDEFINED,
                    }
                },
                **UNDEFINED,
            },
            "triggers": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "required": ["type", "metadata"],
                    "properties": {
                        "type": {"enum": ["prometheus", "postgresql"]},
                        "metricType": {"enum": ["AverageValue", "Value"]},
                        "useCachedMetrics": {"type": "boolean"},
                        "metadata": TEXTS,
                    },
                    **UNDEFINED,
                },
            },
        },
        **UNDEFINED,
    },
    ("monitoring.coreos.com/v1", "PodMonitor"): {
        "required": ["selector", "podMetricsEndpoints"],
        "properties": {
            "selector": {"properties": {"matchLabels": TEXTS}, **UNDEFINED},
            "podMetricsEndpoints": {
                "type": "array",
                "items": {
                    "properties": {
                        "port": TEXT,
                        "interval": {"type": "string", "pattern": r"^[0-9]+s$"},
                    },
                    **UNDEFINED,
                },
            },
        },
        **UNDEFINED,
    },
    ("monitoring.coreos.com/v1", "PrometheusRule"): {
        "required": ["groups"],
        "properties": {
            "groups": {
                "type": "array",
                "items": {
                    "required": ["name", "rules"],
                    "properties": {
                        "name": TEXT,
                        "interval": TEXT,
                        "rules": {
                            "type": "array",
                            "items": {
                                "required": ["expr"],
                                "properties": {
                                    **dict.fromkeys(("alert", "expr", "for", "keep_firing_for"), TEXT),
                                    **dict.fromkeys(("labels", "annotations"), TEXTS),
                                },
                                **UNDEFINED,
                            },
                        },
                    },
                    **UNDEFINED,
                },
            }
        },
        **UNDEFINED,
    },
}
"""The fields of custom resources that the manifests use, with their types.

They are written by hand, from the documentation of KEDA and of the Prometheus Operator: there is no package
with their schemas. So this finds misspelt fields and wrong types, and not what a new version has removed.
"""


def kind_of(manifest: dict[str, Any]) -> tuple[str, str]:
    """Return the version of the interface and the kind of a manifest."""
    return manifest["apiVersion"], manifest["kind"]


def by_kind_and_name(objects: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in objects}


def instructions(content: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile: their words and arguments."""
    lines = [line for line in content.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (word, arguments.strip())
        for word, _, arguments in (line.partition(" ") for line in joined.splitlines())
    ]


def final_stage(content: str) -> list[tuple[str, str]]:
    steps = instructions(content)
    start = max(index for index, (word, _) in enumerate(steps) if word == "FROM")
    return steps[start:]


def dockerfiles() -> Iterator[tuple[str, str]]:
    """Return each Dockerfile of the package, the examples and the guides, with its place."""
    for path in (*ROOT.glob("examples/**/Dockerfile"), *ROOT.glob("pg_scheduler/**/Dockerfile")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for snippet in snippets_of(ROOT / "docs" / "guides" / "shutdown.md"):
        if snippet.kind == "dockerfile":
            yield str(snippet), snippet.code


def test_images_run_a_list_of_words_as_a_user_with_a_number() -> None:
    contents = dict(dockerfiles())
    assert len(contents) == 3
    for place, content in contents.items():
        words = dict(final_stage(content))
        assert json.loads(words["CMD"]), place
        assert re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", words["USER"]), f"{place}: Kubernetes knows no names"


def test_image_has_a_last_stage_without_a_shell() -> None:
    content = text("compose", "Dockerfile")
    steps, last_stage = instructions(content), final_stage(content)
    words = [word for word, _ in last_stage]
    assert "RUN" not in words, "it starts a shell"
    assert not {"ADD", "VOLUME", "ENTRYPOINT"} & set(words)
    options, _, probe = dict(last_stage)["HEALTHCHECK"].partition(" CMD ")
    assert json.loads(probe) == ["pg-scheduler", "health"]
    assert "--start-period=" in options
    assert dict(last_stage)["STOPSIGNAL"] == "SIGTERM"
    assert "PYTHONDONTWRITEBYTECODE=1" in dict(last_stage)["ENV"]
    assert "$" not in dict(last_stage)["ENV"]
    copies = [arguments for word, arguments in last_stage if word == "COPY"]
    assert all(re.match(r"--from=build /srv/\S+ /srv/\S+$", arguments) for arguments in copies)
    # A digest takes the place of the tag in one argument, for both stages.
    bases = [arguments for word, arguments in steps if word == "FROM"]
    assert bases == ["${PYTHON} AS build", "${PYTHON}"]
    assert re.fullmatch(r"PYTHON=python:3\.\d+-slim", dict(steps)["ARG"])


def test_compose_gives_each_container_a_read_only_file_system_and_a_probe_without_a_shell() -> None:
    (compose,) = documents("compose", "compose.yaml")
    services = {name: service for name, service in compose["services"].items() if service.get("build")}
    assert set(services) == {"migrate", "worker", "dashboard", "exporter"}
    for name, service in services.items():
        assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == (True, ["/tmp"], ["ALL"])
        assert isinstance(service["command"], list)
        # The probe of the image is that of a worker.
        probe = service.get("healthcheck")
        assert (probe is None) == (name == "worker")
        if probe and name != "migrate":
            assert probe["test"][:3] == ["CMD", "pg-scheduler", "health"]


def pods() -> dict[str, dict[str, Any]]:
    """Return the Pods of the manifests by the names of their owners."""
    return {
        manifest["metadata"]["name"]: manifest["spec"]["template"]["spec"]
        for manifest in manifests()
        if manifest["kind"] in {"Deployment", "Job"}
    }


def test_manifests_have_the_four_programs_in_restricted_containers() -> None:
    assert {name.removeprefix("pg-scheduler-").partition("-")[0] for name in pods()} == {
        *("migrate", "worker", "exporter", "dashboard")
    }
    for name, pod in pods().items():
        security = pod["securityContext"]
        assert security["runAsNonRoot"], name
        assert (security["runAsUser"], security["runAsGroup"]) == (65534, 65534)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        assert not pod["enableServiceLinks"]  # a Service sets variables that look like those of options
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)
        assert [volume for volume in pod.get("volumes", ()) if "emptyDir" not in volume] == []
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        resources = container["resources"]
        assert set(resources["requests"]) == {"cpu", "memory"}
        assert "memory" in resources["limits"]
        assert "cpu" not in resources["limits"], "it would delay heartbeats"
        assert isinstance(container["args"], list)
        probes = {key: probe for key, probe in container.items() if key.endswith("Probe")}
        assert all("httpGet" in probe for probe in probes.values()), "an exec probe may need a shell"
        assert bool(probes) != name.startswith("pg-scheduler-migrate")
        ports = {port["name"] for port in container.get("ports", ())}
        assert {probe["httpGet"]["port"] for probe in probes.values()} <= ports


def test_worker_has_its_probes_its_time_to_stop_and_a_budget_of_disruptions() -> None:
    objects = by_kind_and_name(manifests())
    deployment = objects["Deployment", "pg-scheduler-worker"]["spec"]
    pod = deployment["template"]["spec"]
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(Scheduler).parameters.items()
    }
    needed_s = 2 * defaults["shutdown_timeout"] + defaults["stop_grace"] + CLOSE_S
    assert pod["terminationGracePeriodSeconds"] >= needed_s
    assert pod["shareProcessNamespace"], "else nothing reaps the programs that jobs leave behind"
    (worker,) = pod["containers"]
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert [worker[probe]["httpGet"]["path"] for probe in probes] == ["/startupz", "/livez", "/readyz"]
    environment = {variable["name"]: variable.get("value") for variable in worker["env"]}
    assert int(environment["PG_SCHEDULER_WORKER_HEALTH_PORT"] or 0) == worker["ports"][0]["containerPort"]
    assert environment["PG_SCHEDULER_WORKER_HEALTH_HOST"] == "0.0.0.0"
    budget = objects["PodDisruptionBudget", "pg-scheduler-worker"]["spec"]
    assert (budget["selector"], budget["maxUnavailable"]) == (deployment["selector"], 1)
    assert deployment["replicas"] > budget["maxUnavailable"], "a drain would stop all workers"


def test_owner_of_the_tables_is_known_to_the_migration_only() -> None:
    for name, pod in pods().items():
        secrets = {
            variable["valueFrom"]["secretKeyRef"]["key"]
            for variable in pod["containers"][0]["env"]
            if "valueFrom" in variable
        }
        assert ("owner-dsn" in secrets) == name.startswith("pg-scheduler-migrate")


def test_schemas_of_kubernetes_accept_the_manifests() -> None:
    checker = pytest.importorskip("kubernetes_validate.utils", reason="its package has the schemas")
    core = [manifest for manifest in manifests() if kind_of(manifest) not in SPECS]
    assert [manifest["kind"] for manifest in core] == [
        *("Job", "Deployment", "PodDisruptionBudget", "Deployment", "Deployment", "Service")
    ]
    oldest, *_, newest = checker.all_versions()
    for version in (oldest, newest):
        for manifest in core:
            checker.validate(manifest, version, strict=True)
        misspelt = core[0] | {"spec": core[0]["spec"] | {"backofLimit": 1}}
        with pytest.raises(checker.ValidationError, match="backofLimit"):
            checker.validate(misspelt, version, strict=True)


def check_custom(manifest: dict[str, Any]) -> None:
    """Check a custom resource against the fields that are known here."""
    spec = SPECS[kind_of(manifest)]
    metadata = {"required": ["name"], "properties": {"name": NAME, "labels": TEXTS}, **UNDEFINED}
    properties = {"apiVersion": {}, "kind": {}, "metadata": metadata, "spec": spec}
    jsonschema.validate(manifest, {"required": [*properties], "properties": properties, **UNDEFINED})


def test_custom_resources_have_the_documented_fields(call: Run) -> None:
    printed = list(yaml.safe_load_all(call("k8s").out))
    scalers = [scaler for name in SCALERS for scaler in documents("k8s", name)]
    custom = [manifest for manifest in (*printed, *scalers) if kind_of(manifest) in SPECS]
    assert {kind_of(manifest) for manifest in custom} == set(SPECS)
    for manifest in custom:
        check_custom(manifest)
    with pytest.raises(jsonschema.ValidationError, match="minReplicas"):
        check_custom(scalers[0] | {"spec": scalers[0]["spec"] | {"minReplicas": 1}})


def rendered(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what Kustomize makes of a folder, by kind and name."""
    program = required("kustomize") / "usr" / "bin" / "kustomize"
    command = [str(program), "build", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return by_kind_and_name(yaml.safe_load_all(ran.stdout))


def change(path: Path, old: str, new: str) -> None:
    content = path.read_text(encoding="utf-8")
    assert content.count(old) == 1
    path.write_text(content.replace(old, new), encoding="utf-8")


@pytest.fixture
def base(call: Run, tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    assert call("k8s", "--into", str(folder)).code == 0
    return folder


def image(manifest: dict[str, Any]) -> str:
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def test_kustomize_renders_the_base_and_a_job_for_each_release(base: Path) -> None:
    kustomization = base / "kustomization.yaml"
    first = rendered(base)
    assert sorted(first) == sorted(key for key in by_kind_and_name(manifests()) if key[0] != "PodMonitor")
    change(kustomization, "newTag: 1.0.0", "newTag: 2.0.0-rc1")
    second = rendered(base)
    (new,) = set(second) - set(first)
    assert new == ("Job", "pg-scheduler-migrate-2.0.0-rc1")
    assert {image(second[key]) for key in second if key[0] in {"Job", "Deployment"}} == {
        "registry.example.com/app:2.0.0-rc1"
    }
    # The same release once more is the same Job, whose template does not change.
    assert rendered(base) == second
    change(kustomization, "newTag:", "newName: registry.example.com:5000/app\n    newTag:")
    change(kustomization, "index: 1", "index: 2")
    assert image(rendered(base)[new]) == "registry.example.com:5000/app:2.0.0-rc1"


def test_overlay_renames_the_job_by_the_same_replacement(base: Path) -> None:
    (kustomization,) = yaml.safe_load_all((base / "kustomization.yaml").read_text(encoding="utf-8"))
    overlay = {
        "resources": ["../base"],
        "namespace": "shop",
        "images": [{"name": "registry.example.com/app", "newTag": "7"}],
        "replacements": kustomization["replacements"],
    }
    folder = base.parent / "overlay"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    job = rendered(folder)["Job", "pg-scheduler-migrate-7"]
    assert (job["metadata"]["namespace"], image(job)) == ("shop", "registry.example.com/app:7")


def test_kustomize_leaves_the_number_of_workers_to_keda(base: Path) -> None:
    worker = ("Deployment", "pg-scheduler-worker")
    assert rendered(base)[worker]["spec"]["replicas"] == 2
    change(base / "kustomization.yaml", "# components: [keda]", "components: [keda]")
    change(base / "kustomization.yaml", "# - monitors.yaml", "- monitors.yaml")
    change(base / "kustomization.yaml", "# - rules.yaml", "- rules.yaml")
    scaled = rendered(base)
    assert "replicas" not in scaled[worker]["spec"]
    assert [key for key in scaled if key[0] == "ScaledObject"] == [("ScaledObject", "pg-scheduler-worker")]
    assert ("PrometheusRule", "pg-scheduler") in scaled
    change(base / "keda" / "kustomization.yaml", "- prometheus.yaml", "# - no")
    change(base / "keda" / "kustomization.yaml", "# - postgresql.yaml", "- postgresql.yaml")
    (trigger,) = rendered(base)["ScaledObject", "pg-scheduler-worker"]["spec"]["triggers"]
    assert trigger["type"] == "postgresql"


def test_scalers_agree_with_each_other_and_with_the_worker() -> None:
    specs = [scaler["spec"] for name in SCALERS for scaler in documents("k8s", name)]
    first, second = ({key: spec[key] for key in spec if key != "triggers"} for spec in specs)
    assert first == second
    worker = by_kind_and_name(manifests())["Deployment", "pg-scheduler-worker"]
    assert first["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    assert first["minReplicaCount"] == worker["spec"]["replicas"], "KEDA begins where it takes over"
    assert "cooldownPeriod" not in first, "it delays only the way to no worker at all"
    assert "fallback" not in first, "KEDA ignores it for a metric of the type Value"
    for spec in specs:
        (trigger,) = spec["triggers"]
        assert (trigger["metricType"], trigger["useCachedMetrics"]) == ("Value", True)
        metadata = trigger["metadata"]
        assert metadata.get("threshold", metadata.get("targetQueryValue")) == "10"


OLDEST: Final = "pg_scheduler_cluster_oldest_due_seconds"
UNKNOWN: Final = "pg_scheduler_cluster_jobs_unknown_name"
WORKERS: Final = "pg_scheduler_cluster_workers"
COLLECTED: Final = 'pg_scheduler_cluster_collect_errors_total{instance="1"}'


@pytest.mark.parametrize(
    ("series", "value"),
    [
        ({f'{OLDEST}{{job_name="a"}}': 42, f'{OLDEST}{{job_name="b"}}': 7}, 42),
        ({f'{OLDEST}{{job_name="a"}}': 0}, 0),
        ({f'{OLDEST}{{job_name="a"}}': 42, f'{UNKNOWN}{{job_name="a"}}': 1}, 0),
        ({}, 0),
        (None, None),
    ],
    ids=["waits", "nothing waits", "name that no worker claims", "no name", "no answer of the database"],
)
def test_query_of_the_scaler_has_no_result_only_without_an_answer_of_the_database(
    series: dict[str, int] | None, value: int | None, tmp_path: Path
) -> None:
    (scaled,) = documents("k8s", "keda/prometheus.yaml")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    # The collector has these metrics, except while it cannot read the database.
    collected = {COLLECTED: 1} if series is None else {f'{WORKERS}{{state="alive"}}': 2, **series}
    samples = [] if value is None else [{"labels": "{}", "value": value}]
    tests = {
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    {"series": name, "values": f"{number}+0x4"} for name, number in collected.items()
                ],
                "promql_expr_test": [
                    {"expr": trigger["metadata"]["query"], "eval_time": "30s", "exp_samples": samples}
                ],
            }
        ]
    }
    file = tmp_path / "scaler.yaml"
    file.write_text(yaml.safe_dump(tests), encoding="utf-8")
    promtool("test", "rules", str(file))
