"""The modules of a checkout as syntax trees, and where each name comes from."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

PACKAGE: Final = "pg_scheduler"
Function = ast.FunctionDef | ast.AsyncFunctionDef
_NO_CODE: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


@dataclass(frozen=True)
class Module:
    """A file of Python code."""

    name: str
    """Its full name, such as ``pg_scheduler.jobs.model``; that of a package ends without ``__init__``."""
    path: Path
    is_package: bool

    @cached_property
    def text(self) -> str:
        """What the file contains."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def code_lines(self) -> frozenset[int]:
        """The numbers of the lines with code: no blank lines, comments and docstrings."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in self.nodes:
            body = getattr(node, "body", None)
            for statement in body if isinstance(body, list) else []:
                if is_text(statement):
                    lines.difference_update(range(statement.lineno, (statement.end_lineno or 0) + 1))
        return frozenset(lines)

    @property
    def short_name(self) -> str:
        """The name below the package; ``__init__`` for the package itself."""
        return self.name.removeprefix(f"{PACKAGE}.") if self.name != PACKAGE else "__init__"

    def size(self, node: Function) -> int:
        """Return the number of code lines of a function."""
        return sum(line in self.code_lines for line in range(node.lineno, (node.end_lineno or 0) + 1))

    def absolute(self, node: ast.ImportFrom) -> str:
        """Return the module from which a statement imports."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Yield the functions that are not within others, each with its name after that of its class."""
        yield from _functions(self.tree, "")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):
            yield from _functions(child, prefix)


@dataclass(frozen=True)
class Origin:
    """The place where a name is defined: a module, and the name in it, or the module itself."""

    module: str
    name: str = ""


@dataclass(frozen=True)
class Sources:
    """The Python files of some folders of a checkout."""

    root: Path
    folder: str = PACKAGE
    _origins: dict[tuple[str, str], Origin] = field(default_factory=dict)

    @cached_property
    def modules(self) -> dict[str, Module]:
        """The modules by name."""
        modules = {}
        for path in sorted((self.root / self.folder).rglob("*.py")):
            parts = path.relative_to(self.root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            modules[name] = Module(name, path, is_package)
        return modules

    @cached_property
    def bindings(self) -> dict[str, dict[str, Origin]]:
        """The names that each module binds by an import or by another name for the same value."""
        return {name: dict(self._bindings(module)) for name, module in self.modules.items()}

    def _bindings(self, module: Module) -> Iterator[tuple[str, Origin]]:
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom):
                source = module.absolute(node)
                for alias in node.names:
                    inner = f"{source}.{alias.name}"
                    is_module = inner in self.modules
                    origin = Origin(inner) if is_module else Origin(source, alias.name)
                    yield alias.asname or alias.name, origin
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    yield name, Origin(alias.name if alias.asname else name)
        for node in module.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and (value := dotted(node.value or node)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name) and target.id != value:
                        yield target.id, Origin(module.name, value)

    def resolve(self, module: str, name: str) -> Origin:
        """Return where a dotted name of a module is defined, through imports and other names for it."""
        key = (module, name)
        if key not in self._origins:
            self._origins[key] = Origin(module, name)  # for names that are defined by each other
            self._origins[key] = self._resolve(module, name)
        return self._origins[key]

    def _resolve(self, module: str, name: str) -> Origin:
        first, _, others = name.partition(".")
        origin = self.bindings.get(module, {}).get(first)
        if origin is None:
            return Origin(module, name)
        if origin.module == module and origin.name == first:
            return Origin(module, name)
        if origin.name:
            rest = f"{origin.name}.{others}" if others else origin.name
            return (
                self.resolve(origin.module, rest)
                if origin.module in self.modules
                else Origin(origin.module, rest)
            )
        if not others:
            return origin
        # The name of a module, and within it a module or a name.
        inner, _, tail = others.partition(".")
        if f"{origin.module}.{inner}" in self.modules:
            return self._within(f"{origin.module}.{inner}", tail)
        return self._within(origin.module, others)

    def _within(self, module: str, name: str) -> Origin:
        inner, _, tail = name.partition(".")
        if not name:
            return Origin(module)
        if f"{module}.{inner}" in self.modules:
            return self._within(f"{module}.{inner}", tail)
        return self.resolve(module, name) if module in self.modules else Origin(module, name)

    def imports(self, module: Module) -> Iterator[str]:
        """Yield the modules that a module imports: those that define the names, and those of lazy imports."""
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom):
                source = module.absolute(node)
                for alias in node.names:
                    inner = f"{source}.{alias.name}"
                    if inner in self.modules:
                        yield inner
                    else:
                        yield self.resolve(source, alias.name).module if source in self.modules else source
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif (
                isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in self.modules
            ):
                # import_module(), or a table of names that are loaded late.
                yield node.value


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, or another text that nothing uses."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def dotted(node: ast.AST) -> str:
    """Return a name with its dots; empty for other code."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def words(function: Function) -> set[str]:
    """Return the texts of a function in quotes, and its parameters, attributes and arguments.

    A variable may have any name, so those are no words.
    """
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(repr(node.value))
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            names.add(node.arg)
    return names
