"""What a page installs with pip goes into a virtual environment that the same page creates above it.

Debian, Ubuntu, Fedora and Homebrew mark their Python as externally managed, so pip refuses to install there.
An error of the package may still name ``pip install``: its reader has installed the package, and so has an
environment.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pip
import pytest

from tests.docs.snippets import PAGES, ROOT, page_id, snippets_of
from tools.debian import COMPONENTS
from tools.environment import DevError, Environment

INSTALL: Final = re.compile(r"(?<!uv )(?P<program>(?:[\w./-]+/)?(?:python3? -m )?pip3?) install\b")
CREATE: Final = re.compile(r"(?:python3? -m venv|uv venv) (?P<folder>[\w./-]+)")
DOCKERFILE_FENCE: Final = re.compile(r"^```dockerfile\n.*?^```", re.DOTALL | re.MULTILINE)
SHIPPED: Final = [
    path
    for path in sorted((ROOT / "pg_scheduler" / "ops").rglob("*"))
    if path.is_file() and path.suffix not in (".md", ".py", ".json") and "__pycache__" not in path.parts
]
"""The files for systemd, Docker, Kubernetes and Prometheus. `PAGES` has the text for assistants."""

MODULES: Final = sorted([*(ROOT / "pg_scheduler").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])


def is_active(folder: str, program: str, between: str) -> bool:
    """Return whether a pip is that of the environment in a folder, after the text since its creation."""
    return program.startswith(f"{folder}/bin/") or f". {folder}/bin/activate" in between


def unprepared_installs(text: str) -> list[str]:
    """Return the lines of a text with a ``pip install`` that no virtual environment precedes."""
    found = []
    for install in INSTALL.finditer(text):
        above = text[: install.start()]
        environments = CREATE.finditer(above)
        if not any(is_active(it["folder"], install["program"], above[it.end() :]) for it in environments):
            number = above.count("\n")
            found.append(f"{number + 1}: {text.splitlines()[number].strip()}")
    return found


def docstrings(module: Path) -> Iterator[str]:
    """Return the docstrings of a module, which the reference shows."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize(
    "text",
    [
        "$ pip install x",
        "$ python3 -m venv venv\n$ pip install x",
        "$ pip install x\n$ python3 -m venv venv\n$ . venv/bin/activate",
        "$ python3 -m venv one\n$ . two/bin/activate\n$ python -m pip install x",
        "$ python3 -m venv one\n$ two/bin/pip install x",
    ],
)
def test_install_without_an_active_environment_is_found(text: str) -> None:
    assert len(unprepared_installs(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "$ python3 -m venv venv\n$ . venv/bin/activate\n$ pip install x\n\nLater: `pip install y`.",
        "$ python3 -m venv ../one\n$ ../one/bin/pip install x\n$ ../one/bin/python -m pip install x",
        "$ uv pip install x\n$ pipx install y",
    ],
)
def test_install_into_an_environment_passes(text: str) -> None:
    assert unprepared_installs(text) == []


def texts() -> Iterator[tuple[str, str]]:
    """Return what people read, each with its name; without Dockerfiles, which install into an image."""
    for page in [*PAGES, ROOT / "benchmarks" / "harness" / "README.md"]:
        yield page_id(page), DOCKERFILE_FENCE.sub("", page.read_text(encoding="utf-8"))
    for path in SHIPPED:
        if path.name != "Dockerfile":
            yield page_id(path), path.read_text(encoding="utf-8")
    for module in MODULES:
        for docstring in docstrings(module):
            yield page_id(module), docstring


def test_pages_install_into_a_virtual_environment() -> None:
    assert [f"{name}:{line}" for name, text in texts() for line in unprepared_installs(text)] == []


MARKER: Final = "[externally-managed]\nError=install packages of the distribution\n"
PIP: Final = '#!/bin/sh\nexec "$(dirname "$0")/python3" -m pip "$@"\n'
REPOSITORY: Final = "https://github.com/pg-scheduler/pg-scheduler"
CHOSEN_TESTS: Final = "tests/repository/test_values.py"


def create_managed_python(folder: Path, *missing: str) -> Path:
    """Create a Python that is marked as externally managed, and return the folder of its programs.

    It is a copy of the program, and a folder with links to the standard library and to pip.

    Args:
        folder: Where it is.
        missing: Modules that its standard library lacks.
    """
    program = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
    library = Path(sysconfig.get_path("stdlib"))
    programs, copy = folder / "bin", folder / "lib" / library.name
    programs.mkdir(parents=True)
    (copy / "site-packages").mkdir(parents=True)
    shutil.copy(program, programs / "python3")
    (programs / "pip").write_text(PIP, encoding="utf-8")
    (programs / "pip").chmod(0o755)
    (folder / library.parent.name).mkdir(exist_ok=True)
    for path in library.iterdir():
        if path.name not in ("site-packages", "dist-packages", "EXTERNALLY-MANAGED", *missing):
            (copy / path.name).symlink_to(path)
    for path in program.parents[1].glob("lib/libpython*"):
        (folder / "lib" / path.name).symlink_to(path)
    (copy / "EXTERNALLY-MANAGED").write_text(MARKER, encoding="utf-8")
    (copy / "site-packages" / "pip").symlink_to(Path(pip.__file__).parent)
    return programs


