"""The executor of a function: its default, and which functions an executor can run."""

from __future__ import annotations

from typing import Any

import pytest

from pg_scheduler.jobs.executors import check_executor, import_path
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.task import TaskOptions


def plain() -> None: ...


async def coroutine() -> None: ...


class Group:
    @classmethod
    def of_class(cls) -> None: ...

    @staticmethod
    def static() -> None: ...

    def method(self) -> None: ...


@pytest.fixture
def registry() -> TaskRegistry:
    return TaskRegistry()


@pytest.mark.parametrize(("func", "executor"), [(plain, "thread"), (coroutine, "async")])
def test_executor_defaults_to_the_one_for_the_kind_of_function(
    registry: TaskRegistry, func: Any, executor: str
) -> None:
    assert registry.register(func).executor == executor


def test_executor_stays_when_a_function_is_registered_again_and_follows_its_kind_by_default(
    registry: TaskRegistry,
) -> None:
    def later() -> None: ...

    later.__qualname__ = coroutine.__qualname__
    assert registry.register(coroutine).executor == "async"
    assert registry.register(later).executor == "thread"
    assert registry.register(coroutine, options=TaskOptions(executor="thread")).executor == "thread"
    assert registry.register(coroutine, name="name").executor == "thread"


def test_plain_function_is_adopted_only_if_it_was_registered(registry: TaskRegistry) -> None:
    with pytest.raises(TypeError, match=r"declare a plain function with @job\(\)"):
        registry.adopt(plain)
    task = registry.register(plain)
    assert registry.adopt(plain) == task


def test_async_executor_rejects_a_plain_function() -> None:
    with pytest.raises(TypeError, match="which would block the event loop"):
        check_executor(plain, "async")


@pytest.mark.parametrize(("executor", "error"), [("", ValueError), (5, TypeError), (None, TypeError)])
def test_executor_must_be_a_name(executor: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="executor"):
        check_executor(plain, executor)


@pytest.mark.parametrize("func", [plain, coroutine, Group.of_class, Group.static])
def test_import_path_names_what_another_process_can_import(func: Any) -> None:
    assert import_path(func) == (__name__, func.__qualname__)
    assert check_executor(func, "process") == "process"


def test_import_path_rejects_functions_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def nested() -> None: ...

    for func in (nested, Group().method):
        with pytest.raises(TypeError, match="define it at the top level of a module"):
            import_path(func)
    monkeypatch.setattr(f"{__name__}.plain.__qualname__", "Group")
    monkeypatch.setattr(f"{__name__}.Group", 5)
    with pytest.raises(TypeError, match="that name is 5"):
        import_path(plain)
