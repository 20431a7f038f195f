"""Debian's Prometheus, and reading of what it reads."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.debian import program, required

Sample = tuple[str, tuple[tuple[str, str], ...]]


def promtool(*arguments: str, text: str = "", cwd: Path | None = None) -> None:
    """Run promtool, and fail if it finds anything."""
    command = [*program(required("prometheus"), "usr/bin/promtool"), *arguments]
    ran = subprocess.run(command, input=text, cwd=cwd, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, int]) -> Iterator[str]:
    """Run a Prometheus that scrapes the ports of these jobs every 2 s, and yield its URL."""
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for job, port in targets.items()
    ]
    config = {"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": "127.0.0.1:0",
    }
    server = program(required("prometheus"), "usr/bin/prometheus")
    command = [*server, *(f"--{name}={value}" for name, value in options.items())]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            found = (re.search(r'"Listening on" address=(\S+)', line) for line in lines)
            address = next(match[1] for match in found if match)
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            yield f"http://{address}"
        finally:
            process.kill()
            process.wait()


def query(url: str, expression: str) -> list[dict[str, Any]]:
    """Return the samples of an instant query; none before Prometheus is ready."""
    words = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{words}", timeout=20) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        with error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise AssertionError(f"{expression}: {error.read().decode()}") from error
        return []
    return found


class Exposition:
    """The samples of a scrape.

    Args:
        text: The scrape.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.types: dict[str, str] = {}
        self._samples: dict[Sample, float] = {}
        for family in text_string_to_metric_families(text):
            assert family.documentation
            self.types[family.name] = family.type
            for sample in family.samples:
                key = (sample.name, _key(sample.labels))
                assert key not in self._samples, "each sample is exported once"
                self._samples[key] = sample.value

    def __getitem__(self, name: str) -> float:
        return self._samples[name, ()]

    def get(self, name: str, **labels: str) -> float | None:
        return self._samples.get((name, _key(labels)))

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Return the values of a metric by one label, of the samples that have the other labels."""
        return {
            dict(key)[label]: value
            for (each, key), value in self._samples.items()
            if each == name and dict(key).items() >= labels.items()
        }


def _key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
