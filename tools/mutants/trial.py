"""The trial of a mutant: its tests run in the scratch copy, with the change and, if they fail, without it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from tools.mutants import python
from tools.mutants.checkout import File
from tools.mutants.mutant import Mutant

LIMIT_S: Final = 240.0
"""How long the tests of one mutant may take. A mutant under which they never end is noticed by this limit."""

END_S: Final = 10.0
"""How long the processes of stopped tests get to end by themselves."""

ALL_PASSED: Final = 0
NO_TESTS: Final = 5
TIMED_OUT: Final = -1000
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
PYTEST: Final = [
    *(sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "--show-capture=no", "-rfE"),
    *("-p", "no:cacheprovider", "-p", "no:randomly"),
]


TestsOf = Callable[[Mutant], list[list[str]]]


class Verdict(StrEnum):
    """What became of a mutant."""

    NOTICED = "noticed"
    """A test fails with the change, and passes without it."""
    UNNOTICED = "unnoticed"
    """All of its tests pass, and one of them comes to the changed place."""
    NOT_REACHED = "not reached"
    """No test that is known comes to the changed place."""
    EQUIVALENT = "equivalent"
    """The bytecode is the same."""
    UNCLEAR = "unclear"
    """The tests fail without the change too, or take too long."""
    NOT_TRIED = "not tried"
    """The time was used up."""


class Outcome(NamedTuple):
    """The verdict about one mutant.

    Attributes:
        mutant: The mutant.
        diff: Its change.
        verdict: What became of it.
        tests: The tests that ran, as pytest names them.
        noticed_by: The test that failed, or what else noticed it.
        elapsed_s: How long the trial took.
    """

    mutant: Mutant
    diff: str
    verdict: Verdict
    tests: Sequence[str] = ()
    noticed_by: str = ""
    elapsed_s: float = 0.0


class Trial:
    """Tries mutants one after the other.

    Args:
        tree: The scratch copy.
        tests_of: What returns the tests of a mutant, in groups of which each may be enough.
        limit_s: How long the tests of one mutant may take.
    """

    def __init__(self, tree: Path, tests_of: TestsOf, *, limit_s: float = LIMIT_S) -> None:
        self._tree = tree
        self._tests_of = tests_of
        self._limit_s = limit_s

    def run(self, mutant: Mutant) -> Outcome:
        """Try one mutant."""
        started = time.monotonic()
        file = File(self._tree / mutant.path)
        groups = self._tests_of(mutant)
        verdict, noticed_by = self._judge(mutant, file, groups)
        elapsed_s = time.monotonic() - started
        tests = [test for group in groups for test in group]
        return Outcome(mutant, mutant.diff(file.text), verdict, tests, noticed_by, elapsed_s)

    def _judge(self, mutant: Mutant, file: File, groups: list[list[str]]) -> tuple[Verdict, str]:
        text = mutant.apply(file.text)
        if mutant.path.endswith(".py"):
            compiled = [compile(code, mutant.path, "exec", dont_inherit=True) for code in (file.text, text)]
            if python.has_the_code(*compiled):
                return Verdict.EQUIVALENT, ""
        for tests in groups:
            with file.changed(text):
                code, output = self._pytest(tests)
            if code in (ALL_PASSED, NO_TESTS):
                continue
            failed = FAILED.findall(output)
            without_change, _ = self._pytest(failed or tests)
            if without_change != ALL_PASSED:
                return Verdict.UNCLEAR, ""
            return Verdict.NOTICED, failed[
                0
            ] if failed else "the time limit" if code == TIMED_OUT else "pytest"
        return Verdict.UNNOTICED if self._is_reached(mutant, file, groups) else Verdict.NOT_REACHED, ""

    def _is_reached(self, mutant: Mutant, file: File, groups: list[list[str]]) -> bool:
        """Return whether tests that pass come to the changed place; those of a statement are known to."""
        probe = python.probe(file.text, mutant.line) if mutant.path.endswith(".py") else None
        if probe is None:
            return bool(groups)
        with file.changed(probe):
            return any(self._pytest(tests)[0] not in (ALL_PASSED, NO_TESTS) for tests in groups)

    def _pytest(self, tests: Sequence[str]) -> tuple[int, str]:
        """Run tests until one fails, and return the exit status and the output."""
        environment = {
            **os.environ,
            # Programs that the tests start in other folders would import the installed checkout.
            "PYTHONPATH": str(self._tree),
        }
        with subprocess.Popen(
            [*PYTEST, *tests],
            cwd=self._tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=self._limit_s)
            except subprocess.TimeoutExpired:
                return TIMED_OUT, ""
            finally:
                _end(process)
        return process.returncode, output


def _end(process: subprocess.Popen[str]) -> None:
    """End the tests and the programs that they have started, if they still run."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            continue