def readme_commands(heading: str) -> list[str]:
    """Return the commands of a section of the README, without what they print."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    start = lines.index(f"## {heading}") + 1
    end = next(number for number in range(start, len(lines)) if lines[number].startswith("## "))
    blocks = [block for block in snippets_of(ROOT / "README.md") if start < block.line <= end]
    text = "".join(block.code for block in blocks if block.kind == "console")
    return re.findall(r"^\$ (.+)$", text, re.MULTILINE)


class Shell:
    """A bash of somebody whose Python is externally managed, with a home of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "home").mkdir()
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PG", "PYTHON", "GIT_")) and name not in ("CI", "VIRTUAL_ENV")
        } | {
            "PATH": f"{create_managed_python(folder / 'python')}:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip"),
            "PIP_NO_COMPILE": "1",  # most modules are never imported
            "PYTHONUNBUFFERED": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{ROOT}.insteadOf",
            "GIT_CONFIG_VALUE_0": REPOSITORY,
        }

    def run(self, *lines: str, until: str = "") -> str:
        """Run the lines until one fails, and return what they print.

        With ``until``, press Ctrl-C once they have printed that line.
        """
        printed = []
        command = ["bash", "-ec", "\n".join(lines)]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdout
            for line in process.stdout:
                printed.append(line)
                if until and line.rstrip() == until:
                    os.killpg(process.pid, signal.SIGINT)
        output = "".join(printed)
        if until:
            assert f"{until}\n" in output, output
        else:
            assert process.returncode == 0, output
        return output


@pytest.fixture
def shell() -> Iterator[Shell]:
    """In a folder with a blank and an umlaut, which the user may enter under whom root runs a server."""
    with tempfile.TemporaryDirectory(prefix="Jürgens shop ") as folder:
        Path(folder).chmod(0o755)
        yield Shell(Path(folder))


def test_dev_py_names_the_package_of_debian_that_a_python_without_ensurepip_needs(tmp_path: Path) -> None:
    python = create_managed_python(tmp_path / "python", "ensurepip") / "python3"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with pytest.raises(DevError, match=rf"apt install python{re.escape(version)}-venv\n"):
        Environment(str(python))._check_base()


@pytest.mark.slow
def test_pip_refuses_to_install_into_a_managed_python(shell: Shell) -> None:
    code = "import sys, sysconfig; print(sys.prefix, sysconfig.get_path('stdlib'), sep='\\n')"
    prefix, library = shell.run(f'python3 -c "{code}"').splitlines()
    assert Path(prefix) == shell.folder / "python"
    assert (Path(library) / "EXTERNALLY-MANAGED").exists()
    refused = shell.run(f"! pip install --no-index --no-deps '{ROOT}'")
    assert "error: externally-managed-environment" in refused
    assert "install packages of the distribution" in refused


def run_more_programs(shell: Shell, activate: str) -> None:
    """Run the other programs on a private server; ``test_readme.py`` sends the request to the shop."""
    install, _, _, uvicorn, worker, add = readme_commands("Three more programs")
    assert uvicorn == "uvicorn shop:app"
    programs = f"python -c 'import shop, uvicorn'; pg-scheduler migrate; {add}; {worker}"
    server = f"python -m pg_scheduler.embedded -- bash -ec {shlex.quote(programs)}"
    shell.run(activate, install, server, until="charging for order 17")


@pytest.mark.slow
@pytest.mark.timeout(1200)  # it installs the development tools, then the library
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a checkout can be cloned")
def test_readme_runs_on_a_managed_python(shell: Shell) -> None:
    shown = shell.run(*readme_commands("Try it"))
    assert "nothing lost: 2,100 of 2,100" in shown
    assert "nothing doubled: 0 of" in shown
    for block in snippets_of(ROOT / "README.md"):
        if block.file:
            (shell.folder / block.file).write_text(block.code, encoding="utf-8")
    first_job = readme_commands("Your first job")
    shell.run("cd pg-scheduler", *first_job, until="receipt for order 17")
    activate = first_job[2]
    run_more_programs(shell, activate)
    cd, changed, test = readme_commands("Change it")
    assert (changed, test) == ("python3 dev.py test --changed", "python3 dev.py test")
    # Both run for minutes, and this test among others. So it chooses a file that needs no other program.
    for components in COMPONENTS.values():
        for name in components:
            (shell.folder / "pg-scheduler" / ".venv" / "debian" / name).mkdir(parents=True)
    assert " passed" in shell.run(activate, cd, f"{test} {CHOSEN_TESTS}")
