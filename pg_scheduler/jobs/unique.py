"""Unique jobs: at most one unfinished job has a given key, or one row has the id of a time span.

A key is a text of the caller, or consists of the name of the task and a digest of arguments. Arguments are
compared as JSON carries them, by the names of the parameters. So it does not matter whether an argument is
positional or a keyword argument.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pg_scheduler.base.foreign import is_ctrl_c
from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.base.public import public
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.call_errors import call_error
from pg_scheduler.jobs.payload import decode
from pg_scheduler.jobs.rows import Debouncing
from pg_scheduler.jobs.validation import check_seconds, check_text

if TYPE_CHECKING:
    from pg_scheduler.jobs import values as typed_values
else:
    typed_values = LazyModule("pg_scheduler.jobs.values")


MAX_KEY_BYTES: Final = 200
MAX_NAME_LENGTH: Final = 200
"""Characters of the task's name in a key. The digest covers the whole name."""

UNIQUE_PREFIX: Final = "unique:"
"""The begin of the keys that follow from arguments, and of the ids of jobs of time spans."""

MIN_PER: Final = timedelta(seconds=1)
MAX_PER: Final = timedelta(days=366)

MIN_DEBOUNCE: Final = timedelta(milliseconds=1)
MAX_DEBOUNCE: Final = timedelta(days=366)
"""The longest ``debounce`` and the longest ``max_wait``."""

OTHER_NAMES: Final = "**"
"""The key of the arguments that ``**kwargs`` of the function collects. No parameter has this name."""


@public
@dataclass(frozen=True, slots=True)
class Unique:
    """At most one unfinished job of a task with the same arguments, or at most one in a time span.

    Arguments are equal if their JSON is equal; that of a model has only the fields that were set. It does not
    matter whether they are positional or keyword arguments. An omitted argument counts as its default, if
    JSON can represent that.

    Args:
        args: The names of the parameters that are compared, as a tuple; True for all. An empty tuple means
            one job of the task, whatever its arguments. Below a decorator whose wrapper accepts any
            arguments, they are the names of the function that it wraps. If the wrapper passes arguments
            before those of the job, pass the named ones by their names: ``kwargs={"user": 7}``.
        per: Counts finished jobs too: at most one job whose ``execution_time`` is in the same span of this
            length, 1 second to 366 days. The spans are counted from 1970-01-01 in UTC, so an hour begins at
            a full hour, and a day at midnight UTC. The id of the job is derived from its span, and
            ``job_id=`` is not accepted. The job counts as long as its row exists. None for unfinished jobs
            only, at any time.
        debounce: Wait until the calls have stopped: a job is due this long after the call, 1 ms to 366 days,
            in seconds or as a timedelta. While it waits, each further call with the key gives it the options
            and arguments of that call, and makes it due this long after that call. Such a job gets no due
            time, ``delay=`` or ``job_id=``, and the call replaces without ``conflict_resolution=``. None for
            no debounce.
        max_wait: The longest time from the first call to the due time, however often further calls postpone
            it: at least ``debounce`` and at most 366 days, in seconds or as a timedelta. The time begins
            again with the first call after the job has started. None for no limit.

    Raises:
        TypeError: A value has the wrong type.
        ConfigurationError: A time span is out of range, ``debounce`` is combined with ``per``, or
            ``max_wait`` is given without ``debounce``; a ValueError.

    ``debounce`` and ``max_wait`` are timedeltas afterwards.

    Example:
        >>> from datetime import timedelta
        >>> from pg_scheduler import Unique, job
        >>> @job(unique=Unique(args=("user_id",)))
        ... async def sync_user(user_id: int, reason: str) -> None: ...
        >>> @job(unique=Unique(per=timedelta(days=1)))
        ... async def send_digest(user_id: int) -> None: ...
        >>> @job(unique=Unique(args=("document",), debounce=30, max_wait=300))
        ... async def index_document(document: int, version: int) -> None: ...
    """

    args: Literal[True] | tuple[str, ...] = True
    per: timedelta | None = None
    debounce: float | timedelta | None = field(default=None, kw_only=True)
    max_wait: float | timedelta | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        names: object = self.args
        if isinstance(names, str):
            raise TypeError(f"args must be True or a tuple of names, not a str; pass ({names!r},)")
        if names is not True:
            if not isinstance(names, Iterable):
                raise TypeError(f"args must be True or a tuple of names, not {names!r}")
            argument_names: tuple[Any, ...] = tuple(names)
            for name in argument_names:
                check_text("a name in args", name)
            object.__setattr__(self, "args", argument_names)
        if self.per is not None:
            if not isinstance(self.per, timedelta):
                raise TypeError(f"per must be a timedelta or None, not {self.per!r}; pass timedelta(hours=1)")
            if not MIN_PER <= self.per <= MAX_PER:
                raise ConfigurationError(f"per must be 1 second to 366 days, not {self.per!r}")
        self._check_debounce()

    def _check_debounce(self) -> None:
        """Check ``debounce`` and ``max_wait``, and turn seconds into timedeltas."""
        if self.debounce is None:
            if self.max_wait is not None:
                raise ConfigurationError(
                    f"max_wait is {self.max_wait!r}, but calls postpone no job without debounce=; "
                    "pass debounce=30 too, or omit max_wait="
                )
            return
        debounce = _check_span("debounce", self.debounce, MIN_DEBOUNCE, "1 ms")
        object.__setattr__(self, "debounce", debounce)
        if self.per is not None:
            raise ConfigurationError(
                "debounce waits until calls have stopped, and per allows one job in a time span; "
                "omit one of them"
            )
        if self.max_wait is not None:
            max_wait = _check_span("max_wait", self.max_wait, debounce, f"debounce ({debounce!r})")
            object.__setattr__(self, "max_wait", max_wait)

    @property
    def debouncing(self) -> Debouncing | None:
        """How calls postpone a waiting job; None if they do not."""
        if not isinstance(self.debounce, timedelta):
            return None
        return Debouncing(self.debounce, self.max_wait if isinstance(self.max_wait, timedelta) else None)


