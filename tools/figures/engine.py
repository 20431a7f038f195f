"""What code and statements of the engine show: the rings, the features, and what a reader has to hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final

from tools.figures.house import RINGS, House, read_house
from tools.figures.source import PACKAGE, Function, Module, Origin, Sources, dotted, is_text, words
from tools.figures.statements import Statement, load_statements, parts

ENGINE: Final = frozenset({"ground", "core", "features", "face"})
MAX_LINES: Final = 45
MAX_PARAMETERS: Final = 6
MAX_FLAGS: Final = 2
MAX_FIELDS: Final = 8
MAX_STATEMENT_LINES: Final = 80


@dataclass(frozen=True)
class Engine:
    """A checkout, with what each figure counts as a list of places."""

    root: Path

    @cached_property
    def house(self) -> House:
        """The table of rings."""
        return read_house(self.root)

    @cached_property
    def sources(self) -> Sources:
        """The modules of the package."""
        return Sources(self.root)

    @cached_property
    def statements(self) -> list[Statement]:
        """The statements as they are sent."""
        return load_statements(self.root)

    def modules(self, *rings: str) -> Iterator[Module]:
        """Yield the modules of some rings."""
        for module in self.sources.modules.values():
            if self.house.ring(module.short_name) in rings:
                yield module

    def unassigned(self) -> list[str]:
        """Return the modules, and the files of statements, without a place."""
        names = [module.short_name for module in self.sources.modules.values()]
        return self.house.unassigned([*names, *{module for _, _, module, _ in parts(self.root)}])

    def code_lines(self, ring: str) -> int:
        """Return the number of code lines of a ring."""
        return sum(len(module.code_lines) for module in self.modules(ring))

    def statement_lines(self, ring: str) -> int:
        """Return the number of lines of the files of statements of a ring, without comments."""
        return sum(
            bool(line.strip())
            for _, _, module, text in parts(self.root)
            if self.house.ring(module) == ring
            for line in text.splitlines()
        )

    def core_imports(self) -> list[str]:
        """Return the modules of ground and core, each with the modules of features that it imports."""
        return sorted(
            f"{module.short_name} -> {target}"
            for module in self.modules("ground", "core")
            for target in self._targets(module)
            if self.house.feature(target)
        )

    def undeclared_imports(self) -> list[str]:
        """Return the pairs of features of which one imports the other without a word in its ``requires``."""
        pairs = set()
        for module in self.modules("features"):
            feature = self.house.feature(module.short_name)
            for target in self._targets(module):
                other = self.house.feature(target)
                if other and other != feature and other not in self.house.requires[feature]:
                    pairs.add(f"{feature} -> {other}")
        return sorted(pairs)

    def _targets(self, module: Module) -> set[str]:
        names = set(self.sources.imports(module)) - {module.name}
        return {name.removeprefix(f"{PACKAGE}.") for name in names if name.startswith(f"{PACKAGE}.")}

    def core_functions(self) -> list[str]:
        """Return the functions of ground and core that name a feature: what it defines, or its state."""
        functions = []
        for module in self.modules("ground", "core"):
            for name, node in module.functions():
                features = self._features_of(module, node)
                if features:
                    functions.append(f"{module.short_name}:{name} {', '.join(sorted(features))}")
        return functions

    def _features_of(self, module: Module, node: Function) -> set[str]:
        features = {
            self.house.feature(self.sources.resolve(module.name, name).module.removeprefix(f"{PACKAGE}."))
            for child in ast.walk(node)
            if (name := dotted(child))
        }
        names = words(node)
        for feature, state in self.house.state.items():
            # A key of a JSON column, such as options.steps, is a text in quotes.
            keys = {repr(entry.rpartition(".")[2]) if "." in entry else entry for entry in state}
            if names & (keys | {repr(entry) for entry in state}):
                features.add(feature)
        return features - {""}

    def core_statements(self) -> list[str]:
        """Return the statements of ground and core that name a feature."""
        return [
            f"{statement.module}:{statement.name} {', '.join(features)}"
            for statement in self.statements
            if self.house.ring(statement.module) in {"ground", "core"}
            if (features := [name for name, state in self.house.state.items() if statement.mentions(state)])
        ]

    def foreign_statements(self) -> list[str]:
        """Return the texts in the code of the database that are names of statements of other rooms."""
        names = {
            statement.name for statement in self.statements if not statement.module.startswith("database.")
        }
        return sorted(
            f"{module.short_name}:{node.lineno} {node.value}"
            for module in self.sources.modules.values()
            if module.short_name.startswith("database.")
            for node in module.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
        )

    def fragments(self) -> list[str]:
        """Return the lines of all fragments of ground and core, wherever their files are."""
        return [
            f"{module}:{name}"
            for kind, name, module, text in parts(self.root)
            if kind == "fragment" and self.house.ring(module) in {"ground", "core"}
            for line in text.splitlines()
            if line.strip()
        ]

    def long_statements(self) -> list[str]:
        """Return the statements of the engine of more than 80 lines."""
        return [
            f"{statement.module}:{statement.name} {statement.lines}"
            for statement in self.statements
            if self.house.ring(statement.module) in ENGINE and statement.lines > MAX_STATEMENT_LINES
        ]

    def json_paths(self) -> list[str]:
        """Return the paths of keys of ``options`` and ``on_end`` that the statements of the engine read."""
        return sorted(set(self._reads()))

    def json_readers(self) -> list[str]:
        """Return each path with each statement that reads it."""
        return sorted(self._reads())

    def _reads(self) -> Iterator[str]:
        return chain.from_iterable(
            statement.reads for statement in self.statements if self.house.ring(statement.module) in ENGINE
        )

    def _private_functions(self) -> Iterator[tuple[Module, str, Function]]:
        """Yield the functions of the engine without those of its face, whose parameters are options."""
        for module in self.modules("ground", "core", "features"):
            for name, node in module.functions():
                yield module, name, node

    def long_functions(self) -> list[str]:
        """Return the functions of more than 45 code lines."""
        return [
            f"{module.short_name}:{name} {size}"
            for module, name, node in self._private_functions()
            if (size := module.size(node)) > MAX_LINES
        ]

    def many_parameters(self) -> list[str]:
        """Return the functions of more than six parameters."""
        return [
            f"{module.short_name}:{name} {len(parameters)}"
            for module, name, node in self._private_functions()
            if len(parameters := _parameters(node)) > MAX_PARAMETERS
        ]

    def flags(self) -> list[str]:
        """Return the parameters that are bool, whatever name the module has for it."""
        return [
            f"{module.short_name}:{name} {parameter.arg}"
            for module, name, node in self._private_functions()
            for parameter in _parameters(node)
            if self._is_bool(module, parameter.annotation)
        ]

    def many_flags(self) -> list[str]:
        """Return the functions of more than two flags: parameters that are bool, and members of a Flag."""
        functions = []
        for module, name, node in self._private_functions():
            flags = {
                parameter.arg
                for parameter in _parameters(node)
                if self._is_bool(module, parameter.annotation)
            }
            flags |= {
                ast.unparse(child)
                for child in ast.walk(node)
                if isinstance(child, ast.Attribute)
                if self.sources.resolve(module.name, dotted(child.value)) in self._flag_classes
            }
            if len(flags) > MAX_FLAGS:
                functions.append(f"{module.short_name}:{name} {', '.join(sorted(flags))}")
        return functions

    @cached_property
    def _flag_classes(self) -> frozenset[Origin]:
        """The enumerations whose members are bits."""
        return frozenset(
            Origin(module.name, node.name)
            for module in self.sources.modules.values()
            for node in module.nodes
            if isinstance(node, ast.ClassDef)
            for base in node.bases
            if self.sources.resolve(module.name, dotted(base)).name.rpartition(".")[2] in {"Flag", "IntFlag"}
        )

    def _is_bool(self, module: Module, annotation: ast.expr | None) -> bool:
        if annotation is None:
            return False
        if isinstance(annotation, ast.BinOp):
            return self._is_bool(module, annotation.left) or self._is_bool(module, annotation.right)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            return self._is_bool(module, ast.parse(annotation.value, mode="eval").body)
        return self.sources.resolve(module.name, dotted(annotation)).name == "bool"

    def boolean_arguments(self) -> list[str]:
        """Return the places that call a function of the package with True or False."""
        return [
            f"{module.short_name}:{node.lineno}"
            for module in self.modules(*ENGINE)
            for node in module.nodes
            if isinstance(node, ast.Call) and _name(node.func) in self._defined
            for value in [*node.args, *(keyword.value for keyword in node.keywords)]
            if isinstance(value, ast.Constant) and isinstance(value.value, bool)
        ]

    @cached_property
    def _defined(self) -> frozenset[str]:
        """The names of the functions of the package."""
        return frozenset(
            node.name
            for module in self.sources.modules.values()
            for node in module.nodes
            if isinstance(node, Function)
        )

    def large_records(self) -> list[str]:
        """Return the named tuples and dataclasses of ground, core and features of more than eight fields."""
        records = []
        for module in self.modules("ground", "core", "features"):
            for node in module.nodes:
                if not isinstance(node, ast.ClassDef):
                    continue
                fields = [member for member in node.body if isinstance(member, ast.AnnAssign)]
                words = [_name(base) for base in node.bases]
                words += [
                    _name(item.func if isinstance(item, ast.Call) else item) for item in node.decorator_list
                ]
                if len(fields) > MAX_FIELDS and {"NamedTuple", "dataclass"} & set(words):
                    records.append(f"{module.short_name}:{node.name} {len(fields)}")
        return records

    def passing_functions(self) -> list[str]:
        """Return the private functions whose body is one call of another private function."""
        functions = []
        for module, name, node in self._private_functions():
            body = [item for item in node.body if not is_text(item)]
            value = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return | ast.Expr) else None
            value = value.value if isinstance(value, ast.Await) else value
            is_private = name.rpartition(".")[2].startswith("_") and not name.endswith("__")
            if is_private and isinstance(value, ast.Call) and _name(value.func).startswith("_"):
                functions.append(f"{module.short_name}:{name}")
        return functions

    def refusals(self) -> list[str]:
        """Return the handlers of the engine outside of the database that ask why a statement was refused.

        A handler asks by the classes that it names, or by what it calls; ``suppress()`` counts as a handler.
        """
        places = []
        for module in self.modules(*ENGINE):
            if module.short_name.startswith("database"):
                continue
            for node in module.nodes:
                asked: list[ast.AST] = []
                line = 0
                if isinstance(node, ast.ExceptHandler):
                    asked, line = [*([node.type] if node.type else []), *node.body], node.lineno
                elif isinstance(node, ast.Call) and _name(node.func) == "suppress":
                    asked, line = [*node.args], node.lineno
                if any(self._is_trouble(module, name) for item in asked for name in ast.walk(item)):
                    places.append(f"{module.short_name}:{line}")
        return places

    def _is_trouble(self, module: Module, node: ast.AST) -> bool:
        if not dotted(node):
            return False
        origin = self.sources.resolve(module.name, dotted(node))
        if origin.module.removeprefix(f"{PACKAGE}.") in self.house.trouble and origin.name:
            return True
        # A tuple of classes has a name, and its members are of the module of faults.
        value = self._values.get(origin)
        return value is not None and any(
            self._is_trouble(self.sources.modules[origin.module], item) for item in value.elts
        )

    @cached_property
    def _values(self) -> dict[Origin, ast.Tuple]:
        """The tuples that have a name in a module."""
        return {
            Origin(module.name, target.id): node.value
            for module in self.sources.modules.values()
            for node in module.tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Tuple)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }

    def wires(self) -> list[str]:
        """Return the places that set an attribute of another object, and the methods that only set one."""
        places = []
        for module in self.modules(*ENGINE):
            for name, function in module.functions():
                own = {"self", "cls", *_made_in(function)}
                for node in ast.walk(function):
                    for target in node.targets if isinstance(node, ast.Assign) else []:
                        if not isinstance(target, ast.Attribute) or target.attr.startswith("__"):
                            continue
                        if dotted(target.value) not in own | {""}:
                            places.append(f"{module.short_name}:{target.lineno} {dotted(target)}")
                if _only_sets(function) and "." in name:
                    places.append(f"{module.short_name}:{name}")
        return places


def figures(root: Path) -> dict[str, int]:
    """Return the figures of the engine of a checkout."""
    engine = Engine(root)
    lines = {f"code lines of {ring}": engine.code_lines(ring) for ring in RINGS}
    sql_lines = {f"lines of statements of {ring}": engine.statement_lines(ring) for ring in RINGS}
    return {
        "modules without a ring": len(engine.unassigned()),
        **lines,
        **sql_lines,
        **{name: len(method(engine)) for name, method in LISTS.items()},
    }


LISTS: Final = {
    "imports of a feature's module by ground and core": Engine.core_imports,
    "pairs of features, one imports the other undeclared": Engine.undeclared_imports,
    "functions of ground and core that name a feature": Engine.core_functions,
    "statements of ground and core that name a feature": Engine.core_statements,
    "statements of other rooms that the database names": Engine.foreign_statements,
    "lines of fragments of ground and core": Engine.fragments,
    f"statements of more than {MAX_STATEMENT_LINES} lines, completed": Engine.long_statements,
    "paths of JSON keys that statements read": Engine.json_paths,
    "statements that read them, counted for each path": Engine.json_readers,
    f"private functions of more than {MAX_LINES} code lines": Engine.long_functions,
    f"private functions of more than {MAX_PARAMETERS} parameters": Engine.many_parameters,
    f"private functions of more than {MAX_FLAGS} flags": Engine.many_flags,
    "boolean parameters of private functions": Engine.flags,
    "calls with True or False": Engine.boolean_arguments,
    f"records of more than {MAX_FIELDS} fields": Engine.large_records,
    "private functions that only call another one": Engine.passing_functions,
    "handlers outside the database that name a refusal": Engine.refusals,
    "attributes that others set": Engine.wires,
}
"""The figures that are the length of a list, which ``--list NAME`` prints."""


def _parameters(node: Function) -> list[ast.arg]:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [argument for argument in arguments if argument.arg not in {"self", "cls"}]


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name; empty if it is none."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _made_in(function: Function) -> set[str]:
    """Return the variables that a function assigns a call to, which may be an object of its own."""
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _only_sets(function: Function) -> bool:
    """Whether the body of a method is one assignment of a parameter to an attribute of self."""
    body = [node for node in function.body if not is_text(node)]
    if len(body) != 1 or function.name.startswith("__") or not isinstance(body[0], ast.Assign):
        return False
    (target, *_), value = body[0].targets, body[0].value
    names = {argument.arg for argument in _parameters(function)}
    return isinstance(target, ast.Attribute) and isinstance(value, ast.Name) and value.id in names
