"""The options of jobs, and the registered functions, which have defaults of options and check arguments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.base.public import public
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.call_errors import call_error
from pg_scheduler.jobs.deadlines import check_common_deadline, check_deadline
from pg_scheduler.jobs.executors import ASYNC, PROCESS, check_executor, default_executor
from pg_scheduler.jobs.injected import own_signature, wrapped_signature
from pg_scheduler.jobs.keys import KeyFunction
from pg_scheduler.jobs.limits import Limit, LimitNumbers, check_limits, limits_of_every_job
from pg_scheduler.jobs.metadata import check_metadata
from pg_scheduler.jobs.model import (
    DEFAULT_TIMEOUT,
    UNSET,
    AfterOutcome,
    Call,
    JobFunction,
    JobPriority,
    StandIn,
    Unset,
    stand_in_of,
)
from pg_scheduler.jobs.naming import check_name, qualified_name
from pg_scheduler.jobs.payload import encode
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.sequences import Sequence as JobSequence
from pg_scheduler.jobs.sequences import check_sequence, sequence_place
from pg_scheduler.jobs.shares import Share, check_share, share_key
from pg_scheduler.jobs.unique import Unique, Uniqueness, check_unique, check_unique_names
from pg_scheduler.jobs.validation import (
    check_count,
    check_grace,
    check_keep_result,
    check_kind,
    check_timeout,
)

if TYPE_CHECKING:
    from pg_scheduler.jobs import chunks
    from pg_scheduler.jobs import typed as typed_calls
    from pg_scheduler.jobs.chunks import ChunkOptions
else:
    typed_calls = LazyModule("pg_scheduler.jobs.typed")
    chunks = LazyModule("pg_scheduler.jobs.chunks")


class UnfitArgumentsError(TypeError):
    """The function of a job cannot be called with its arguments."""


class JobOption(NamedTuple):
    """An option of jobs.

    Attributes:
        check: Returns a given value in the unit of the rows, or raises a TypeError or ValueError.
        default: The value if neither a call, a schedule nor a task gives one; UNSET for the Scheduler's.
        is_column: Whether rows have a column for it. If not, it is a key of ``options``; None is left out.
    """

    check: Callable[[Any], Any]
    default: Any
    is_column: bool = False


JOB_OPTIONS: Final[Mapping[str, JobOption]] = {
    "priority": JobOption(
        partial(check_kind, "priority", kind=JobPriority), JobPriority.NORMAL, is_column=True
    ),
    "max_retries": JobOption(partial(check_count, "max_retries"), 0, is_column=True),
    "misfire_grace_time": JobOption(check_grace, UNSET, is_column=True),
    "timeout": JobOption(check_timeout, DEFAULT_TIMEOUT.total_seconds(), is_column=True),
    "keep_result": JobOption(check_keep_result, None),
    "deadline": JobOption(check_deadline, None),
}
"""The options by name; tasks and rows of schedules use the same names.