def _check_span(name: str, value: object, minimum: timedelta, minimum_text: str) -> timedelta:
    """Return a length of time that is given in seconds or as a timedelta."""
    seconds = check_seconds(name, value, "seconds, a timedelta or None")
    # Any comparison with NaN is False.
    if not minimum.total_seconds() <= seconds <= MAX_DEBOUNCE.total_seconds():
        raise ConfigurationError(f"{name} must be {minimum_text} to 366 days, not {value!r}")
    return timedelta(seconds=seconds)


Uniqueness: TypeAlias = Unique | str
"""A rule, or an explicit key."""


def check_unique(value: object) -> Uniqueness | None:
    """Return a rule or an explicit key; None for a job that is not unique.

    Raises:
        TypeError: It is something else.
        ValueError: It is a text that cannot be a key.
    """
    if value is None or isinstance(value, Unique):
        return value
    if not isinstance(value, str):
        raise TypeError(f"unique must be a str, a Unique() or None, not {value!r}; pass Unique()")
    size = len(check_text("unique", value).encode())
    if not 1 <= size <= MAX_KEY_BYTES:
        raise ValueError(f"unique must have 1 to {MAX_KEY_BYTES} bytes of UTF-8, not {size}")
    return value


def check_unique_names(unique: Uniqueness | None, signature: inspect.Signature | None, function: str) -> None:
    """Raise ConfigurationError if a rule names a parameter that the function lacks.

    An explicit key, and a rule about all arguments, name none.
    """
    if not isinstance(unique, Unique) or unique.args is True or signature is None:
        return
    parameters = signature.parameters
    # A function with ``**kwargs`` may get an argument of any name.
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in unique.args:
        if name not in parameters:
            parameter_names = ", ".join(map(repr, parameters)) or "none"
            raise ConfigurationError(
                f"unique names the argument {name!r}, which {function}() lacks; its parameters are: "
                f"{parameter_names}"
            )


