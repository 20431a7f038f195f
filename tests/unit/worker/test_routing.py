"""The names that a worker claims, by the patterns of ``only=`` and ``skip=``."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pg_scheduler.worker.routing import Routing
from tests.support.inside import TaskRegistry


async def build() -> None: ...


def routing(only: Sequence[str] = (), skip: Sequence[str] = ()) -> Routing:
    tasks = TaskRegistry()
    tasks.register(build, name="reports.build", aliases=["old.build"], loose=["periodic_build"])
    return Routing(tasks, (), only, skip, worker_id="w")


OF_THE_FUNCTION = {f"{__name__}.build", "build", "periodic_build"}


@pytest.mark.parametrize(
    ("only", "skip", "names"),
    [
        ((), (), {"reports.build", "old.build", *OF_THE_FUNCTION}),
        (("reports.*",), (), {"reports.build", *OF_THE_FUNCTION}),
        (("old.*",), (), {"old.build"}),
        ((), ("reports.*",), {"old.build"}),
        ((), ("reports.*", "old.*"), set()),
        (("build", "*.test_routing.*"), (), set()),
        ((), ("build", "periodic_*"), {"reports.build", "old.build", *OF_THE_FUNCTION}),
    ],
)
def test_names_of_a_function_are_claimed_with_the_name_of_its_task(
    only: Sequence[str], skip: Sequence[str], names: set[str]
) -> None:
    """A worker that skipped the task claimed these names, so people saw a task that nobody has declared."""
    assert set(routing(only, skip).names()) == names
    assert set(routing(only, skip).claimable()) == names


def test_pattern_that_matches_only_names_of_functions_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    routing(only=("build", "reports.*"), skip=("old.*",)).warn_of_patterns()
    (record,) = caplog.records
    assert record.getMessage() == ("only='build' matches no registered function; did you mean 'old.build'?")


def test_task_without_another_name_is_matched_by_that_of_its_function() -> None:
    tasks = TaskRegistry()
    tasks.register(build)
    assert set(Routing(tasks, (), (), ("*.test_routing.*",), worker_id="w").names()) == set()
    assert f"{__name__}.build" in Routing(tasks, (), ("*.test_routing.*",), worker_id="w").names()
