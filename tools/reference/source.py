"""Definitions of public names, read from the source: signatures, fields and docstrings.

The source is parsed, not imported, so that the result does not depend on the version of Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tools.environment import ROOT
from tools.reference.deprecations import docstring_of
from tools.reference.docstrings import Docstring, parse_docstring

PUBLIC_MODULES = (
    "pg_scheduler",
    "pg_scheduler.clock",
    "pg_scheduler.dashboard",
    "pg_scheduler.embedded",
    "pg_scheduler.errors",
    "pg_scheduler.events",
    "pg_scheduler.inspect",
    "pg_scheduler.integrations.alembic",
    "pg_scheduler.integrations.fastapi",
    "pg_scheduler.integrations.fernet",
    "pg_scheduler.integrations.litestar",
    "pg_scheduler.integrations.pydantic_ai",
    "pg_scheduler.integrations.sentry",
    "pg_scheduler.integrations.sqlalchemy",
    "pg_scheduler.integrations.starlette",
    "pg_scheduler.migrate",
    "pg_scheduler.sync",
    "pg_scheduler.telemetry.cluster",
    "pg_scheduler.telemetry.health",
    "pg_scheduler.telemetry.logging",
    "pg_scheduler.telemetry.opentelemetry",
    "pg_scheduler.telemetry.probes",
    "pg_scheduler.telemetry.prometheus",
    "pg_scheduler.telemetry.systemd",
    "pg_scheduler.telemetry.webhook",
    "pg_scheduler.testing",
    "pg_scheduler.triggers",
)
SIGNATURE_LENGTH = 90
EMPTY = {"dict()": "{}", "list()": "[]", "tuple()": "()"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    if path.is_dir():
        return path / "__init__.py"
    stub = path.with_suffix(".pyi")
    return stub if stub.exists() else path.with_suffix(".py")


@cache
def _text(module: str) -> str:
    return _file(module).read_text(encoding="utf-8")


@cache
def _lines(module: str) -> Sequence[bytes]:
    return _text(module).encode().split(b"\n")


@cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(_text(module))


def module_docstring(module: str) -> Docstring:
    """Return the docstring of a module."""
    return parse_docstring(ast.get_docstring(tree_of(module)))


@cache
def public_names(module: str) -> tuple[str, ...]:
    """Return the names in ``__all__`` of a module; none if it has no ``__all__``."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and _name(node) == "__all__":
            return tuple(ast.literal_eval(node.value))
    return ()


def _name(node: ast.stmt) -> str | None:
    """Return the name that a statement defines."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None


def _literal(node: ast.stmt | None) -> str:
    """Return the text of a docstring, in one line."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""


class Field(NamedTuple):
    """A field of a dataclass, a member of an enum or a documented class attribute."""

    name: str
    declaration: str
    text: str


def find(module: str, name: str) -> Definition:
    """Return the definition of a name, following the imports of the package.

    Raises:
        LookupError: The module does not have the name.
    """
    tree = tree_of(module)
    nodes = []
    for imports in _imports(tree):
        for alias in imports.names:
            if name == (alias.asname or alias.name) and (source := _imported(module, imports)):
                return find(source, alias.name)
    for index, node in enumerate(tree.body):
        if _name(node) == name:
            nodes.append((node, tree.body[index + 1] if index + 1 < len(tree.body) else None))
    if not nodes:
        raise LookupError(f"{module} does not define {name!r}")
    return Definition(module, name, *nodes[-1])


def _imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    """Yield the imports of a module, with those for type checkers, which stand for lazy ones."""
    for statement in tree.body:
        body = statement.body if isinstance(statement, ast.If) else [statement]
        yield from (inner for inner in body if isinstance(inner, ast.ImportFrom))


def _imported(module: str, node: ast.ImportFrom) -> str | None:
    """Return the module of this package that an import reads."""
    package = module.split(".") if _file(module).name == "__init__.py" else module.split(".")[:-1]
    start = package[: len(package) - node.level + 1] if node.level else []
    source = ".".join([*start, *([node.module] if node.module else [])])
    return source if source.split(".")[0] == "pg_scheduler" else None


