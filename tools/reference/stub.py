"""Write the type stub of the blocking methods from the signatures of `Scheduler`.

Run ``python -m tools.reference.stub`` after a change of a signature or docstring of `Scheduler`.

A type checker cannot follow members that are derived when the package is imported, and ``ParamSpec`` cannot
change the type of ``connection=``. The stub is complete: it has the parameters, their defaults and the
docstrings that an editor shows.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Final

from tools.environment import ROOT
from tools.reference.source import Definition, Function, find, import_of, type_variable

COMMAND: Final = "python -m tools.reference.stub"
STUB: Final = ROOT / "pg_scheduler" / "sync" / "methods.pyi"
CONNECTION: Final = "connection"
SYNC_CONNECTION: Final = "AnySyncConnection"
ADAPTER: Final = "pg_scheduler.database.callers.adapter"
DERIVE: Final = "pg_scheduler.base.blocking"

HEADER: Final = '''\
"""The blocking methods of `SyncScheduler`, for type checkers; made by ``python -m tools.reference.stub``."""

{imports}

__all__ = ["BlockingMethods", "Settings"]

{variables}

class Settings(TypedDict, total=False):
    """The keyword parameters of `Scheduler`."""

{settings}
'''

_ASYNC_ITERATOR = re.compile(r"(?:\w+\.)?Async(?:Iterator|Iterable|Generator)")
_SECTION = re.compile(r"^(?:Args|Attributes|Returns|Yields|Raises|Examples?):{1,2}$", re.MULTILINE)


def stub(module: str = "pg_scheduler.scheduler.scheduler", name: str = "Scheduler") -> str:
    """Return the text of the stub.

    Args:
        module: The module of the asynchronous class.
        name: The name of that class.

    Raises:
        LookupError: A module does not define a name.
    """
    code = _Stub(name).text(find(module, name))
    for arguments in (("check", "--select", "I", "--fix-only"), ("format",)):
        command = [sys.executable, "-m", "ruff", *arguments, "--quiet", "--stdin-filename", str(STUB), "-"]
        done = subprocess.run(command, input=code, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        code = done.stdout
    return code


class _Stub:
    """Collects the classes of the stub, and the imports and type variables that they need."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._imports = {"TypedDict": "from typing import TypedDict"}  # by name
        self._variables: dict[str, str] = {}
        self._classes: dict[str, str] = {}

    def text(self, face: Definition) -> str:
        given = face.functions()["__init__"][-1].args
        settings = [
            f"    {each.arg}: {self._expression(face, each.annotation)}"
            for each in [*given.args, *given.kwonlyargs]
            if each.annotation is not None and each.arg != "db_pool"
        ]
        self._import("Blocking")
        self._add_class(face, "BlockingMethods", "Blocking")
        header = HEADER.format(
            imports="\n".join(self._imports.values()),
            variables="\n".join(self._variables.values()),
            settings="\n".join(settings),
        )
        return "\n\n".join([header, *self._classes.values()])

    def _add_class(self, it: Definition, name: str, base: str) -> None:
        lines = [f"class {name}({base}):", f'    """The public members of `{self._path}`, blocking."""']
        seen: set[str] = set()
        for owner in _lineage(it):
            for node in owner.body:
                member = _name(node)
                if member and not member.startswith("_") and member not in seen and not _is_constructor(node):
                    seen.add(member)
                    lines += self._member(owner, member, node)
        self._classes.setdefault(name, "\n".join(lines))

    def _member(self, owner: Definition, name: str, node: ast.stmt) -> Iterator[str]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                nodes = owner.functions()[name]
                if any(word in _decorators(nodes[-1]) for word in ("property", "cached_property")):
                    yield from self._property(owner, name, nodes[-1])
                    return
                for each in nodes[:-1] or nodes:  # the overloads, if there are any
                    yield from self._function(owner, each, nodes[-1])
            case ast.AnnAssign(annotation=annotation):
                facet = _facet(owner, annotation)
                kind = self._facet(facet, name) if facet else self._expression(owner, annotation)
                yield f"    {name}: {kind}"
            case _:
                raise LookupError(f"{owner.name}.{name} has no annotation")

    def _property(self, owner: Definition, name: str, getter: Function) -> Iterator[str]:
        if getter.returns is None:
            raise LookupError(f"{owner.name}.{name} has no annotation")
        facet = _facet(owner, getter.returns)
        kind = self._facet(facet, name) if facet else self._expression(owner, getter.returns)
        yield f"    @property\n    def {name}(self) -> {kind}:"
        yield _quoted(ast.get_docstring(getter) or "")

    def _facet(self, facet: Definition, name: str) -> str:
        """Add the class of a facet, and return its name."""
        self._import("BlockingFacet")
        path, self._path = self._path, f"{self._path}.{name}"
        self._add_class(facet, f"Blocking{facet.name}", "BlockingFacet")
        self._path = path
        return f"Blocking{facet.name}"

    def _function(self, owner: Definition, node: Function, documented: Function) -> Iterator[str]:
        for decorator in node.decorator_list:
            yield f"    @{self._expression(owner, decorator)}"
        given = copy.copy(node.args)  # the pages show the whole signature
        given.kwonlyargs = [self._synchronous(argument) for argument in given.kwonlyargs]
        self._note_names(owner, given)
        yield f"    def {node.name}({ast.unparse(given)}) -> {self._returned(owner, node)}:"
        doc = _SECTION.split(ast.get_docstring(documented) or "")[0].strip()
        yield _quoted(f"{doc}\n\nParameters, values and errors are those of ``{self._path}.{node.name}()``.")

    def _synchronous(self, argument: ast.arg) -> ast.arg:
        """Return a parameter, with the type that it has in blocking methods."""
        if argument.arg != CONNECTION:
            return argument
        self._imports[SYNC_CONNECTION] = f"from {ADAPTER} import {SYNC_CONNECTION}"
        annotation = ast.parse(f"{SYNC_CONNECTION} | None", mode="eval").body
        return ast.arg(CONNECTION, annotation)

    def _returned(self, owner: Definition, node: Function) -> str:
        returns = node.returns
        if returns is None:
            raise LookupError(f"{owner.name}.{node.name}() has no return annotation")
        match returns:
            case ast.Subscript(value=ast.Name(id=name), slice=item) if _ASYNC_ITERATOR.fullmatch(name):
                first = item.elts[0] if isinstance(item, ast.Tuple) else item
                return self._iterator(owner, first)
            case ast.Name(id=name):
                with_items = _class(owner, name)
                steps = with_items.functions().get("__anext__") if with_items else None
                if with_items and steps and steps[-1].returns is not None:
                    return self._iterator(with_items, steps[-1].returns)
        return self._expression(owner, returns)

    def _iterator(self, owner: Definition, item: ast.expr) -> str:
        self._import("BlockingIterator")
        return f"BlockingIterator[{self._expression(owner, item)}]"

    def _import(self, name: str) -> None:
        self._imports[name] = f"from {DERIVE} import {name}"

    def _expression(self, owner: Definition, node: ast.expr) -> str:
        self._note_names(owner, node)
        return ast.unparse(node)

    def _note_names(self, owner: Definition, node: ast.AST) -> None:
        for each in ast.walk(node):
            if not isinstance(each, ast.Name) or hasattr(builtins, each.id) or each.id == SYNC_CONNECTION:
                continue
            variable = type_variable(owner.module, each.id)
            if variable is None:
                self._imports.setdefault(each.id, import_of(owner.module, each.id))
            else:
                self._variables[each.id] = ast.unparse(variable)
                self._note_names(owner, variable.value)


def _lineage(it: Definition) -> Iterator[Definition]:
    """Yield a class and its private base classes."""
    yield it
    for mixin in it.mixins():
        yield from _lineage(mixin)


def _class(owner: Definition, name: str) -> Definition | None:
    try:
        found = find(owner.module, name)
    except LookupError:
        return None
    return found if isinstance(found.node, ast.ClassDef) else None


def _facet(owner: Definition, annotation: ast.expr) -> Definition | None:
    """Return the class of a facet: one with coroutine functions."""
    match annotation:
        case ast.Name(id=name) if found := _class(owner, name):
            if any(isinstance(node, ast.AsyncFunctionDef) for node in found.body):
                return found
    return None


def _decorators(node: Function) -> list[str]:
    return [ast.unparse(each) for each in node.decorator_list]


def _is_constructor(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "classmethod" in _decorators(node)


def _name(node: ast.stmt) -> str | None:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None


def _quoted(doc: str) -> str:
    end = "\n" if "\n" in doc else ""
    return textwrap.indent(f'"""{doc}{end}"""', "        ")


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
