"""Type checking of applications that use the library, by mypy and by pyright, both in strict mode."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from packaging.version import Version

EXAMPLES = Path(__file__).with_name("examples.py")
ROOT = EXAMPLES.parents[2]
SHOPS = ("fastapi_shop", "order_approval", "celery_shop/after.py", "apscheduler_shop/after.py")
"""The applications of the repository; those before a move use libraries without types."""

DJANGO_SHOP = "examples/django_shop"
"""A project of its own, in whose folder Django runs it. The package django-stubs has the types of Django."""

HAS_TYPES = Version(asyncpg.__version__) >= Version("0.30")
needs_types = pytest.mark.skipif(not HAS_TYPES, reason="asyncpg 0.29 has no types, old Alembic some")

PYRIGHT = shutil.which("pyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """Copy the examples out of this repository: they see the installed package and not our settings."""
    code = tmp_path / "application.py"
    code.write_text(EXAMPLES.read_text(encoding="utf-8"), encoding="utf-8")
    return code


@pytest.fixture
def shops(tmp_path: Path) -> Path:
    """Copy the applications of the repository likewise."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def output_of(*command: str, cwd: Path) -> str:
    checked = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)
    return checked.stdout + checked.stderr


@pytest.mark.timeout(300)  # without its cache mypy reads every dependency
def test_mypy_accepts_the_examples_and_finds_every_marked_mistake(
    application: Path, pytestconfig: pytest.Config
) -> None:
    assert mypy_errors(application.parent, application.name, config=pytestconfig) == ""


@pytest.mark.timeout(300)
def test_mypy_accepts_the_applications_of_the_repository(shops: Path, pytestconfig: pytest.Config) -> None:
    options = ("--explicit-package-bases", "--namespace-packages")
    paths = [f"examples/{shop}" for shop in SHOPS]
    assert mypy_errors(shops, *options, *paths, config=pytestconfig) == ""


@pytest.mark.timeout(300)
def test_mypy_accepts_the_django_application(shops: Path, pytestconfig: pytest.Config) -> None:
    require_django_stubs()
    project = shops / DJANGO_SHOP
    assert mypy_errors(project, "--explicit-package-bases", ".", config=pytestconfig) == ""


def require_django_stubs() -> None:
    pytest.importorskip("mypy_django_plugin", reason="dev.py has not updated this environment")


def mypy_errors(folder: Path, *arguments: str, config: pytest.Config) -> str:
    try:
        cache = str(config.cache.mkdir("mypy"))
    except OSError:  # the checkout is read-only
        cache = os.devnull
    options = ["--strict", "--config-file=", "--no-error-summary", f"--cache-dir={cache}"]
    return output_of(sys.executable, "-m", "mypy", *options, *arguments, cwd=folder)


@pytest.mark.timeout(300)
@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed: pip install 'pyright[nodejs]'")
@needs_types
def test_pyright_accepts_the_examples_and_finds_every_marked_mistake(application: Path) -> None:
    assert pyright_errors(application.parent, application.name) == ([], 1)


@pytest.mark.timeout(300)
@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed: pip install 'pyright[nodejs]'")
@needs_types
def test_pyright_accepts_the_applications_of_the_repository(shops: Path) -> None:
    errors, analyzed = pyright_errors(shops, *(f"examples/{shop}" for shop in SHOPS))
    assert errors == []
    assert analyzed >= len(SHOPS)


@pytest.mark.timeout(300)
@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed: pip install 'pyright[nodejs]'")
def test_pyright_accepts_the_django_application(shops: Path) -> None:
    require_django_stubs()
    errors, analyzed = pyright_errors(shops / DJANGO_SHOP, ".")
    assert errors == []
    assert analyzed >= len([*(ROOT / DJANGO_SHOP).glob("**/*.py")])


def pyright_errors(folder: Path, *paths: str) -> tuple[list[tuple[str, int, str]], int]:
    """Return the errors with their lines, and the number of files that were checked."""
    config = {
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "include": paths,
        "extraPaths": [str(ROOT)],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [str(PYRIGHT), "--pythonpath", sys.executable, "--outputjson"]
    found = json.loads(output_of(*command, cwd=folder))
    errors = [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in found["generalDiagnostics"]
    ]
    return errors, found["summary"]["filesAnalyzed"]
