"""What the outer rooms, the tests and the workshop show: the doors between rooms, and what a change moves."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.figures.programs import ask
from tools.figures.source import PACKAGE, Module, Sources, dotted
from tools.reference.source import PUBLIC_MODULES

DOORS: Final = ("facts", "telemetry", "tools", "integrations", "base.text")
"""The rooms and packages that others may import, besides the public modules."""

ROOMS: Final = ("cli", "dashboard", "integrations", "telemetry")
_PLAIN_JOB: Final = """
import json, sys
import pg_scheduler

@pg_scheduler.job()
async def work() -> None: ...

pg_scheduler.Scheduler
files = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "pg_scheduler"]
json.dump([file for file in files if file], sys.stdout)
"""
"""A program that declares a job: what it has loaded is what each process with a plain job loads first."""


def figures(root: Path) -> dict[str, int]:
    """Return the figures of the outer rooms, the tests and the workshop of a checkout."""
    package, tests = Sources(root), Sources(root, "tests")
    test_files = [module for module in tests.modules.values() if module.path.name.startswith("test_")]
    loaded = _loaded(root)
    locks = sum(
        len(path.read_text(encoding="utf-8").splitlines()) for path in (root / "requirements").glob("*.txt")
    )
    return {
        "modules loaded for a plain job": len(loaded),
        "lines loaded for a plain job": sum(
            len(path.read_text(encoding="utf-8").splitlines()) for path in loaded
        ),
        **{f"private modules of others that {room} imports": len(private(package, room)) for room in ROOMS},
        "modules of the command line that import the dashboard": len(dashboard_users(package)),
        "test files": len(test_files),
        "test files that import private modules": len(private_tests(package, test_files)),
        "private modules that tests/support imports": len(
            {
                target
                for module in tests.modules.values()
                if module.name.startswith("tests.support.")
                for target in _named(package, module)
                if is_private(target)
            }
        ),
        "patches by dotted path": sum(dotted_patches(module) for module in tests.modules.values()),
        "patches of imported private names": sum(
            imported_patches(package, tests, module) for module in tests.modules.values()
        ),
        "uses of private attributes in tests/api": sum(
            private_attributes(module) for module in test_files if module.name.startswith("tests.api.")
        ),
        "private modules that tests/conftest.py imports": len(stopping(root, package)),
        "entries of the table of mutations": _mutations(root),
        "lines of lock files": locks,
        "commands that renew one derived file": commands_to_renew(root),
    }


def is_private(module: str) -> bool:
    """Whether only the package may import a module."""
    short = module.removeprefix(f"{PACKAGE}.")
    return module not in PUBLIC_MODULES and not any(
        short == door or short.startswith(f"{door}.") for door in DOORS
    )


def _named(package: Sources, module: Module) -> Iterator[str]:
    """Yield the modules of the package that a file names in its imports: the doors that it uses."""
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom):
            source = module.absolute(node)
            if source.split(".")[0] == PACKAGE:
                for alias in node.names:
                    inner = f"{source}.{alias.name}"
                    yield inner if inner in package.modules else source
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in package.modules:
            yield node.value


def private(package: Sources, room: str) -> set[str]:
    """Return the private modules of other rooms that a room imports."""
    prefix = f"{PACKAGE}.{room}"
    return {
        target
        for module in package.modules.values()
        if f"{module.name}.".startswith(f"{prefix}.")
        for target in _named(package, module)
        if is_private(target) and not f"{target}.".startswith(f"{prefix}.")
    }


def dashboard_users(package: Sources) -> list[str]:
    """Return the modules of the command line that import the dashboard, but to serve it."""
    return [
        module.name
        for module in package.modules.values()
        if module.name.startswith(f"{PACKAGE}.cli.") and module.path.name != "servers.py"
        if any(f"{target}.".startswith(f"{PACKAGE}.dashboard.") for target in _named(package, module))
    ]


def private_tests(package: Sources, modules: list[Module]) -> list[str]:
    """Return the files of tests that import a private module."""
    return [module.name for module in modules if any(map(is_private, _named(package, module)))]


def dotted_patches(module: Module) -> int:
    """Return the number of calls that replace something by a text with its path in the package."""
    return sum(
        isinstance(target, ast.JoinedStr | ast.Constant) and _is_path(target) for target in _patched(module)
    )


def _is_path(text: ast.JoinedStr | ast.Constant) -> bool:
    """Return whether a text is a path in the package, or one that is only known when it runs."""
    first = text.values[0] if isinstance(text, ast.JoinedStr) else text
    if isinstance(first, ast.FormattedValue):
        return dotted(first.value) != "__name__"
    return isinstance(first, ast.Constant) and str(first.value).startswith(f"{PACKAGE}.")


def imported_patches(package: Sources, tests: Sources, module: Module) -> int:
    """Return the number of calls that replace something in a private module or class that a file imports."""
    bindings = tests.bindings[module.name]
    count = 0
    for target in _patched(module):
        origin = bindings.get(dotted(target).partition(".")[0])
        if origin is not None and origin.module.split(".")[0] == PACKAGE:
            inner = f"{origin.module}.{origin.name}"
            count += is_private(inner if inner in package.modules else origin.module)
    return count


def _patched(module: Module) -> Iterator[ast.expr]:
    """Yield the first argument of each call of ``setattr`` or ``delattr`` of a fixture."""
    for node in module.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"setattr", "delattr"}
            and node.args
        ):
            yield node.args[0]


def private_attributes(module: Module) -> int:
    """Return the number of uses of attributes that begin with an underscore, also by a text."""
    return sum(
        _is_hidden(node.attr)
        if isinstance(node, ast.Attribute)
        else isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"getattr", "setattr"}
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
        and _is_hidden(str(node.args[1].value))
        for node in module.nodes
    )


def _is_hidden(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def stopping(root: Path, package: Sources) -> dict[str, list[str]]:
    """Return the private modules that tests/conftest.py imports, each with the chain of imports to it.

    All tests need them. An import within a function counts too, since fixtures of all tests may call it.
    """
    helpers = {**Sources(root, "tests").modules, **Sources(root, "tools").modules}
    chains = {"tests.conftest": ["tests.conftest"]}
    waiting = ["tests.conftest"]
    private_modules: dict[str, list[str]] = {}
    while waiting:
        chain = chains[waiting.pop()]
        module = helpers[chain[-1]]
        for target in _named(package, module):
            if is_private(target):
                private_modules.setdefault(target, [*chain, target])
        for target in _helpers_of(module, helpers):
            if target not in chains:
                chains[target] = [*chain, target]
                waiting.append(target)
    return private_modules


def _helpers_of(module: Module, helpers: dict[str, Module]) -> Iterator[str]:
    """Yield the modules of the tests and the workshop that a file names, also in a text."""
    for node in module.nodes:
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            source = module.absolute(node)
            names = [source, *(f"{source}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant):
            names = [str(node.value)]
        yield from (name for name in names if name in helpers)


def commands_to_renew(root: Path) -> int:
    """Return the number of commands of contributing.md that each write one kind of derived files."""
    guide = (root / "docs" / "project" / "contributing.md").read_text(encoding="utf-8")
    text = " ".join(guide.split())
    names = re.findall(
        r"python3? -m (tools\.reference\.\w+|tools\.diagrams|tools\.dashboards|tests\.[\w.]+)", text
    )
    return len({*names, *re.findall(r"dev\.py (?:build --renew|renew)", text)})


def _mutations(root: Path) -> int:
    table = root / "tools" / "mutations.toml"
    return len(tomllib.loads(table.read_text(encoding="utf-8"))["mutation"]) if table.exists() else 0


def _loaded(root: Path) -> list[Path]:
    """Return the files of the package that a program with a plain job has loaded."""
    return [Path(file) for file in ask(root, _PLAIN_JOB)]
