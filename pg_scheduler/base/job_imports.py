"""Keep the import of a job's module from starting its program once more.

The child process of a job imports the module of its function. If that is a script without the
``if __name__ == "__main__"`` guard, the import runs the program: it would enqueue its jobs again, start a
Scheduler that claims them, and that one would start a child process of its own, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pg_scheduler.errors import ConfigurationError

_modules: Final[list[str]] = []
"""The modules that this process is importing for jobs, the last one last."""


@contextmanager
def importing_for_job(module: str) -> Iterator[None]:
    """Let no Scheduler start within the block, in which the module of a job is imported."""
    _modules.append(module)
    try:
        yield
    finally:
        _modules.remove(module)


def check_not_importing() -> None:
    """Raise ConfigurationError while this process imports the module of a job."""
    if _modules:
        raise ConfigurationError(
            f"module {_modules[-1]!r} starts a Scheduler when the child process of a job imports it; "
            'start it below if __name__ == "__main__":'
        )
