"""The declaration of tasks whose function is called with a chunk of jobs: ``@job(chunk=100)``.

A job of such a task has one argument, its item. The function has one parameter, ``chunk: Chunk[T]``, and so
cannot be called with that argument. ``item_function()`` returns a function that can: its signature is that of
a call for one job, with a parameter ``item: T``. It stands for the function wherever the arguments of a job
are checked, and is never called. ``worker/chunks.py`` gathers the jobs.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, NoReturn, get_args, get_origin

from pg_scheduler.base.annotations import UNDECLARED, signature_of, text_of
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.chunk import Chunk
from pg_scheduler.jobs.injected import own_signature, value_of, wrapped_signature
from pg_scheduler.jobs.keys import KeyFunction, KeyFunctionError, check_key_function, key_value
from pg_scheduler.jobs.model import UNSET, JobFunction, Unset
from pg_scheduler.jobs.validation import check_count, check_seconds

MAX_SIZE: Final = 10_000
"""The maximum number of jobs of a chunk, whose arguments are in memory at once."""

DEFAULT_WAIT_S: Final = 1.0

MAX_WAIT_S: Final = 3600.0
"""The longest time for which claimed jobs may wait for others."""

ITEM: Final = "item"
"""The name of the argument of a job of a chunk."""

EXAMPLE: Final = "write def index(chunk: Chunk[Document]) -> None"


class ChunkKeyError(KeyFunctionError):
    """The function of ``chunk_by=`` raised, or returned a value that is not a valid key."""


@dataclass(frozen=True, slots=True)
class ChunkOptions:
    """How the jobs of a task are gathered into chunks."""

    size: int
    """The maximum number of jobs of a chunk."""
    wait_s: float = DEFAULT_WAIT_S
    """Seconds for which the first job of a chunk waits for others; 0 for those that are claimed with it."""
    by: KeyFunction | None = None
    """Returns the key of a job from its item: a chunk has jobs of one key only. None for one key."""

    def key_of(self, item: object, task_name: str) -> str | int:
        """Return the key of a job; an empty text without a function. A number and its text are two keys.

        Raises:
            ChunkKeyError: The function raised, or returned something else than a short str or int.
        """
        if self.by is None:
            return ""
        return key_value(self.by, f"chunks of {task_name!r}", (item,), {}, error=ChunkKeyError)


def check_chunk_options(
    previous: ChunkOptions | None,
    size: int | None,
    wait: float | timedelta | Unset,
    by: KeyFunction | None,
) -> ChunkOptions | None:
    """Return the options of chunks of a task; None if its function is called for single jobs.

    Args:
        previous: Those that the task has, if it was registered before; None for none.
        size: ``chunk=``; None if it was not given.
        wait: ``chunk_wait=``; UNSET if it was not given.
        by: ``chunk_by=``; None if it was not given.

    Raises:
        TypeError: A value has the wrong type.
        ConfigurationError: A number is out of range, or ``chunk=`` is missing; a ValueError.
    """
    if size is not None:
        size = check_count("chunk", size, least=1, most=MAX_SIZE)
    wait_s = None if wait is UNSET else _check_wait(wait)
    if by is not None:
        check_key_function(by, "document", name="chunk_by")
    if size is None and previous is None:
        if wait_s is not None or by is not None:
            option = "chunk_by" if wait_s is None else "chunk_wait"
            raise ConfigurationError(
                f"{option}= has no effect without chunk=, the number of jobs of a call; pass chunk=100 too, "
                f"or omit {option}="
            )
        return None
    previous = previous or ChunkOptions(1)
    return ChunkOptions(
        size=previous.size if size is None else size,
        wait_s=previous.wait_s if wait_s is None else wait_s,
        by=previous.by if by is None else by,
    )


def _check_wait(wait: object) -> float:
    """Return the time for which the first job of a chunk waits, in seconds."""
    seconds = check_seconds("chunk_wait", wait, "seconds or a timedelta")
    # Any comparison with NaN is False.
    if not 0 <= seconds <= MAX_WAIT_S:
        text = seconds if math.isfinite(seconds) else f"{seconds}"
        raise ConfigurationError(
            f"chunk_wait must be between 0 and {MAX_WAIT_S:g} seconds, not {text}; pass 0 to wait for no job"
        )
    return float(seconds)


def item_function(func: JobFunction) -> JobFunction:
    """Return a function with the signature of a call for one job: its parameter is ``item: T``.

    Raises:
        ConfigurationError: The function does not have one parameter for a chunk, or returns a value.
    """
    name = func.__qualname__
    try:
        signature = own_signature(func)
    except ConfigurationError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{name}() has chunk=, but its signature cannot be read: {error}; {EXAMPLE}"
        ) from error
    if len(signature.parameters) < len(signature_of(func, follow_wrapped=False).parameters):
        raise ConfigurationError(
            f"{name}() has chunk= and an Injected parameter, which middleware would pass for each job, but "
            "the function is called once for many; use job_state() or chunk.scheduler.state instead"
        )
    # The wrapper of a decorator may accept anything. The function below it shows the type of the items.
    signature = wrapped_signature(func, signature)
    parameters = list(signature.parameters.values())
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) != 1 or parameters[0].kind not in by_position:
        names = ", ".join(str(parameter) for parameter in parameters) or "none"
        raise ConfigurationError(
            f"the function of a task with chunk= has one parameter, the chunk, but those of {name}() are: "
            f"{names}; {EXAMPLE}"
        )
    returned = signature.return_annotation
    if returned not in (UNDECLARED, None) and text_of(returned) != "None":
        raise ConfigurationError(
            f"{name}() is called for many jobs, so what it returns belongs to none of them; annotate it with "
            "-> None, and call chunk.complete(job, value) for the value of a job"
        )
    annotation = _item_annotation(parameters[0], func)

    def call(item: Any) -> None:
        """Stand for a call for one job."""

    call.__module__, call.__name__, call.__qualname__ = func.__module__, func.__name__, name
    # Annotations are evaluated in the namespace of the function that is wrapped.
    call.__wrapped__ = func  # type: ignore[attr-defined]
    item = inspect.Parameter(ITEM, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
    call.__signature__ = inspect.Signature([item])  # type: ignore[attr-defined]
    call.__annotations__ = {} if annotation is UNDECLARED else {ITEM: annotation}
    return call


def _item_annotation(parameter: inspect.Parameter, func: JobFunction) -> Any:
    """Return T of ``chunk: Chunk[T]``, as a text if the annotation is one; UNDECLARED without a T."""
    annotation = parameter.annotation
    if annotation is UNDECLARED or annotation is Chunk:
        return UNDECLARED
    text = text_of(annotation)
    if text is None:
        # Annotated[Chunk[T], ...] has the metadata for another library.
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            if annotation is Chunk:
                return UNDECLARED
        if get_origin(annotation) is not Chunk:
            _refuse_annotation(parameter, func)
        return get_args(annotation)[0]
    # The text is parsed and not evaluated, because names in T may be undefined yet.
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        _refuse_annotation(parameter, func)
    namespace: Mapping[str, Any] = getattr(inspect.unwrap(func), "__globals__", {})
    if isinstance(node, ast.Subscript) and value_of(node.value, namespace) is Annotated:
        node = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
    is_generic = isinstance(node, ast.Subscript)
    if not _is_chunk(node.value if isinstance(node, ast.Subscript) else node, namespace):
        _refuse_annotation(parameter, func)
    return ast.unparse(node.slice) if is_generic and isinstance(node, ast.Subscript) else UNDECLARED


def _is_chunk(node: ast.expr, namespace: Mapping[str, Any]) -> bool:
    """Return whether an expression is the class `Chunk`, also if it is imported for type checkers only."""
    value = value_of(node, namespace)
    if value is not None:
        return value is Chunk
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == Chunk.__name__
    return False


def _refuse_annotation(parameter: inspect.Parameter, func: JobFunction) -> NoReturn:
    """Raise the error about a parameter that is annotated with another type than `Chunk`."""
    raise ConfigurationError(
        f"the function of a task with chunk= receives a Chunk, but the parameter of {func.__qualname__}() is "
        f"{str(parameter)!r}; {EXAMPLE}"
    )