The options with a column are in the order of these columns.
"""


COMMON_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{name: option.check for name, option in JOB_OPTIONS.items()},
    "deadline": check_common_deadline,
}
"""The checks of the options that many jobs share: those of a task or a schedule."""


CODE_OPTIONS: Final = ("share", "sequence", "unique")
"""The options of a task that only its code can apply when a job is enqueued."""


def as_stored(value: Any) -> Any:
    """Return a checked value as rows store it."""
    return value.db_value if isinstance(value, JobPriority) else value


def as_argument(name: str, value: Any) -> Any:
    """Return an option as a call takes it, from the value that a row stores."""
    if name == "priority":
        return JobPriority.from_db_value(value)
    # A row stores seconds, but calls accept nothing but a timedelta for this option.
    if name == "keep_result" and value is not None:
        return timedelta(seconds=value)
    return value


@public
@dataclass(slots=True)
class JobSpec:
    """One job of a call of ``schedule_bulk()``.

    Args:
        func: The function to run, a ``call()`` with the arguments, or a task of Django, whose own options
            are those of the job unless others are given.
        execution_time: The due time, timezone-aware; None for now, by the clock of the database.
        args: Positional arguments that JSON can represent.
        kwargs: Keyword arguments that JSON can represent.
        priority: Due jobs of a higher priority start first. Default: the task's, else NORMAL.
        max_retries: Retries after a failed first attempt. Default: the task's, else 0.
        job_id: Your own id; None to generate one.
        misfire_grace_time: Seconds after ``execution_time`` within which the job may start; None for no
            limit. Default: the task's, else the Scheduler's; without ``execution_time`` no limit.
        timeout: Time limit of one attempt, in seconds or as a timedelta; None for no limit. Default: the
            task's, else one hour.
        keep_result: How long the result is kept after the end of the job; None to keep none. Default: the
            task's, else none.
        deadline: When the job must have ended: a timezone-aware instant, or a time from its due time in
            seconds or as a timedelta; None for no deadline. Default: the task's, else none.
        metadata: A JSON object for people and filters, merged into that of the task.
        after: Ids of jobs that must end before the job may start, as in ``schedule()``.
        after_outcome: ``"completed"`` or ``"ended"``, as in ``schedule()``.
        pass_results: Whether the job reads the results of the jobs in ``after``, as in ``schedule()``.
        unique: A key or a ``Unique()``, as in ``schedule()``. Default: the task's, else not unique.

    Raises:
        TypeError: ``func`` is a ``call()``, and ``args`` or ``kwargs`` are given too.

    A ``call()`` is taken apart: ``func``, ``args`` and ``kwargs`` become those of the call. The options read
    UNSET until they are given; the defaults apply when the job is inserted.

    Example:
        >>> from datetime import UTC, datetime
        >>> from pg_scheduler import JobSpec
        >>> async def send(to: str) -> None: ...
        >>> JobSpec(send, datetime(2030, 1, 1, tzinfo=UTC), args=("ada@example.org",)).max_retries
        UNSET
    """

    func: JobFunction | Call[Any]
    execution_time: datetime | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    priority: JobPriority | Unset = UNSET
    max_retries: int | Unset = UNSET
    job_id: str | None = None
    misfire_grace_time: int | Unset | None = UNSET
    timeout: float | timedelta | Unset | None = field(default=UNSET, kw_only=True)
    keep_result: timedelta | Unset | None = field(default=UNSET, kw_only=True)
    deadline: datetime | float | timedelta | Unset | None = field(default=UNSET, kw_only=True)
    metadata: Mapping[str, Any] | None = field(default=None, kw_only=True)
    after: Iterable[str | None] = field(default=(), kw_only=True)
    after_outcome: AfterOutcome = field(default="completed", kw_only=True)
    pass_results: bool = field(default=False, kw_only=True)
    unique: Unique | str | Unset | None = field(default=UNSET, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.func, Call):
            if self.args or self.kwargs:
                raise TypeError("a call() has its arguments; pass no args= and kwargs= with it")
            call = self.func
            self.func, self.args, self.kwargs = call.func, call.args, dict(call.kwargs)
        # Most jobs have a function here, which stands for no other task. So its class is looked at first.
        if not isinstance(self.func, FunctionType) and (stand_in := stand_in_of(self.func)) is not None:
            self._take_over(stand_in)

    def _take_over(self, stand_in: StandIn) -> None:
        """Take the name and options of an object that stands for a task. Options that were given are kept."""
        self.func = stand_in.name  # type: ignore[assignment] # a name, which is registered
        for name, value in stand_in.options.items():
            if name == "metadata":
                self.metadata = {**value, **(self.metadata or {})}
                continue
            # An id that was not given is None. All other options of a stand-in are UNSET then.
            omitted: object = None if name == "job_id" else UNSET
            if getattr(self, name) is omitted:
                setattr(self, name, value)


def have_common_options(spec: JobSpec, other: JobSpec) -> bool:
    """Return whether two jobs have the same objects as function and options, so that one check is enough.

    Identity is compared because that is fast. If equal options are different objects, they are checked again.
    """
    return (
        spec.func is other.func
        and spec.priority is other.priority
        and spec.max_retries is other.max_retries
        and spec.misfire_grace_time is other.misfire_grace_time
        and spec.timeout is other.timeout
        and spec.keep_result is other.keep_result
        and spec.deadline is other.deadline
    )


def check_schedulable(task: Task | None) -> None:
    """Raise ConfigurationError if calls of a task are debounced, so that it has no use for fire times.

    A task that is not registered in this process is None, and accepted.
    """
    if task is not None and isinstance(task.unique, Unique) and task.unique.debounce is not None:
        raise ConfigurationError(
            f"task {task.name!r} cannot have a schedule: its unique has debounce=, by which calls postpone a "
            "job, but a fire time is fixed; declare a task of another name without debounce= for the schedule"
        )


MAX_SHAPES: Final = 100
"""Combinations of names that are remembered for one function."""


class Arity:
    """The arguments that a function accepts. Its signature decides; nothing is called.

    Attributes:
        counts: The numbers of positional arguments that are accepted without keyword arguments.
        accepted: The numbers of positional arguments that were accepted together with keyword arguments, by
            the names of the keyword arguments.
        last_call: The names of the keyword arguments of the last call that was accepted, and the number of
            its positional arguments. Comparing this list is cheaper than a lookup in ``accepted``.
        signature: The signature without injected parameters; None if the function has none that can be read.
        naming_signature: The signature that gives arguments their names. If the wrapper of a decorator
            accepts anything, it is the signature of the function below, else it is ``signature``.
    """

    __slots__ = ("_name", "accepted", "counts", "last_call", "naming_signature", "signature")

    def __init__(self, func: JobFunction) -> None:
        self._name = func.__qualname__
        self.accepted: Final[dict[tuple[str, ...], set[int]]] = {}
        self.last_call: tuple[list[str], int] = ([], 0)
        self.signature: inspect.Signature | None
        try:
            self.signature = own_signature(func)
        # A ConfigurationError is a ValueError too, but about an injected parameter that has to be corrected.
        except ConfigurationError:
            raise
        except (TypeError, ValueError):
            # A decorator may give a function a ``__signature__`` that is no signature.
            self.signature = None
        self.naming_signature = None if self.signature is None else wrapped_signature(func, self.signature)
        self.counts: Final = _counts(self.signature)

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> None:
        """Raise TypeError unless the function accepts the arguments.

        The number of positional and the names of keyword arguments are remembered as accepted.
        """
        named = kwargs or {}
        try:
            if self.signature is not None:
                self.signature.bind(*args, **named)
        except TypeError as error:  # its text has names only, no values
            raise call_error(
                UnfitArgumentsError,
                f"{self._name}() cannot be called with the arguments of the job: {error}",
                "arguments",
                "pass args= and kwargs= that fit its signature",
            ) from None
        # A function with ``**kwargs`` may be called with ever new names, so the memory is bounded.
        if len(self.accepted) < MAX_SHAPES:
            self.accepted.setdefault(tuple(named), set()).add(len(args))


def _counts(signature: inspect.Signature | None) -> range:
    """Return the numbers of positional arguments that are accepted without keyword arguments.

    The range is empty if a keyword argument is required, and unlimited if the signature is unknown.
    """
    if signature is None:
        return range(sys.maxsize)
    # How many positional arguments are required, and how many are accepted.
    minimum = maximum = 0
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            # The range below ends after this number, and sys.maxsize is its largest end.
            maximum = sys.maxsize - 1
        elif parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                return range(0)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            maximum += 1
            if parameter.default is parameter.empty:
                minimum += 1
    return range(minimum, maximum + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of ``@job()`` and ``register()`` as given; see there."""

    timeout: float | timedelta | Unset | None = UNSET
    misfire_grace_time: int | Unset | None = UNSET
    max_retries: int | Unset = UNSET
    retry: RetryPolicy | None = None
    priority: JobPriority | Unset = UNSET
    executor: str | Unset = UNSET
    keep_result: timedelta | Unset | None = UNSET
    deadline: float | timedelta | Unset | None = UNSET
    metadata: Mapping[str, Any] | None = None
    typed: bool | Unset = UNSET
    limits: tuple[Limit, ...] = ()
    share: Share | None = None
    sequence: JobSequence | KeyFunction | None = None
    unique: Uniqueness | Unset | None = UNSET
    on_failure: str | None = None
    on_cancel: str | None = None
    version: int | Unset = UNSET
    chunk: int | None = None
    chunk_wait: float | timedelta | Unset = UNSET
    chunk_by: KeyFunction | None = None