def json_form(_name: str, default: Any) -> Any:
    """Return the default of a parameter as JSON carries it; raise TypeError or ValueError if it cannot."""
    return json.loads(json.dumps(default))


def unique_text(
    rule: Unique,
    task: str,
    signature: inspect.Signature | None,
    task_data: str,
    form_of_default: Callable[[str, Any], Any] = json_form,
) -> str:
    """Return the key of a job; with ``per``, the text with which the ids of its time spans begin.

    Args:
        rule: The rule.
        task: The name of the task.
        signature: The signature that gives the arguments their names; None if it cannot be read.
        task_data: The arguments of the job as in its row, not encoded by a codec.
        form_of_default: Returns the form in which JSON carries the default of a parameter, which it gets by
            name; it raises an error for a default that JSON cannot carry.

    Raises:
        ConfigurationError: The job lacks an argument that the rule names, and the function has no default for
            it. Without it, jobs of all values would have one key.
    """
    args, kwargs = decode(task_data)
    values = _arguments_by_name(signature, args, kwargs, form_of_default)
    if rule.args is not True:
        # A rule may also name an argument that ``**kwargs`` of the function collects. A parameter of the same
        # name takes precedence.
        arguments = {**values.get(OTHER_NAMES, {}), **values}
        for name in rule.args:
            if name not in arguments and not _may_be_omitted(signature, name):
                raise call_error(
                    ConfigurationError,
                    f"unique names the argument {name!r}, which this job of {task!r} lacks",
                    "named argument",
                    f"pass it by its name, as in kwargs={{{name!r}: ...}}",
                )
        # An argument may be missing here if its default is no JSON.
        values = {name: arguments[name] for name in rule.args if name in arguments}
    per_s = None if rule.per is None else rule.per.total_seconds()
    # Values that the database returns as the same one are the same arguments, such as -0.0 and 0.0.
    returned_values = json.loads(typed_values.as_returned(json.dumps(values)))
    text = json.dumps([task, per_s, returned_values], sort_keys=True, separators=(",", ":"))
    digest = sha256(text.encode()).hexdigest()[:32]
    return f"{UNIQUE_PREFIX}{task[:MAX_NAME_LENGTH]}:{digest}"


def _may_be_omitted(signature: inspect.Signature | None, name: str) -> bool:
    """Return whether a job may lack an argument of this name, because the function does not require it."""
    parameter = None if signature is None else signature.parameters.get(name)
    if parameter is None:
        return False
    is_variadic = parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    return is_variadic or parameter.default is not parameter.empty


def _arguments_by_name(
    signature: inspect.Signature | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    form_of_default: Callable[[str, Any], Any],
) -> dict[str, Any]:
    """Return arguments by the names of their parameters, with the defaults that JSON can represent.

    The positional arguments that ``*args`` of the function collects are under the name of this parameter, and
    keyword arguments for ``**kwargs`` under ``OTHER_NAMES``.
    """
    parameters = () if signature is None else tuple(signature.parameters.values())
    positional_names = [
        parameter.name
        for parameter in parameters
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    # One list may be longer: parameters may have defaults, and ``*args`` may collect further arguments.
    values: dict[str, Any] = dict(zip(positional_names, args, strict=False))
    collected_args = list(args[len(positional_names) :])
    if collected_args:
        # The parameter that collects them has no name if the signature is unknown.
        variadic = (parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL)
        values[next(variadic, "*")] = collected_args
    keyword_names = {
        parameter.name
        for parameter in parameters
        if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
    }
    values |= {name: value for name, value in kwargs.items() if name in keyword_names}
    for parameter in parameters:
        if parameter.name not in values and parameter.default is not parameter.empty:
            try:
                # The default is compared in the form in which JSON carries it, as arguments are.
                values[parameter.name] = form_of_default(parameter.name, parameter.default)
            except BaseException as error:
                # The default may be any object. If JSON cannot represent it, the argument is left out.
                if is_ctrl_c(error):
                    raise
    other_arguments = {name: value for name, value in kwargs.items() if name not in keyword_names}
    if other_arguments:
        values[OTHER_NAMES] = other_arguments
    return values
