"""The executor of a function: its default, and which functions an executor can run."""

from __future__ import annotations

import os
import subprocess
import sys
import zipapp
from pathlib import Path
from typing import Any

import pytest

from pg_scheduler.jobs.executors import check_executor, import_path
from tests.docs.snippets import ROOT
from tests.support.inside import TaskOptions, TaskRegistry


def plain() -> None: ...


async def coroutine() -> None: ...


class Group:
    @classmethod
    def of_class(cls) -> None: ...

    @staticmethod
    def static() -> None: ...

    def method(self) -> None: ...


@pytest.fixture
def registry() -> TaskRegistry:
    return TaskRegistry()


@pytest.mark.parametrize(("func", "executor"), [(plain, "thread"), (coroutine, "async")])
def test_executor_defaults_to_the_one_for_the_kind_of_function(
    registry: TaskRegistry, func: Any, executor: str
) -> None:
    assert registry.register(func).executor == executor


def test_executor_stays_when_a_function_is_registered_again_and_follows_its_kind_by_default(
    registry: TaskRegistry,
) -> None:
    def later() -> None: ...

    later.__qualname__ = coroutine.__qualname__
    assert registry.register(coroutine).executor == "async"
    assert registry.register(later).executor == "thread"
    assert registry.register(coroutine, options=TaskOptions(executor="thread")).executor == "thread"
    assert registry.register(coroutine, name="name").executor == "thread"


def test_plain_function_is_adopted_only_if_it_was_registered(registry: TaskRegistry) -> None:
    with pytest.raises(TypeError, match=r"declare a plain function with @job\(\)"):
        registry.adopt(plain)
    task = registry.register(plain)
    assert registry.adopt(plain) == task


def test_async_executor_rejects_a_plain_function() -> None:
    with pytest.raises(TypeError, match="which would block the event loop"):
        check_executor(plain, "async")


@pytest.mark.parametrize(("executor", "error"), [("", ValueError), (5, TypeError), (None, TypeError)])
def test_executor_must_be_a_name(executor: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="executor"):
        check_executor(plain, executor)


@pytest.mark.parametrize("func", [plain, coroutine, Group.of_class, Group.static])
def test_import_path_names_what_another_process_can_import(func: Any) -> None:
    assert import_path(func) == (__name__, func.__qualname__)
    assert check_executor(func, "process") == "process"


def test_import_path_rejects_functions_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def nested() -> None: ...

    for func in (nested, Group().method):
        with pytest.raises(TypeError, match="define it at the top level of a module"):
            import_path(func)
    monkeypatch.setattr(f"{__name__}.plain.__qualname__", "Group")
    monkeypatch.setattr(f"{__name__}.Group", 5)
    with pytest.raises(TypeError, match="that name is 5"):
        import_path(plain)


PROGRAM = """
import json, subprocess, sys
from pg_scheduler import job

def work(): ...

try:
    job(executor="process")(work)
except TypeError as error:
    print(error)
else:
    if __name__ == "__main__":
        from pg_scheduler.jobs.executors import import_path
        module, path = import_path(work)
        code = "import json, sys; from importlib import import_module; "
        code += "sys.path[:] = json.loads(sys.argv[1]); "
        code += "print('imported', import_module(sys.argv[2]).work.__name__)"
        subprocess.run([sys.executable, "-c", code, json.dumps(sys.path), module], check=True)
"""

NO_NAME = "no process can import the program "

RUNS = {
    # The arguments of Python, and what the program prints.
    "script": (("work.py",), "imported work"),
    "script with a dash": (("work-now.py",), "imported work"),
    "link to a script": (("link.py",), "imported work"),
    "module": (("-m", "work"), "imported work"),
    "package": (("-m", "shop"), "imported work"),
    "script with a dot": (("shop.v2.py",), NO_NAME),
    "script without a suffix": (("worker",), NO_NAME),
    "folder": (("shop",), NO_NAME),
    "archive": (("shop.pyz",), NO_NAME),
    "script whose folder is not searched": (("-P", "work.py"), NO_NAME),
    "text": (("-c", PROGRAM), f"{NO_NAME}None"),
    "standard input": (("-",), f"{NO_NAME}'<stdin>'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_program_whose_functions_run_in_processes_can_be_imported(tmp_path: Path, kind: str) -> None:
    for name in ("work.py", "work-now.py", "shop.v2.py", "worker", "shop/__main__.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "link.py").symlink_to(tmp_path / "work.py")
    zipapp.create_archive(tmp_path / "shop", tmp_path / "shop.pyz")
    (tmp_path / "shop/__init__.py").touch()
    arguments, expected = RUNS[kind]
    process = subprocess.run(
        [sys.executable, *arguments],
        input=PROGRAM,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert expected in process.stdout
    remedy = "define the function in a module that the program imports"
    assert (remedy in process.stdout) is (NO_NAME in expected)
