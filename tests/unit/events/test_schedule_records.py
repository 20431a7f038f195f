"""Each record about a schedule names its task, since the default id of a schedule is a hash."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pg_scheduler
from pg_scheduler import events
from pg_scheduler.events import types
from pg_scheduler.events.log import message_of
from tests.support.source import parsed

PACKAGE = Path(pg_scheduler.__file__).parent
ROOMS = {"queue", "schedules", "worker"}
KINDS = [
    kind for kind in vars(types).values() if isinstance(kind, type) and issubclass(kind, types.ScheduleEvent)
]


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, parsed(path)


def test_text_of_every_event_of_a_schedule_names_the_task() -> None:
    logged = [kind for kind in KINDS if kind in types.TEXTS]
    assert len(logged) >= 11
    for kind in logged:
        assert types.TEXTS[kind].startswith("schedule %(schedule_id)s of %(task_name)s"), kind


def test_every_event_of_a_schedule_is_made_with_its_task() -> None:
    names = {kind.__name__ for kind in KINDS}
    makers = {"ScheduleAdded", "ScheduleUpdated"}  # chosen by a condition in one expression
    made = 0
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            called = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
            is_choice = isinstance(function, ast.IfExp) and called & makers
            is_kind = isinstance(function, ast.Name) and function.id in {*names, "kind"}
            if is_choice or (is_kind and path.name in {"planner.py", "schedule_control.py", "schedules.py"}):
                made += 1
                assert "task_name" in {word.arg for word in node.keywords}, f"{path}:{node.lineno}"
    assert made >= 11


def test_every_other_record_about_a_schedule_names_the_task() -> None:
    found = 0
    for path, tree in trees():
        if not ROOMS & {*path.parts}:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "schedule %r" in node.value:
                found += 1
                assert "schedule %r of %s" in node.value or "schedule %r of the task %r" in node.value, (
                    f"{path}:{node.lineno}"
                )
    assert found >= 4


def test_event_of_a_node_with_an_earlier_release_has_no_empty_name() -> None:
    template, values = message_of(events.ScheduleMissed("nightly", 3, is_exact=True))
    assert template % values == "schedule nightly missed 3 fire times"
