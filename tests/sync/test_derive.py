"""Blocking members derived from an asynchronous class."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.base.blocking import (
    CONNECTION,
    SYNC_CONNECTION,
    Blocking,
    BlockingConnection,
    derive,
    members_of,
)
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.sync.portal import Portal
from tests.support.facets import Face
from tests.support.inside import run_at_once
from tools.reference.source import find
from tools.reference.stub import STUB, stub

OWN = {"close"}
"""Members of SyncScheduler that Scheduler lacks."""


@asynccontextmanager
async def new_face() -> AsyncIterator[Face]:
    yield Face(size=3)


@pytest.fixture
def portal() -> Iterator[Portal[Face]]:
    portal = Portal(new_face)
    yield portal
    assert portal.close(10)


@pytest.fixture
def face(portal: Portal[Face]) -> Any:
    class Base(Blocking):
        def _portal(self) -> Portal[Any]:
            return portal

    return derive(Face, "BlockingFace", Base)()


def test_derived_methods_block_and_return_the_result(face: Any) -> None:
    assert face.inherited() == "inherited"
    assert face.plain(1, 2, 3) == 6
    with pytest.raises(LookupError, match="nothing there"):
        face.fail()


def test_derived_properties_and_constants_have_the_values_of_the_source(face: Any) -> None:
    assert (face.count, type(face).LIMIT) == (3, 5)
    assert type(face).count.__doc__ == "How many there are."


@pytest.mark.parametrize("name", ["shelf", "annotated", "second_shelf"])
def test_derived_facet_has_blocking_methods(face: Any, name: str) -> None:
    shelf = getattr(face, name)
    assert type(shelf).__name__ == "BlockingShelf"
    assert shelf.add("Emma", copies=2) == "Emma"
    assert shelf.list() == ["Emma"]
    assert type(shelf).add.__doc__.endswith(f"are those of ``Face.{name}.add()``.")


async def test_derived_method_runs_at_once_in_its_thread_with_a_connection(face: Any) -> None:
    assert face.shelf.add("Emma", connection=7) == f"Emma {BlockingConnection(7)}"
    expected = "(name: 'str', *, copies: 'int' = 1, connection: 'AnySyncConnection | None' = None) -> 'str'"
    assert str(inspect.signature(face.shelf.add)) == expected


def test_call_that_waits_for_an_event_loop_is_rejected() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    async def call() -> None:
        run_at_once(wait())

    with pytest.raises(RuntimeError, match="waits for the event loop"):
        asyncio.run(call())


def test_derived_method_rejects_unknown_parameters(face: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'pages'"):
        face.shelf.add("Emma", pages=2)


def test_asynchronous_iterators_become_iterators(face: Any) -> None:
    assert list(face.generate(3)) == [0, 1, 2]
    assert list(face.generate_more()) == []
    assert list(face.stream(3)) == [2, 1, 0]


def test_iterator_closes_its_source_when_the_last_reference_is_lost(face: Any, portal: Portal[Face]) -> None:
    for number in face.stream(3):
        assert number == 2
        break
    gc.collect()
    portal.call(lambda: None)  # after the call of aclose()
    assert portal.resource.ticks
    assert portal.resource.ticks.is_closed


def test_iterator_of_a_closed_portal_can_be_closed() -> None:
    portal = Portal(new_face)

    class Base(Blocking):
        def _portal(self) -> Portal[Any]:
            return portal

    numbers = derive(Face, "BlockingFace", Base)().generate(3)
    assert next(numbers) == 0
    assert portal.close(10)
    numbers.close()
    with pytest.raises(RuntimeError, match="was closed"):
        next(numbers)


def test_members_run_in_the_thread_of_the_portal(face: Any) -> None:
    assert threading.current_thread() is threading.main_thread()
    assert face.shelf.add("").startswith("Task-")


# -- the Scheduler ---------------------------------------------------------------------------------------


def test_sync_scheduler_has_every_public_member_of_a_scheduler(dsn: str, pool: asyncpg.Pool) -> None:
    instance = {name for name in vars(Scheduler(pool)) if not name.startswith("_")}
    expected = {name for name in dir(Scheduler) if not name.startswith("_")} | instance | OWN
    expected.remove("connect")  # its constructor is SyncScheduler()
    found = {name for name in dir(SyncScheduler) if not name.startswith("_")}
    assert found == expected, (
        "SyncScheduler lacks an attribute that Scheduler sets in __init__(); declare it as a property, or "
        "annotate it in the body of its class"
    )


def signature_of(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def test_sync_methods_have_the_signatures_of_the_scheduler_except_for_connections() -> None:
    different = []
    for name in [member.name for member in members_of(Scheduler) if member.kind in {"method", "iterator"}]:
        theirs = signature_of(getattr(Scheduler, name))
        parameters = [
            each.replace(annotation=SYNC_CONNECTION) if each.name == CONNECTION else each
            for each in theirs.parameters.values()
        ]
        ours = getattr(SyncScheduler, name)
        if signature_of(ours) != theirs.replace(parameters=parameters) or inspect.iscoroutinefunction(ours):
            different.append(name)
    assert different == []


def test_stub_equals_what_the_signatures_of_the_scheduler_generate() -> None:
    assert STUB.read_text(encoding="utf-8") == stub(), "run: python3 dev.py renew"


def test_stub_leaves_the_signatures_of_the_reference_pages_alone() -> None:
    stub()
    (schedule,) = find("pg_scheduler.scheduler.scheduler", "Scheduler").functions()["schedule"]
    found = {each.arg: each.annotation for each in schedule.args.kwonlyargs}["connection"]
    assert found is not None
    assert ast.unparse(found) == "AnyConnection | None"


def classes_of(code: str) -> dict[str, dict[str, list[str]]]:
    """The members of the classes in a stub, with the parameters of functions."""
    return {
        node.name: {
            member.name if isinstance(member, ast.FunctionDef) else ast.unparse(member.target): (
                [each.arg for each in [*member.args.args, *member.args.kwonlyargs]]
                if isinstance(member, ast.FunctionDef)
                else []
            )
            for member in node.body
            if isinstance(member, ast.FunctionDef | ast.AnnAssign)
        }
        for node in ast.parse(code).body
        if isinstance(node, ast.ClassDef)
    }


def test_stub_declares_the_members_that_are_derived() -> None:
    declared = classes_of(STUB.read_text(encoding="utf-8"))["BlockingMethods"]
    assert declared.keys() == {member.name for member in members_of(Scheduler)}


def test_stub_declares_facets_iterators_and_settings() -> None:
    code = stub("tests.support.facets", "Face")
    found = classes_of(code)
    assert found["Settings"] == {"size": []}
    assert found["BlockingShelf"] == {"add": ["self", "name", "copies", "connection"], "list": ["self"]}
    assert found["BlockingMethods"].keys() == {member.name for member in members_of(Face)}
    assert "def generate(self, count: int) -> BlockingIterator[int]:" in code
    assert "def generate_more(self) -> BlockingIterator[str]:" in code
    assert "def stream(self, count: int) -> BlockingIterator[int]:" in code
    assert "def shelf(self) -> BlockingShelf:" in code
    assert "annotated: BlockingShelf\n" in code
    assert code.count("class BlockingShelf(BlockingFacet):") == 1
    assert "are those of ``Face.shelf.add()``." in code
