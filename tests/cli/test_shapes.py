"""The shapes of what commands write: their JSON schemas and the columns of their tables."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import jsonschema
import pytest

from pg_scheduler.cli.shapes import SHAPES
from tests.cli.conftest import Run, schema
from tests.cli.shapes import keys_of_shapes
from tests.support.cases import each_case
from tests.support.inside import ExitCode

GOLDEN = Path(__file__).with_name("golden") / "shapes.txt"


@each_case("name", sorted(SHAPES))
def test_schema_is_valid_and_has_the_version(name: str) -> None:
    found = schema(name)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["properties"]["v"] == {"const": 1}


def test_schemas_are_those_of_the_golden_file() -> None:
    """A change that removes or redefines a key raises SHAPE_VERSION."""
    assert keys_of_shapes() == GOLDEN.read_text(encoding="utf-8"), "run: python3 dev.py renew"


@each_case("name", sorted(SHAPES))
def test_columns_and_identity_are_keys_of_the_shape(name: str) -> None:
    shape = SHAPES[name]
    keys = {column.key for column in shape.columns} | {shape.identity or shape.columns[0].key}
    assert keys <= schema(name)["properties"].keys()


def test_shapes_are_listed_and_printed(call: Run) -> None:
    assert call("shapes").out.split() == sorted(SHAPES)
    assert json.loads(call("shapes", "error_group").out) == schema("error_group")


def test_schema_has_the_docstrings_of_fields_as_descriptions() -> None:
    found = schema("worker")
    assert found["title"] == "A worker"
    assert found["properties"]["pid"]["description"] == "The id of the process on that machine."
    assert found["properties"]["loop_lag_s"]["description"].startswith("Seconds for which its event loop")


def test_schema_has_no_descriptions_where_no_source_files_are_installed(
    call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_object: object) -> str:
        raise OSError("source code not available")

    monkeypatch.setattr(inspect, "getsource", fail)
    ran = call("shapes", "worker")
    assert "this installation has none" in ran.err
    found = json.loads(ran.out)
    assert found["required"] == schema("worker")["required"]
    assert "description" not in found["properties"]["pid"]


def test_unknown_shape_is_not_found(call: Run) -> None:
    ran = call("shapes", "jobs")
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert "no shape is named 'jobs'; did you mean job?" in ran.err
