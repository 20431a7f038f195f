"""The table of mutations matches the tree, so that a change of the library does not make it useless."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cases import each_case
from tools.mutations import HARMS, MAX_MUTATIONS, ROOT, Change, Mutation, apply, load

MUTATIONS = load()


@each_case("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_text_of_a_mutation_occurs_once_and_its_tests_exist(mutation: Mutation, tmp_path: Path) -> None:
    for change in mutation.changes:
        copy = tmp_path / change.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / change.file, copy)
    apply(mutation, tmp_path)
    for change in mutation.changes:
        assert (tmp_path / change.file).read_bytes() != (ROOT / change.file).read_bytes()
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text("utf-8")
    assert mutation.tests


def test_names_of_mutations_are_distinct() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_table_has_the_guards_of_the_core_only() -> None:
    """It had 947 entries, and every third change of the code had to adapt one of them."""
    assert len(MUTATIONS) <= MAX_MUTATIONS
    assert {mutation.harm for mutation in MUTATIONS} == HARMS.keys()


@pytest.mark.parametrize("text", ["", "guard guard"])
def test_apply_raises_when_the_text_does_not_occur_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "code.sql").write_text(text, encoding="utf-8")
    mutation = Mutation("guard", "lost", (Change("code.sql", "guard", ""),), ("tests/x.py::test_x",))
    with pytest.raises(ValueError, match=r"guard: its text occurs [02] times in code\.sql, not once"):
        apply(mutation, tmp_path)
