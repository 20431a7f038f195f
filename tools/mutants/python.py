"""The changes of Python code.

Only the bodies of functions change: what runs when a module is imported are mostly constants, of which
nothing depends on the exact value. Texts for people do not change either: docstrings, log records, messages
of errors and assertions, ``__repr__``. Nor do annotations, and what only a type checker reads.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import CodeType
from typing import Final

from tools.mutants.mutant import Mutant, Places

OPERATORS: Final = {
    "border": "`<` becomes `<=`, `>=` becomes `>`, and so on",
    "condition": "a condition is negated",
    "call": "a statement that calls a function is removed",
    "await": "a statement that awaits a call is removed",
    "raise": "a statement that raises an error is removed",
    "return": "a returned `True` becomes `False`, and the other way round",
    "integer": "an integer is increased by one",
    "boolean": "`and` becomes `or`, and the other way round",
    "keyword": "a keyword argument of a call is removed",
}

BORDERS: Final = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
BORDER: Final = re.compile(r"[<>]=?")
BOOLEANS: Final = {"and": "or", "or": "and"}
BOOLEAN: Final = re.compile(r"\b(?:and|or)\b")
COMMA_AFTER: Final = re.compile(r"\s*,[ \t]*")
COMMA_BEFORE: Final = re.compile(r",\s*$")
FOR_PEOPLE: Final = frozenset({"__repr__"})
LOGGERS: Final = frozenset({"logger", "logging", "log", "warnings"})

REACHED: Final = 77
"""The exit status of a process that comes to the place of a probe."""
PROBE: Final = f'__import__("os")._exit({REACHED})'


def mutants(path: str, text: str) -> Iterator[Mutant]:
    """Yield the mutants of a module."""
    yield from _Finder(path, text).visit(ast.parse(text).body, "", "", range(0))


class _Finder:
    """Finds what can change in one module."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text
        self._places = Places(text)

    def visit(
        self, nodes: Iterable[ast.AST | None], prefix: str, function: str, lines: range
    ) -> Iterator[Mutant]:
        """Yield the mutants of nodes.

        Args:
            nodes: The nodes.
            prefix: What precedes the names of functions in these nodes.
            function: The innermost function, or an empty text.
            lines: Its lines.
        """
        for node in nodes:
            match node:
                case None | ast.JoinedStr():
                    pass
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    if node.name not in FOR_PEOPLE:
                        name = f"{prefix}{node.name}"
                        inner = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                        yield from self.visit(node.body, f"{name}.", name, inner)
                case ast.ClassDef():
                    yield from self.visit(node.body, f"{prefix}{node.name}.", function, lines)
                case _:
                    if function:
                        for operator, start, end, replacement in self._changes(node):
                            line, column = self._places.line_and_column(start)
                            yield Mutant(
                                self._path, function, lines, operator, line, column, start, end, replacement
                            )
                    yield from self.visit(_children(node), prefix, function, lines)

    def _changes(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        """Yield the operator, the offsets and the replacement of each change of a node itself."""
        match node:
            case ast.Expr(value=ast.Call() as call) if not _is_for_people(call):
                yield ("call", *self._offsets(node), "pass")
            case ast.Expr(value=ast.Await()):
                yield ("await", *self._offsets(node), "pass")
            case ast.Raise():
                yield ("raise", *self._offsets(node), "pass")
            case ast.Return(value=ast.Constant(value=bool(value)) as constant):
                yield ("return", *self._offsets(constant), str(not value))
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if not _is_for_checkers(node):
                    yield self._negation(test)
            case ast.comprehension(ifs=tests):
                yield from map(self._negation, tests)
            case ast.match_case(guard=ast.expr() as guard):
                yield self._negation(guard)
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                yield ("integer", *self._offsets(node), str(value + 1))
            case ast.BoolOp():
                yield from self._tokens("boolean", BOOLEAN, BOOLEANS, node.values)
            case ast.Compare():
                yield from self._tokens("border", BORDER, BORDERS, [node.left, *node.comparators])
            case ast.Call() if not _is_for_people(node):
                yield from (self._without(keyword) for keyword in node.keywords if keyword.arg)

    def _offsets(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._places.offset(node.lineno, node.col_offset), self._places.offset(end_line, end_column)

    def _negation(self, test: ast.expr) -> tuple[str, int, int, str]:
        start, end = self._offsets(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            operand_start, operand_end = self._offsets(test.operand)
            return "condition", start, end, f"({self._text[operand_start:operand_end]})"
        return "condition", start, end, f"not ({self._text[start:end]})"

    def _tokens(
        self, operator: str, pattern: re.Pattern[str], replacements: dict[str, str], operands: list[ast.expr]
    ) -> Iterator[tuple[str, int, int, str]]:
        """Yield the replacement of the token between each two operands, if the pattern has it."""
        for left, right in pairwise(operands):
            if token := pattern.search(self._text, self._offsets(left)[1], self._offsets(right)[0]):
                yield operator, token.start(), token.end(), replacements[token[0]]

    def _without(self, keyword: ast.keyword) -> tuple[str, int, int, str]:
        """Return the removal of a keyword argument with one comma."""
        start, end = self._offsets(keyword)
        if comma := COMMA_AFTER.match(self._text, end):
            end = comma.end()
        elif comma := COMMA_BEFORE.search(self._text, 0, start):
            start = comma.start()
        return "keyword", start, end, ""


def _children(node: ast.AST) -> Iterable[ast.AST | None]:
    """Return the nodes below a node that may change."""
    match node:
        case ast.Raise():
            return ()
        case ast.Call() if _is_for_people(node):
            return ()
        case ast.AnnAssign(value=value) | ast.Assert(test=value) | ast.Lambda(body=value):
            return (value,)
        case ast.If() if _is_for_checkers(node):
            return node.orelse
        case _:
            return ast.iter_child_nodes(node)


def _is_for_people(call: ast.Call) -> bool:
    """Return whether a call writes a log record or a warning."""
    function = call.func
    while isinstance(function, ast.Attribute):
        if function.attr in LOGGERS:
            return True
        function = function.value
    return isinstance(function, ast.Name) and function.id in LOGGERS


def _is_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def has_the_code(first: CodeType, second: CodeType) -> bool:
    """Return whether two modules do the same: their bytecode differs in the numbers of lines only."""
    return _essence(first) == _essence(second)


def _essence(code: CodeType) -> tuple[object, ...]:
    constants = tuple(
        _essence(constant) if isinstance(constant, CodeType) else (type(constant), constant)
        for constant in code.co_consts
    )
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (code.co_name, code.co_code, code.co_flags, code.co_argcount, names, constants)


def probe(text: str, line: int) -> str | None:
    """Return the text of a module whose process ends when it comes to the statement of a line.

    None if no statement of a function contains the line.
    """
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt)
        and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    lines = text.split("\n")
    for statement in sorted(around, key=lambda node: node.lineno, reverse=True):
        place = statement.lineno - 1
        changed = "\n".join([*lines[:place], f"{' ' * statement.col_offset}{PROBE}", *lines[place:]])
        try:
            ast.parse(changed)
        except SyntaxError:
            # An ``elif`` is a statement too, before which none can stand; the one around it can have one.
            continue
        return changed
    return None