NO_OPTIONS: Final = TaskOptions()


@dataclass(frozen=True, slots=True)
class Task:
    """A registered function with the defaults of its jobs.

    Attributes:
        timeout: Seconds; None for no limit.
        misfire_grace_time: Seconds; None for no limit, UNSET for the Scheduler's.
        declares_retries: Whether code has chosen ``max_retries``, which may be 0 too.
        retry: The delays before retries; None for the Scheduler's policy.
        executor: The name of the executor.
        keep_result: Seconds for which results are kept; None if they are not kept.
        deadline: Seconds from the due time of a job within which it must have ended; None for no deadline.
        metadata: Merged into that of its jobs.
        typed: Validates its arguments; None unless it is typed.
        limits: How many attempts may run or start; none for no limit.
        share: The share whose tenants take turns; None for no tenants.
        sequence: The sequence in which its jobs run one after the other; None for none.
        unique: Which of its jobs exclude one another; None for none.
        on_failure: The task that is enqueued when a job fails; None for none.
        on_cancel: The task that is enqueued when a job that has begun is cancelled; None for none.
        version: The version of its durable steps.
        chunk: How its jobs are gathered for one call of the function; None for a call for each.
        arity: The arguments that the function accepts.
        common_limits: What `limits_of_job()` returns for each of its jobs; None if that depends on arguments.
    """

    func: JobFunction
    name: str
    timeout: float | None = field(default=JOB_OPTIONS["timeout"].default, kw_only=True)
    misfire_grace_time: int | Unset | None = field(
        default=JOB_OPTIONS["misfire_grace_time"].default, kw_only=True
    )
    max_retries: int = field(default=JOB_OPTIONS["max_retries"].default, kw_only=True)
    declares_retries: bool = field(default=False, compare=False, kw_only=True)
    retry: RetryPolicy | None = field(default=None, kw_only=True)
    priority: JobPriority = field(default=JOB_OPTIONS["priority"].default, kw_only=True)
    executor: str = field(default=ASYNC, kw_only=True)
    keep_result: float | None = field(default=JOB_OPTIONS["keep_result"].default, kw_only=True)
    deadline: float | None = field(default=JOB_OPTIONS["deadline"].default, kw_only=True)
    metadata: Mapping[str, Any] = field(default_factory=dict, kw_only=True, compare=False)
    typed: typed_calls.TypedArguments | None = field(default=None, repr=False, compare=False, kw_only=True)
    limits: tuple[Limit, ...] = field(default=(), kw_only=True)
    share: Share | None = field(default=None, kw_only=True)
    sequence: JobSequence | None = field(default=None, kw_only=True)
    unique: Uniqueness | None = field(default=None, kw_only=True)
    on_failure: str | None = field(default=None, kw_only=True)
    on_cancel: str | None = field(default=None, kw_only=True)
    version: int = field(default=1, kw_only=True)
    chunk: ChunkOptions | None = field(default=None, kw_only=True)
    arity: Arity = field(init=False, repr=False, compare=False)
    common_limits: Sequence[tuple[str, LimitNumbers]] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arity", Arity(self._function_of_arguments()))
        object.__setattr__(self, "common_limits", limits_of_every_job(self.limits, self.name))
        check_unique_names(self.unique, self.arity.signature, self.func.__qualname__)
        if self.share is not None and self.sequence is not None:
            raise ConfigurationError(
                f"task {self.name!r} has a share and a sequence, which order its jobs twice; remove one "
                "of them"
            )
        if self.chunk is not None:
            self._check_chunk()

    def _check_chunk(self) -> None:
        """Raise ConfigurationError if another option excludes chunks."""
        if self.sequence is not None:
            raise ConfigurationError(
                f"task {self.name!r} has a sequence, so its jobs run one after the other, and chunk=, so "
                "many run together; remove one of them"
            )
        if self.executor == PROCESS:
            raise ConfigurationError(
                f"task {self.name!r} has chunk=, whose function gives each job its outcome, so it cannot run "
                "in a process; omit executor= to run it in a thread, or in the event loop if it is async"
            )

    def _function_of_arguments(self) -> JobFunction:
        """Return the function whose signature the arguments of a job have to fit."""
        return self.func if self.chunk is None else chunks.item_function(self.func)

    @property
    def identity(self) -> str:
        """What identifies the function: its qualified name, which stays when its module is loaded again."""
        return qualified_name(self.func)

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> str:
        """Return the arguments of a job as the text of the ``task_data`` column.

        Raises:
            TypeError: The function cannot be called with them.
            PayloadError: JSON cannot represent a value, or it does not fit a typed function; a TypeError
                and a ValueError.
        """
        if self.typed is not None:
            return self.typed.encode(args, kwargs)
        task_data = encode(args, kwargs)
        # Most calls repeat a number and names of arguments that were accepted before. Looking these up costs
        # less than a call of check(), which binds the arguments to the signature.
        arity, count = self.arity, len(args)
        if not kwargs:
            if count not in arity.counts:
                arity.check(args, kwargs)
            return task_data
        names = [*kwargs]
        if (names, count) != arity.last_call:
            if count not in arity.accepted.get(tuple(names), ()):
                arity.check(args, kwargs)
            arity.last_call = names, count
        return task_data

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise unless the function accepts arguments as a row has them. The function itself is not called.

        Raises:
            TypeError: The function cannot be called with them.
            PayloadError: They do not fit a typed function; a TypeError and a ValueError.
            ConfigurationError: pydantic does not support an annotation.
        """
        if self.typed is not None:
            self.typed.check(args, kwargs)
            return
        arity, count = self.arity, len(args)
        fits_by_count = not kwargs and count in arity.counts
        # The names and the number of the arguments may have been accepted before.
        if not fits_by_count and count not in arity.accepted.get(tuple(kwargs), ()):
            arity.check(args, kwargs)

    def form_of_result(self, value: object) -> object:
        """Return what an attempt returned in the form in which it is stored; see ``TypedArguments``."""
        return value if self.typed is None else self.typed.form_of_result(value)

    def result_from(self, plain: object) -> object:
        """Return the result of a job as its function returned it, from its form as JSON.

        It stays as JSON carries it, unless the task is typed; see ``TypedArguments``.
        """
        return plain if self.typed is None else self.typed.result_from(plain)

    def share_key(self, arguments: str | None) -> str | None:
        """Return the text ``share:<name>:<tenant>`` of a job; None without a share or without its arguments.

        Args:
            arguments: The arguments of the job as JSON, not encoded by a codec; None if they are unknown.

        Raises:
            KeyFunctionError: The key function raised, or returned something else than a short str or int.
        """
        if self.share is None or arguments is None:
            return None
        return share_key(self.share, self.name, arguments)

    def sequence_place(self, arguments: str | None) -> Mapping[str, Any] | None:
        """Return the place of a job in its sequence; None without a sequence or without its arguments.

        Args:
            arguments: The arguments of the job as JSON, not encoded by a codec; None if they are unknown.

        Raises:
            KeyFunctionError: The key function raised, or returned something else than a short str or int.
        """
        if self.sequence is None or arguments is None:
            return None
        return sequence_place(self.sequence, self.name, arguments)

    def changed(self, func: JobFunction, name: str, options: TaskOptions) -> Task:
        """Return the task with another function and name, and with the options that were given.

        Raises:
            TypeError: An option has the wrong type.
            ConfigurationError: An option is out of range, or ``unique`` names an unknown argument.
            PayloadError: JSON cannot represent the metadata.
        """
        # An option was given unless it has the default of ``TaskOptions``, which is UNSET or the like.
        given_options: dict[str, Any] = {}
        for option in fields(options):
            value = getattr(options, option.name)
            if value is not option.default:
                given_options[option.name] = value
        changes: dict[str, Any] = {}
        for name_of_option, check in _CHECKS.items():
            if name_of_option in given_options:
                changes[name_of_option] = check(given_options[name_of_option])
        if "max_retries" in given_options:
            changes["declares_retries"] = True
        if "executor" in given_options:
            executor = check_executor(func, given_options["executor"])
        else:
            executor = self._executor_of(func)
        chunk = self._chunk_of(options)
        typed = self._typed_of(func, options.typed, has_chunk=chunk is not None)
        return replace(self, func=func, name=name, executor=executor, typed=typed, chunk=chunk, **changes)

    def _chunk_of(self, options: TaskOptions) -> ChunkOptions | None:
        """Return the options of chunks; None if the function is called for single jobs."""
        given_options = (self.chunk, options.chunk, options.chunk_by)
        if options.chunk_wait is UNSET and all(option is None for option in given_options):
            return None
        return chunks.check_chunk_options(self.chunk, options.chunk, options.chunk_wait, options.chunk_by)

    def _typed_of(
        self, func: JobFunction, typed: bool | Unset, *, has_chunk: bool
    ) -> typed_calls.TypedArguments | None:
        """Return the validator for the arguments of a function; None if they are not validated.

        Args:
            func: The function.
            typed: Whether they are; UNSET for what applies to the present function of the task.
            has_chunk: Whether the function is called with a chunk of jobs.
        """
        # The function of a chunk gives each job its result, so what it returns is none.
        called_for_one = chunks.item_function(func) if has_chunk else func
        is_typed = self.typed is not None if isinstance(typed, Unset) else check_kind("typed", typed, bool)
        return typed_calls.TypedArguments(called_for_one, returns_result=not has_chunk) if is_typed else None

    def _executor_of(self, func: JobFunction) -> str:
        """Return the executor for a function that replaces the one of the task, as after a reload.

        If the task has the default executor of its function, it gets that of the new one, which may be async
        where the old one was plain.
        """
        is_default = self.executor == default_executor(self.func)
        return default_executor(func) if is_default else self.executor


_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **COMMON_CHECKS,
    "retry": partial(check_kind, "retry", kind=RetryPolicy),
    "metadata": check_metadata,
    "limits": check_limits,
    "share": check_share,
    "sequence": check_sequence,
    "unique": check_unique,
    "on_failure": check_name,
    "on_cancel": check_name,
    "version": partial(check_count, "version", least=1),
}
"""The checks of the options of tasks, except for those that depend on the function."""
