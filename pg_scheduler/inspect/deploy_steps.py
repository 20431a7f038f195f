"""Find the steps that the source of a module names, so that stored steps can be compared with them."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.injected import value_of
from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.jobs.step_values import CHILD, CURSOR, FIRST, SIGNAL, SLEEP, STEP, ReturnType

CALLING: Final = frozenset({"run", "transaction"})
"""The methods of steps whose second argument is a function that returns the value."""

METHODS: Final[Mapping[str, str]] = {
    "run": STEP,
    "transaction": STEP,
    "cursor": CURSOR,
    "sleep": SLEEP,
    "wait": SIGNAL,
    "child": CHILD,
    "gather": CHILD,
    "first": FIRST,
}
"""The methods of steps, and the kind of the rows that they store."""

WAIT_KINDS: Final[Mapping[str, str]] = {"Wait": SIGNAL, "Sleep": SLEEP, "Child": CHILD}
"""The classes of what ``first()`` waits for, and the kind of their rows."""

STEPS_ATTRIBUTE: Final = "steps"
"""The attribute of a job whose value has these methods. A variable with this value often has the same
name."""


class NamedStep(NamedTuple):
    """A step that a module names.

    Attributes:
        text: The name of the step, or the start of its names.
        is_prefix: Whether only the start of the name is known, because the name is computed.
        kind: The kind of its row.
        returns: The return type of its function; None if the step has no function, or an unknown one.
    """

    text: str
    is_prefix: bool
    kind: str
    returns: ReturnType | None


def steps_of(func: JobFunction, name: str, kind: str) -> Sequence[NamedStep] | None:
    """Return the steps in the module of a task that may have stored a row.

    Args:
        func: The function of the task.
        name: The name in the row.
        kind: The kind in the row.

    Returns:
        The steps, an empty sequence if the module names no such step. None if the source of the module cannot
        be read.
    """
    steps_in_module = _named_steps(inspect.unwrap(func).__module__)
    if steps_in_module is None:
        return None
    # A step whose name is computed from its start on has an empty text. It may be any step, of any kind.
    candidates = [step for step in steps_in_module if step.kind == kind or not step.text]
    exact_matches = [step for step in candidates if not step.is_prefix and step.text == name]
    prefix_matches = [step for step in candidates if step.is_prefix and name.startswith(step.text)]
    return exact_matches or prefix_matches


def kinds_of(func: JobFunction, name: str) -> Sequence[str]:
    """Return the kinds of the steps that have exactly this name in the module of a task."""
    # None, for a module without a readable source, counts as no steps.
    steps_in_module = _named_steps(inspect.unwrap(func).__module__) or ()
    return sorted({step.kind for step in steps_in_module if not step.is_prefix and step.text == name})


@lru_cache(maxsize=1000)
def _named_steps(module: str) -> Sequence[NamedStep] | None:
    """Return the steps that the source of a module names; None if the source cannot be read."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError, SyntaxError):  # no file, as for __main__ of a console
        return None
    return [*_steps_in(tree, vars(sys.modules[module]))]


def _steps_in(tree: ast.Module, namespace: Mapping[str, Any]) -> Iterator[NamedStep]:
    """Yield the steps of a module, such as ``steps.run("charge", charge)`` and ``Wait("approval")``.

    ``namespace`` are the global variables of the module, in which the functions of steps are looked up.
    """
    aliases = {STEPS_ATTRIBUTE, *_aliases_in(tree)}
    for node in ast.walk(tree):
        match node:
            # A call of a method, such as steps.run("charge", charge).
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in METHODS:
                args = node.args or [keyword.value for keyword in node.keywords if keyword.arg == "name"]
                if not args:
                    continue
                text, is_prefix = _name_in(args[0])
                # Other objects have methods of these names too, as in asyncio.run(main()). So a call counts
                # only if its first argument is a text, or if its object is known to be the steps of a job.
                if not text and not _is_steps(owner, aliases):
                    continue
                # A step without a known text may be any step, also one with another function.
                has_function = bool(text) and method in CALLING and len(args) > 1
                function = args[1] if has_function else None
                # The names of the rows of gather() begin with its name.
                is_prefix = is_prefix or method == "gather"
                yield NamedStep(text, is_prefix, METHODS[method], _returns(function, namespace))
            # An alternative of first(), such as Wait("approval") or pg_scheduler.Wait("approval").
            case ast.Call(func=ast.Name(id=kind) | ast.Attribute(attr=kind), args=[name, *_]) if (
                kind in WAIT_KINDS
            ):
                text, is_prefix = _name_in(name)
                yield NamedStep(text, is_prefix, WAIT_KINDS[kind], None)


def _aliases_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of variables to which the steps of a job are assigned, as in ``s = job.steps``."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_steps(value):
                yield name
            # The same with an annotation, as in ``s: Steps = job.steps``.
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _is_steps(value):
                yield name


def _is_steps(node: ast.expr, aliases: Collection[str] = ()) -> bool:
    """Return whether the value of an expression is the steps of a job, as far as the source shows it.

    It is: a variable of ``aliases``, an attribute ``steps``, or a call of ``current_steps()``.
    """
    match node:
        case ast.Name(id=name):
            return name in aliases
        case ast.Attribute(attr=name):
            return name == STEPS_ATTRIBUTE
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name == "current_steps"
    return False


def _name_in(node: ast.expr) -> tuple[str, bool]:
    """Return the text of an expression, and whether only the start of it is known.

    The text is empty if nothing of it is known.
    """
    match node:
        case ast.Constant(value=str(text)):
            return text, False
        # An f-string that begins with a constant, such as f"page-{number}".
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *others]):
            return text, bool(others)
        # A sum, such as "page-" + number.
        case ast.BinOp(left=left, op=ast.Add()):
            return _name_in(left)[0], True
    return "", True


def _returns(node: ast.expr | None, namespace: Mapping[str, Any]) -> ReturnType | None:
    """Return the return type of the function that an expression names; None if that is unknown."""
    function = None if node is None else value_of(node, namespace)
    if not callable(function):
        return None
    try:
        return ReturnType(function)
    except ConfigurationError:  # the step raises the error itself when it runs
        return None
