"""The test matrix: every supported Python with every supported PostgreSQL. Standard library only."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools import processes, suite
from tools.environment import DevError, Environment, call, commit_time, note
from tools.interpreters import find_python, unpack_python
from tools.suite import BY_VERSION, SLICES

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
POSTGRES = ("14", "15", "16", "17", "18")


@dataclass(frozen=True)
class Combination:
    """One run of the suite: the versions of Python and PostgreSQL, locked or lowest dependencies."""

    python: str
    postgres: str
    lowest: bool = False

    @property
    def is_corner(self) -> bool:
        """Whether each version is the oldest or the newest."""
        return self.python in (PYTHONS[0], PYTHONS[-1]) and self.postgres in (POSTGRES[0], POSTGRES[-1])


@dataclass(frozen=True)
class Selection:
    """What to test: files in several processes, or whatever the arguments of pytest name."""

    files: list[str]
    arguments: list[str]

    def run(self, python: str) -> int:
        """Run pytest and return its exit code."""
        if self.files:
            return processes.run_files(python, self.files, self.arguments)
        return call([python, "-m", "pytest", *self.arguments])


@dataclass(frozen=True)
class Result:
    """How a combination ended: ``passed``, ``failed`` or ``absent``, and the duration or the reason."""

    status: str
    detail: str


COMBINATIONS = (
    *(Combination(python, postgres) for python in PYTHONS for postgres in POSTGRES),
    Combination(PYTHONS[0], POSTGRES[0], lowest=True),
)
"""The same list as in .github/workflows/ci.yml; a test compares the two."""

USUAL = Combination(PYTHONS[0], POSTGRES[-1])
"""What ``dev.py test`` runs without options, where Python 3.11 starts it."""


def select(python: str | None, postgres: str | None, *, lowest: bool) -> list[Combination]:
    """Return the combinations that match the options of the command line; without options, all.

    The combination with the lowest dependencies is part of the whole matrix and of ``--lowest`` only.

    Raises:
        DevError: No combination matches.
    """
    python = python and python.rpartition("/")[2].removeprefix("python")
    chosen = [
        combination
        for combination in COMBINATIONS
        if python in (None, combination.python)
        and postgres in (None, combination.postgres)
        and (combination.lowest is lowest or python is postgres is None)
        and (combination.lowest or not lowest)
    ]
    if not chosen:
        raise DevError(
            f"the matrix has no combination for --python {python} --pg {postgres}; "
            f"it covers Python {', '.join(PYTHONS)} and PostgreSQL {', '.join(POSTGRES)}"
        )
    return chosen


def run_matrix(combinations: Sequence[Combination], base: Environment, pytest: list[str]) -> int:
    """Run pytest for each combination, print a table of the results and return the exit code.

    Without arguments for pytest, the corners of the matrix run all tests that are not slow, and the other
    combinations those that depend on versions most.

    A combination whose interpreter or server is not available is reported as absent and does not fail the
    matrix. A matrix without any run fails.
    """
    results = {}
    for combination in combinations:
        note(f"matrix: {describe(combination)} ...")
        results[combination] = result = run_one(combination, base, selection(combination, pytest))
        note(f"matrix: {describe(combination)}: {result.status}, {result.detail}")
    print(table(results), flush=True)
    states = {result.status for result in results.values()}
    return 1 if "failed" in states or "passed" not in states else 0


def selection(combination: Combination, arguments: list[str]) -> Selection:
    """Return what runs with a combination: what the arguments say, or without any, the tests of its place."""
    if arguments:
        return Selection([], arguments)
    if combination.is_corner:
        return Selection(suite.usual_files(), suite.USUAL)
    return Selection(suite.files(BY_VERSION), [])


def commit_hour() -> int:
    """Return the hours from 1970 to the date of the commit that is checked out."""
    seconds = commit_time()
    if seconds is None:
        raise DevError("--slice needs git and a commit, whose date selects the versions")
    return seconds // 3600


def rotation(hour: int) -> Iterator[Combination]:
    """Yield the combinations from that of this hour on.

    There are four versions of Python and five of PostgreSQL, so five hours meet each version, and twenty meet
    each combination. The one that runs anyway makes room for that with the lowest dependencies.
    """
    for later in range(hour, hour + len(PYTHONS) * len(POSTGRES)):
        combination = Combination(PYTHONS[later % len(PYTHONS)], POSTGRES[later % len(POSTGRES)])
        yield COMBINATIONS[-1] if combination == USUAL else combination


def run_slice(hour: int, base: Environment) -> int:
    """Run a part of the tests that depend on versions most with one combination, and return the exit code.

    After the hours that meet each combination, the next part has its turn. Where an interpreter or a server
    cannot be had, the next combination runs instead. None is no failure.
    """
    part = SLICES[hour // (len(PYTHONS) * len(POSTGRES)) % len(SLICES)]
    for combination in rotation(hour):
        result = run_one(combination, base, Selection(suite.files(part), []))
        note(f"slice: {' '.join(part)}, {describe(combination)}: {result.status}, {result.detail}")
        if result.status != "absent":
            return int(result.status == "failed")
    note("slice: no combination can be had, so none ran")
    return 0


def run_one(combination: Combination, base: Environment, tests: Selection) -> Result:
    """Run pytest for one combination, in an environment of its own."""
    python = find_python(combination.python)
    unpacked = None if python else unpack_python(combination.python, base)
    python = python or unpacked
    if python is None:
        return Result("absent", f"no python{combination.python} on PATH, in pyenv or in uv")
    try:
        programs = base.postgres(combination.postgres)
    except DevError:
        return Result("absent", f"PostgreSQL {combination.postgres} cannot be downloaded")
    environment = base
    if python != base.base or combination.lowest:
        environment = Environment(f"python{combination.python}", lowest=combination.lowest)
        environment.base, environment.has_pip = python, unpacked is None
    try:
        environment.ensure()
    except DevError as error:
        return Result("failed", str(error))
    os.environ["PG_SCHEDULER_PG_BIN"] = str(programs)
    started = time.monotonic()
    code = tests.run(str(environment.python))
    if code == processes.NO_TESTS:
        return Result("failed", "no test selected")
    return Result("failed" if code else "passed", f"{time.monotonic() - started:.0f} s")


def describe(combination: Combination) -> str:
    """Name the combination in a line of output."""
    lowest = ", lowest dependencies" if combination.lowest else ""
    return f"Python {combination.python}, PostgreSQL {combination.postgres}{lowest}"


def table(results: dict[Combination, Result]) -> str:
    """Render the results as a Markdown table."""
    lines = [("Python", "PostgreSQL", "Dependencies", "Result", "Duration or reason")]
    for it, result in results.items():
        dependencies = "lowest" if it.lowest else "locked"
        lines.append((it.python, it.postgres, dependencies, result.status, result.detail))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rendered = [
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in lines
    ]
    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([rendered[0], rule, *rendered[1:]])
