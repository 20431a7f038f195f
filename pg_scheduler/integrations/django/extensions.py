"""The middleware, the executors and the codec that ``OPTIONS`` names.

They are imported when they are used for the first time: tasks are declared while applications are loaded, and
the modules named here may declare some.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from pg_scheduler.base.annotations import signature_of
from pg_scheduler.integrations.django.connections import DjangoProcesses, DjangoThreads
from pg_scheduler.integrations.django.options import Options
from pg_scheduler.jobs.call import JobExecutor
from pg_scheduler.jobs.codec import Codec, check_codec
from pg_scheduler.jobs.executors import PROCESS, THREAD
from pg_scheduler.jobs.middleware import Middleware, check_middleware
from pg_scheduler.worker.runners.executors import check_executors
from pg_scheduler.worker.runners.process import ProcessExecutor
from pg_scheduler.worker.runners.thread import ThreadExecutor


def middleware_of(alias: str, options: Options) -> tuple[Middleware, ...]:
    """Return the middleware of a backend, the outermost first.

    Raises:
        ImproperlyConfigured: A middleware cannot be imported, or the object is no middleware.
    """
    with _mistakes_of(f"TASKS[{alias!r}]['OPTIONS']['MIDDLEWARE']"):
        return check_middleware([_resolve(value) for value in options.middleware])


def executors_of(alias: str, options: Options) -> dict[str, JobExecutor]:
    """Return the executors of a worker of the backend by name, with the threads and processes of Django.

    Raises:
        ImproperlyConfigured: An executor cannot be imported, the object is no executor, or its threads or
            processes do not suit Django.
    """
    with _mistakes_of(f"TASKS[{alias!r}]['OPTIONS']['EXECUTORS']"):
        executors = {name: _resolve(value) for name, value in options.executors.items()}
        check_executors(executors)
        # The general threads and processes of the library do not care for Django's connections and models.
        for name, executor in executors.items():
            if isinstance(executor, ThreadExecutor) and not isinstance(executor, DjangoThreads):
                raise TypeError(
                    f"executors[{name!r}] is {executor!r}, whose threads leave connections of Django open; "
                    "use pg_scheduler.integrations.django.DjangoThreads"
                )
            if isinstance(executor, ProcessExecutor) and not isinstance(executor, DjangoProcesses):
                raise TypeError(
                    f"executors[{name!r}] is {executor!r}, whose processes cannot import models; "
                    "use pg_scheduler.integrations.django.DjangoProcesses"
                )
        return {THREAD: DjangoThreads(), PROCESS: DjangoProcesses(), **executors}


def codec_of(alias: str, options: Options) -> Codec | None:
    """Return the codec of a backend; None if its options name none.

    Raises:
        ImproperlyConfigured: The codec cannot be imported, or the object is no codec.
    """
    with _mistakes_of(f"TASKS[{alias!r}]['OPTIONS']['CODEC']"):
        codec: Codec | None = _resolve(options.codec)
        check_codec(codec)
        return codec


@contextmanager
def _mistakes_of(place: str) -> Iterator[None]:
    """Raise ImproperlyConfigured, with the place in the settings, for an error of the block."""
    try:
        yield
    except (ImportError, TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{place}: {error}") from error


def _resolve(value: object) -> Any:
    """Return the object for a value in the settings, which is a dotted path or the object itself."""
    return _imported(value) if isinstance(value, str) else value


@cache
def _imported(path: str) -> Any:
    """Return the object that a dotted path names; for a class, an instance, the same one at each call."""
    target = import_string(path)
    if not isinstance(target, type):
        return target
    # A class that needs arguments is refused with its remedy, before the call would fail.
    try:
        signature_of(target).bind()
    except TypeError:
        raise TypeError(
            f"the class {path!r} requires arguments; name an object in your code instead"
        ) from None
    except ValueError:  # the class has no signature
        pass
    return target()
