"""YAML of the documentation: it is included from the files of the package, or agrees with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.docs.snippets import PAGES, ROOT, Snippet, page_id, snippets_of

yaml = pytest.importorskip("yaml")

OPS = ROOT / "pg_scheduler" / "ops"
WRITTEN = [each for page in PAGES for each in snippets_of(page) if each.kind == "yaml"]
INCLUDED = [
    (page, found)
    for page in PAGES
    for found in re.findall(
        r"^```{literalinclude} (\S+)\n((?::.*\n)*)```$", page.read_text(encoding="utf-8"), re.MULTILINE
    )
]


def values(node: object, name: str) -> Iterator[Any]:
    """Return each value of a key, anywhere in a document."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from [value] if key == name else values(value, name)
    elif isinstance(node, list):
        for each in node:
            yield from values(each, name)


@pytest.mark.parametrize("snippet", WRITTEN, ids=str)
def test_yaml_of_a_page_gives_workers_the_time_of_the_shipped_manifest(snippet: Snippet) -> None:
    """Other settings are those of an application."""
    name = "terminationGracePeriodSeconds"
    (worker, _) = yaml.safe_load_all((OPS / "k8s" / "worker.yaml").read_text(encoding="utf-8"))
    written = list(yaml.safe_load_all(snippet.code))
    assert list(values(written, name)) == list(values(worker, name))
    assert not any("Probe" in line for line in snippet.code.splitlines()), "include the shipped probes"


def test_pages_include_probes_scrape_configuration_and_unit() -> None:
    included = {(page.name, found[0].rpartition("/ops/")[2]) for page, found in INCLUDED}
    assert included >= {
        ("health.md", "k8s/worker.yaml"),
        ("health.md", "systemd/pg-scheduler-worker.service"),
        ("metrics.md", "compose/prometheus.yml"),
    }


@pytest.mark.parametrize(
    ("page", "found"), INCLUDED, ids=lambda each: page_id(each) if hasattr(each, "name") else ""
)
def test_included_part_exists(page: Any, found: tuple[str, str]) -> None:
    text = (page.parent / found[0]).read_text(encoding="utf-8")
    limits = re.findall(r'^:(?:start|end)-at: "(.*)"$', found[1], re.MULTILINE)
    assert all(text.count(limit) == 1 for limit in limits), limits