def type_variable(module: str, name: str) -> ast.Assign | None:
    """Return the definition of a type variable in a module."""
    for node in tree_of(module).body:
        match node:
            case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec"))) if _name(node) == name:
                return node
    return None


def import_of(module: str, name: str) -> str:
    """Return the statement that imports a name as a module does, or from the module that defines it.

    Raises:
        LookupError: The module does not have the name.
    """
    for node in ast.walk(tree_of(module)):  # some imports are for type checkers only
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return ast.unparse(type(node)(**{**vars(node), "names": [alias]}))
    find(module, name)
    return f"from {module} import {name}"


class Definition:
    """A public class, function or value as its source defines it."""

    def __init__(self, module: str, name: str, node: ast.stmt, following: ast.stmt | None) -> None:
        self.module = module
        self.name = name
        self.node = node
        self.body: list[ast.stmt] = node.body if isinstance(node, ast.ClassDef) else []
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            self.doc = parse_docstring(docstring_of(node))
        else:
            self.doc = parse_docstring(_literal(following))

    def source(self, node: ast.AST) -> str:
        """Return the source of a node in one line."""
        if not isinstance(node, ast.expr | ast.stmt | ast.arg) or node.end_lineno is None:
            return " ".join(ast.unparse(node).split())
        # As ast.get_source_segment() does, which would split the file into lines each time.
        lines = list(_lines(self.module)[node.lineno - 1 : node.end_lineno])
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b"\n".join(lines).decode().split())

    def decorators(self) -> list[str]:
        """Return the decorator of a dataclass, without what users need not know."""
        found = self.node.decorator_list if isinstance(self.node, ast.ClassDef) else []
        words = [self.source(each) for each in found if self.source(each).startswith("dataclass")]
        return ["@dataclass(frozen=True)" if "frozen=True" in word else "@dataclass" for word in words]

    def has_own_constructor(self) -> bool:
        """Return whether a dataclass defines ``__init__()`` itself."""
        found = self.node.decorator_list if isinstance(self.node, ast.ClassDef) else []
        return any("init=False" in self.source(each) for each in found)

    def bases(self) -> list[str]:
        """Return the public base classes."""
        mixins = {mixin.name for mixin in self.mixins()}
        nodes = self.node.bases if isinstance(self.node, ast.ClassDef) else []
        return [name for node in nodes if (name := self.source(node)) not in mixins]

    def mixins(self) -> list[Definition]:
        """Return the private base classes, whose members count as this class's own."""
        found = []
        for node in self.node.bases if isinstance(self.node, ast.ClassDef) else []:
            with suppress(LookupError):
                found.append(find(self.module, self.source(node)))
        public = {name for module in PUBLIC_MODULES for name in public_names(module)}
        return [base for base in found if base.name not in public]

    def functions(self) -> dict[str, list[Function]]:
        """Return the functions of a class by name; an overloaded one has several nodes."""
        found: dict[str, list[Function]] = {}
        for node in self.body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found.setdefault(node.name, []).append(node)
                case ast.Assign(
                    value=ast.Call(func=ast.Name(id="_blocking"), args=[ast.Attribute() as method])
                ):
                    found[method.attr] = [self._blocking(method)]
        return found

    def _blocking(self, method: ast.Attribute) -> Function:
        """Return a method of another class without its ``async``."""
        (source,) = find(self.module, self.source(method.value)).functions()[method.attr]
        text = ast.unparse(source).removeprefix("async ")
        (found,) = ast.parse(text).body
        for node in ast.walk(found):
            if hasattr(node, "end_lineno"):
                node.end_lineno = None  # its source is not in this module
        assert isinstance(found, ast.FunctionDef)
        return found

    def fields(self) -> Iterator[Field]:
        """Yield the fields of a class in the order of its parameters, keyword-only ones last."""
        keyword_only = []
        for node, following in zip(self.body, [*self.body[1:], None], strict=True):
            name = _name(node)
            if name is None or name.startswith("_"):
                continue
            if isinstance(node, ast.Assign):
                yield Field(name, f"{name} = {self.source(node.value)}", _literal(following))
            elif isinstance(node, ast.AnnAssign):
                options = _field_options(node.value)
                found = Field(name, self._declaration(name, node, options), _literal(following))
                if "kw_only" in options:
                    keyword_only.append(found)
                elif "init" not in options:
                    yield found
        if keyword_only:
            yield Field("_", "_: KW_ONLY", "")
        yield from keyword_only

    def _declaration(self, name: str, node: ast.AnnAssign, options: dict[str, ast.expr]) -> str:
        declaration = f"{name}: {self.annotation(node.annotation)}"
        if "default" in options:
            return f"{declaration} = {self.source(options['default'])}"
        if factory := options.get("default_factory"):
            made = (
                self.source(factory.body) if isinstance(factory, ast.Lambda) else f"{self.source(factory)}()"
            )
            return f"{declaration} = {EMPTY.get(made, made)}"
        return declaration if node.value is None or options else f"{declaration} = {self.source(node.value)}"

    # -- signatures ----------------------------------------------------------------------------------------

    def annotation(self, node: ast.expr) -> str:
        """Return a type as users need it: without ``Annotated``, ``ClassVar`` and ``Final``."""
        match node:
            case ast.BinOp(left=left, right=right):
                return f"{self.annotation(left)} | {self.annotation(right)}"
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
                return self.annotation(first)
            case ast.Subscript(value=ast.Name(id="ClassVar" | "Final"), slice=inner):
                return self.annotation(inner)
            case ast.Name(id=name):
                for other in tree_of(self.module).body:
                    match other:
                        case ast.Assign(value=ast.Subscript(value=ast.Name(id="Annotated")) as value):
                            if _name(other) == name:
                                return self.annotation(value)
        return self.source(node)

    def signature(
        self, node: Function, *, constructor_of: str | None = None, width: int = SIGNATURE_LENGTH
    ) -> str:
        """Return the signature of a function, or the call of a constructor.

        If it is longer than ``width``, each parameter has a line of its own.
        """
        given, options = node.args, self._shown_options(node)
        plain = [*given.posonlyargs, *given.args]
        defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults))
        words = [self._parameter(*pair) for pair in zip(plain, [*defaults, *given.defaults], strict=True)]
        if plain and plain[0].arg in ("self", "cls"):
            words = words[1:]
        if given.vararg:
            words.append("*" + self._parameter(given.vararg, None))
        elif given.kwonlyargs or options:
            words.append("*")
        words += [self._parameter(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
        words += options
        if given.kwarg and not options:
            words.append("**" + self._parameter(given.kwarg, None))
        keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        start = constructor_of or f"{keyword} {node.name}"
        result = f" -> {self.annotation(node.returns)}" if node.returns and not constructor_of else ""
        line = f"{start}({', '.join(words)}){result}"
        if len(line) <= width:
            return line
        return "\n".join([f"{start}(", *(f"    {word}," for word in words), f"){result}"])

    def _shown_options(self, node: Function) -> list[str]:
        """Return the parameters that a method shows in place of ``**options``."""
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(func=ast.Name(id="_shows_options"), args=[ast.Name(id=name)]):
                    shown = self.functions()[name][-1].args
                    pairs = zip(shown.kwonlyargs, shown.kw_defaults, strict=True)
                    return [self._parameter(*pair) for pair in pairs]
        return []

    def _parameter(self, parameter: ast.arg, default: ast.expr | None) -> str:
        kind = f": {self.annotation(parameter.annotation)}" if parameter.annotation else ""
        value = f" = {self._default(default)}" if default else ""
        return f"{parameter.arg}{kind}{value}"

    def _default(self, node: ast.expr) -> str:
        """Return a default; a constant that stands for a new value is that value."""
        if isinstance(node, ast.Name):
            with suppress(LookupError):
                constant = find(self.module, node.id)
                value = getattr(constant.node, "value", None)
                if isinstance(value, ast.Call):
                    return constant.source(value)
        return self.source(node)


def _field_options(value: ast.expr | None) -> dict[str, ast.expr]:
    """Return the arguments of a call of ``field()``."""
    match value:
        case ast.Call(func=ast.Name(id="field" | "Field"), keywords=keywords):
            return {keyword.arg: keyword.value for keyword in keywords if keyword.arg}
    return {}
