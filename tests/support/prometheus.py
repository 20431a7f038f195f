"""Debian's Prometheus, and reading of what it reads."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.debian import component

Sample = tuple[str, tuple[tuple[str, str], ...]]


def program(name: str) -> list[str]:
    """Return the command of a program of Debian's package prometheus, with its own C library."""
    root = component("prometheus")
    if root is None:
        pytest.skip("Debian's package prometheus could not be downloaded")
    libraries = next(root.rglob("libc.so.6")).parent
    return [
        str(next(libraries.glob("ld-linux*"))),
        "--library-path",
        str(libraries),
        str(root / "usr/bin" / name),
    ]


def promtool(*arguments: str, text: str = "", cwd: Path | None = None) -> None:
    """Run promtool, and fail if it finds anything."""
    command = [*program("promtool"), *arguments]
    ran = subprocess.run(command, input=text, cwd=cwd, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr


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
