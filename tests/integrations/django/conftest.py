"""The project in which the tests run."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.django import project
from tests.support.transactions import configure_django


@pytest.fixture(scope="session", autouse=True)
def configured() -> None:
    """Configure Django, also for a test that runs alone and uses no project."""
    configure_django()


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Any:
    """The tasks of the project.

    Django keeps its connections apart for threads with and without an event loop, and each is to be closed.
    """
    is_async = inspect.iscoroutinefunction(request.function)
    return request.getfixturevalue("shop_in_loop" if is_async else "shop_in_thread")


@pytest.fixture
def shop_in_thread(dsn: str) -> Iterator[Any]:
    with project(dsn) as tasks:
        yield tasks


@pytest.fixture
async def shop_in_loop(dsn: str) -> AsyncIterator[Any]:
    with project(dsn) as tasks:
        yield tasks
