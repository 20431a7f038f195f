"""Recognise services that share a database and names of tasks: each runs jobs of the other by its own code.

A worker reports a fingerprint of the code of each task when it registers, so jobs themselves cost nothing.
Two live workers that have one name with different code are two services, or two releases of one service.
Releases of one service have most of their names in common; different services have few.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable
from functools import lru_cache
from types import CodeType
from typing import Final, NamedTuple

from pg_scheduler.jobs.task import Task
from pg_scheduler.jobs.worker_report import ReportedSettings

MAX_TASKS: Final = 1000
"""Tasks of which a worker reports fingerprints."""

FINGERPRINT_BYTES: Final = 4

COMPILER: Final = sys.implementation.cache_tag or ""
"""The interpreter: the code of one function differs between its versions."""


class SharedNames(NamedTuple):
    """The names that two workers have with different code.

    Attributes:
        names: The names, sorted.
        are_different_services: Whether the workers have few names in common, so they are not two releases of
            one service.
    """

    names: list[str]
    are_different_services: bool


def fingerprints_of(tasks: Iterable[Task]) -> dict[str, dict[str, str]]:
    """Return a mapping from the interpreter that has compiled the code to the fingerprints by task name."""
    fingerprints: dict[str, str] = {}
    for task in sorted(tasks, key=lambda task: task.name)[:MAX_TASKS]:
        code = getattr(inspect.unwrap(task.func), "__code__", None)
        # An object with a method ``__call__()`` has no code of its own, and gets no fingerprint.
        if isinstance(code, CodeType):
            fingerprints[task.name] = _fingerprint(code)
    return {COMPILER: fingerprints}


def shared_names(settings: ReportedSettings, other_settings: ReportedSettings) -> SharedNames:
    """Return the names that two workers have with different code, by the settings that they report.

    There are none if the workers report no code of the same interpreter, because it cannot be compared then.
    """
    codes, other_codes = settings.fingerprints, other_settings.fingerprints
    # A worker reports one interpreter, so the two workers have at most one in common.
    compiler = next(iter(codes.keys() & other_codes.keys()), None)
    if compiler is None:
        return SharedNames([], False)
    fingerprints, other_fingerprints = codes[compiler], other_codes[compiler]
    common_names = fingerprints.keys() & other_fingerprints.keys()
    names = sorted(name for name in common_names if fingerprints[name] != other_fingerprints[name])
    smaller_count = min(len(fingerprints), len(other_fingerprints))
    # Two releases of one service have more than half of the tasks of the smaller one in common.
    return SharedNames(names, are_different_services=len(common_names) <= smaller_count / 2)


@lru_cache(maxsize=MAX_TASKS)
def _fingerprint(code: CodeType) -> str:
    """Return a short hash of what a function does, without its file and its lines."""
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    pending = [code]
    while pending:
        part = pending.pop()
        digest.update(part.co_code)
        names = (part.co_names, part.co_varnames, part.co_freevars)
        digest.update(repr(names).encode(errors="replace"))
        for constant in part.co_consts:
            # The constants of a function include the code of the functions within it.
            if isinstance(constant, CodeType):
                pending.append(constant)
                continue
            # The order of a frozenset differs between processes.
            stable_constant = sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
            digest.update(repr(stable_constant).encode(errors="replace"))
    return digest.hexdigest()
