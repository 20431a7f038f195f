"""How the tests are divided: the tier and its budget, the processes, and the tests of a change."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import changed, mutations, processes, suite, tier
from tools.environment import ROOT, DevError
from tools.suite import Cost, Suite

UNRECORDED_S = 0.15
"""What a test is assumed to cost that has not been recorded: about a start of a Scheduler."""


@pytest.fixture(scope="module")
def recorded() -> Suite:
    """The tier and the costs of this repository."""
    return suite.load()


def functions_of(file: str) -> Iterator[str]:
    """Yield the names of the test functions of a file, as pytest writes them behind the path."""

    def visit(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                yield from visit(node.body, f"{prefix}{node.name}::")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{prefix}{node.name}"

    return visit(ast.parse((ROOT / file).read_text("utf-8")).body, "")


class TestBudget:
    def test_tier_costs_no_more_than_its_budget(self, recorded: Suite) -> None:
        unrecorded = [
            f"{file}::{name}"
            for file in suite.beside_checks(suite.usual_files())
            if recorded.tier_has(file)
            for name in functions_of(file)
            if name not in recorded.costs.get(file, {})
        ]
        total_s = tier.total_s(recorded) + UNRECORDED_S * len(unrecorded)
        assert total_s <= tier.TIER_S, (
            f"the tier costs {total_s:.0f} core-seconds, of which {len(unrecorded)} tests are estimated; "
            "run python3 dev.py test --all, then python3 dev.py renew"
        )

    def test_tier_has_the_cheapest_test_of_each_guard(self, recorded: Suite) -> None:
        for mutation in mutations.load():
            costs_s = {
                test: recorded.costs[file][name].processor_s
                for test in mutation.tests
                for file, _, name in [test.partition("::")]
                if name in recorded.costs.get(file, {})
            }
            in_tier = [test for test in mutation.tests if is_in_tier(recorded, test)]
            assert in_tier or not costs_s, f"{mutation.name}: none of {mutation.tests} is in tests/tier.txt"
            if costs_s:
                assert min(costs_s.values()) == min(costs_s.get(test, 0.0) for test in in_tier), mutation.name

    def test_tier_has_tests_of_each_file(self, recorded: Suite) -> None:
        """So each room, command, page and tool has tests in it, but those whose tests are all slow."""
        files = suite.usual_files()
        usual = [
            file for file in files if any(not cost.is_slow for cost in recorded.costs.get(file, {}).values())
        ]
        assert [file for file in usual if not recorded.tier_has(file)] == []

    def test_tier_has_tests_of_each_module_of_the_package_that_any_test_calls(self, recorded: Suite) -> None:
        reach = changed.load_reach()
        assert len(reach) > 500
        called = {path: {test for tests in names.values() for test in tests} for path, names in reach.items()}
        missing = [
            path
            for path, tests in called.items()
            if tests and not any(is_in_tier(recorded, test) for test in tests)
        ]
        assert missing == []

    def test_recorded_files_exist(self, recorded: Suite) -> None:
        gone = [file for file in recorded.costs if not (ROOT / file).exists()]
        assert gone == [], "run python3 dev.py renew"


def is_in_tier(recorded: Suite, test: str) -> bool:
    """Return whether the tier has a test function of the repository."""
    file, _, name = test.partition("::")
    cost = recorded.costs.get(file, {}).get(name)
    return recorded.is_in_tier(test, is_slow=cost is not None and cost.is_slow)


COSTS = {
    "tests/a/test_one.py": {
        "test_cheap": Cost(0.1, 0.2, 1, is_slow=False),
        "test_dear": Cost(9.0, 9.5, 1, is_slow=False),
        "test_real_time": Cost(0.1, 4.0, 1, is_slow=True),
    },
    "tests/a/test_two.py": {
        "test_many_cases": Cost(3.0, 3.0, 100, is_slow=False),
        "test_case": Cost(0.2, 0.2, 1, is_slow=False),
    },
    "tests/a/test_slow.py": {"test_processes": Cost(8.0, 20.0, 1, is_slow=True)},
}


class TestTier:
    def test_tier_has_the_cheapest_by_case_and_what_guards_need(self) -> None:
        assert tier.choose(COSTS, set(), budget_s=10.0) == [
            "tests/a/test_one.py::test_cheap",
            "tests/a/test_two.py",
        ]
        guarding = {"tests/a/test_slow.py::test_processes", "tests/a/test_one.py::test_dear"}
        assert tier.choose(COSTS, guarding, budget_s=21.0) == [
            "tests/a/test_one.py",
            "tests/a/test_slow.py::test_processes",
            "tests/a/test_two.py",
        ]

    def test_each_test_is_in_the_tier_or_in_the_rest(self) -> None:
        lines = frozenset(["tests/a/test_one.py::test_cheap", "tests/a/test_two.py"])
        tests = Suite(COSTS, lines, frozenset(line.partition("::")[0] for line in lines))
        in_tier = {
            f"{file}::{name}"
            for file, names in COSTS.items()
            for name, cost in names.items()
            if tests.is_in_tier(f"{file}::{name}", is_slow=cost.is_slow)
        }
        assert in_tier == {
            "tests/a/test_one.py::test_cheap",
            *(f"tests/a/test_two.py::{name}" for name in ("test_many_cases", "test_case")),
        }
        assert tests.is_in_tier("tests/a/test_one.py::test_new", is_slow=False)
        assert not tests.is_in_tier("tests/a/test_one.py::test_new", is_slow=True)
        assert not tests.is_in_tier("tests/a/test_slow.py::test_new", is_slow=False)
        assert tests.is_in_tier("tests/b/test_new.py::test_new", is_slow=False)

    def test_cost_is_kept_until_it_changes_by_more_than_a_half(self, tmp_path: Path) -> None:
        costs = {
            "test_cheap": [0.14, 0.21, 1, 0],
            "test_dear": [4.0, 4.0, 1, 0],
            "test_new": [0.123, 0.2, 2, 1],
        }
        record = tmp_path / "1.json"
        numbers = {f"tests/a/test_one.py::{name}": cost for name, cost in costs.items()}
        record.write_text(json.dumps({"costs": numbers}), encoding="utf-8")
        assert tier.merge([record], COSTS) == {
            "tests/a/test_one.py": {
                "test_cheap": COSTS["tests/a/test_one.py"]["test_cheap"],
                "test_dear": Cost(4.0, 4.0, 1, is_slow=False),
                "test_new": Cost(0.12, 0.2, 2, is_slow=True),
            }
        }

    def test_files_are_divided_into_parts_of_about_the_same_time(self) -> None:
        durations_s = {"a": 5.0, "b": 4.0, "c": 3.0, "d": 3.0, "e": 1.0}
        assert suite.divide(durations_s, 2) == [["a", "d"], ["b", "c", "e"]]
        assert suite.divide({"a": 1.0}, 3) == [["a"]]


class TestProcesses:
    @pytest.fixture
    def files(self, tmp_path: Path) -> list[str]:
        """Two files of tests with one failure."""
        texts = {
            "passes": "def test_a(): ...\ndef test_b(): ...\n",
            "fails": "import pytest\ndef test_c(): assert False\n@pytest.mark.skip\ndef test_d(): ...\n",
        }
        for name, text in texts.items():
            (tmp_path / f"test_{name}.py").write_text(text, encoding="utf-8")
        return [str(tmp_path / f"test_{name}.py") for name in texts]

    def test_results_of_all_processes_are_added_up(
        self, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        records = tmp_path / "records"
        records.mkdir()
        options = ["--rootdir", str(tmp_path), "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
        status = processes.run(sys.executable, [[file] for file in files], options, records)
        shown = capsys.readouterr().out
        assert status == 1
        assert shown.splitlines()[-1] == "2 passed, 1 failed, 1 skipped"
        assert "2| " in shown
        assert "assert False" in shown
        costs = [json.loads(path.read_text(encoding="utf-8"))["costs"] for path in records.iterdir()]
        assert {name.rpartition("::")[2] for cost in costs for name in cost} == {
            f"test_{letter}" for letter in "abcd"
        }

    def test_run_without_tests_has_the_status_of_pytest(self, files: list[str]) -> None:
        options = ["-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", "-k", "no_such_test"]
        assert processes.run(sys.executable, [[file] for file in files], options) == processes.NO_TESTS

    def test_list_selects_files_and_functions(self, files: list[str], tmp_path: Path) -> None:
        names = tmp_path / "names"
        names.write_text("test_passes.py::test_b\ntest_fails.py\n", encoding="utf-8")
        options = ["--rootdir", str(tmp_path), "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
        command = [
            *processes.command(sys.executable),
            *options,
            "--only",
            str(names),
            "--collect-only",
            *files,
        ]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert [name for name in "abcd" if f"test_{name}" in shown] == ["b", "c", "d"]


class TestChanged:
    def test_changed_function_has_the_tests_that_call_it(self) -> None:
        path = "pg_scheduler/base/backoff.py"
        reach = changed.load_reach()[path]
        name = max(reach, key=lambda name: len(reach[name]))
        source = (ROOT / path).read_text(encoding="utf-8")
        lines = {
            line for line, function in changed.functions_of(source, whole=True).items() if function == name
        }
        choice = changed.choose({path: lines})
        assert set(choice.tests) & set(reach[name])
        assert (choice.files, choice.untested) == ([], [])

    def test_changed_statement_has_the_tests_of_the_functions_that_name_it(self) -> None:
        path = "pg_scheduler/database/identity.sql"
        text = (ROOT / path).read_text(encoding="utf-8").splitlines()
        number = next(number for number, line in enumerate(text, 1) if line.startswith("-- name: has_work"))
        assert changed.choose({path: {number + 1}}).tests

    def test_changed_file_of_tests_runs_as_a_whole(self) -> None:
        choice = changed.choose({"tests/unit/test_backoff.py": {1}})
        assert choice.files == ["tests/unit/test_backoff.py"]
        assert choice.tests == []

    def test_changed_tool_has_the_tests_that_import_it(self) -> None:
        choice = changed.choose({"tools/tier.py": {1}})
        assert {test.partition("::")[0] for test in choice.tests} <= {"tests/repository/test_suite.py"}
        assert changed.users_of("tools/tier.py") == ["tests/repository/test_suite.py"]

    def test_file_without_tests_is_named(self) -> None:
        assert changed.choose({"docs/index.md": {1}}).untested == ["docs/index.md"]

    def test_guards_of_a_changed_file_run(self) -> None:
        mutation = next(
            mutation for mutation in mutations.load() if mutation.name == "fencing token in completion"
        )
        assert set(mutation.tests) <= set(changed.guards([change.file for change in mutation.changes]))

    def test_unknown_commit_is_named_with_what_git_said(self) -> None:
        with pytest.raises(DevError, match=r"--changed needs git and a commit: git diff .*no-such-commit"):
            changed.changed_lines("no-such-commit")
