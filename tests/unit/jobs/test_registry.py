"""The registry: names, aliases, loose names and conflicts."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest

from pg_scheduler.errors import ConfigurationError, NameConflictError
from pg_scheduler.jobs import decorator
from pg_scheduler.jobs import registry as tasks
from pg_scheduler.jobs.decorator import job
from pg_scheduler.jobs.limits import Limit
from pg_scheduler.jobs.model import UNSET, JobFunction, JobPriority
from pg_scheduler.jobs.naming import module_name, qualified_name
from tests.support.cases import each_case
from tests.support.inside import TaskOptions, TaskRegistry, catalogue


def make(name: str, module: str = "app") -> JobFunction:
    """A coroutine function of that name in that module."""

    async def func() -> None: ...

    func.__module__, func.__name__, func.__qualname__ = module, name.rpartition(".")[2], name
    return func


@pytest.fixture
def registry() -> TaskRegistry:
    return TaskRegistry()


@pytest.fixture
def own_catalogue(monkeypatch: pytest.MonkeyPatch) -> TaskRegistry:
    """Replace the catalogue of the process by an empty one."""
    fresh = TaskRegistry()
    monkeypatch.setattr(decorator, "catalogue", fresh)
    return fresh


class Service:
    async def method(self) -> None: ...

    @staticmethod
    async def static() -> None: ...

    @classmethod
    async def of_class(cls) -> None: ...

    async def __call__(self) -> None: ...


async def generator() -> Any:
    yield 1


# -- names ---------------------------------------------------------------------------------------------


def test_function_resolves_by_module_and_qualname_and_by_its_bare_name(registry: TaskRegistry) -> None:
    send = make("Mail.send")
    task = registry.register(send)
    assert (task.name, task.identity, task.func) == ("app.Mail.send", "app.Mail.send", send)
    assert registry.resolve("app.Mail.send") is registry.resolve("send") is task
    assert registry.resolve("Mail.send") is registry.resolve("app.send") is registry.resolve("") is None
    assert registry.lists.names == ["app.Mail.send", "send"]
    assert registry.task_of(send) is task


def test_function_resolves_by_its_given_name_and_aliases(registry: TaskRegistry) -> None:
    task = registry.register(make("send"), name="mail.send", aliases=["old.send", "older"])
    assert task.name == "mail.send"
    assert registry.lists.names == ["app.send", "mail.send", "old.send", "older", "send"]
    assert {registry.resolve(name) for name in registry.lists.names} == {task}


def test_registering_a_function_twice_changes_nothing(registry: TaskRegistry) -> None:
    options = TaskOptions(timeout=5, misfire_grace_time=7, max_retries=2, priority=JobPriority.LOW)
    send = make("send")
    task = registry.register(send, name="mail.send", aliases=["old"], options=options)
    names = registry.lists.names
    assert registry.register(send) is task
    assert registry.register(send, name="mail.send", aliases=["old"]) == task
    assert registry.lists.names is names


def test_later_registration_adds_names_and_defaults(registry: TaskRegistry) -> None:
    send = make("send")
    registry.register(send)
    names = registry.lists.names
    task = registry.register(send, name="mail.send", options=TaskOptions(timeout=timedelta(seconds=5)))
    assert registry.lists.names != names
    assert {registry.resolve(name) for name in ("app.send", "send", "mail.send")} == {task}
    assert (task.timeout, task.misfire_grace_time) == (5.0, UNSET)
    again = registry.register(send, options=TaskOptions(misfire_grace_time=None))
    assert (again.name, again.timeout, again.misfire_grace_time) == ("mail.send", 5.0, None)


def test_task_has_the_default_timeout_and_no_grace_of_its_own(registry: TaskRegistry) -> None:
    task = registry.register(make("send"))
    assert (task.timeout, task.misfire_grace_time) == (3600.0, UNSET)
    assert registry.register(make("other"), options=TaskOptions(timeout=None)).timeout is None


def test_functions_of_the_same_name_in_two_modules_resolve_separately(registry: TaskRegistry) -> None:
    here, there = make("send", "a"), make("send", "b")
    one = registry.register(here)
    assert registry.resolve("send") is one
    names = registry.lists.names
    two = registry.register(there)
    assert (registry.resolve("a.send"), registry.resolve("b.send")) == (one, two)
    assert registry.resolve("send") is None, "the bare name is nobody's any more"
    assert registry.lists.names == ["a.send", "b.send"]
    assert registry.lists.names is not names


def test_exact_name_takes_precedence_over_a_loose_name(registry: TaskRegistry) -> None:
    registry.register(make("tick", "a"), loose=["periodic_tick"])
    owner = registry.register(make("other"), name="periodic_tick")
    assert registry.resolve("periodic_tick") is owner


def test_loose_name_resolves_only_while_one_function_has_it(registry: TaskRegistry) -> None:
    one = registry.register(make("tick", "a"), loose=["periodic_tick"])
    assert registry.resolve("periodic_tick") is one
    registry.register(make("tick", "b"), loose=["periodic_tick"])
    assert registry.resolve("periodic_tick") is None


@pytest.mark.parametrize(
    "second",
    [
        {"name": "mail.send"},
        {"aliases": ["mail.send"]},
        {"name": "app.send"},
        {"aliases": ["fine", "old"]},
    ],
)
def test_register_raises_when_another_function_has_the_explicit_name(
    registry: TaskRegistry, second: dict[str, Any]
) -> None:
    registry.register(make("send"), name="mail.send", aliases=["old"])
    before = registry.lists.names
    with pytest.raises(
        NameConflictError, match=r"already registered for app\.send; give app\.other another name or alias"
    ):
        registry.register(make("other"), **second)
    assert registry.lists.names == before


def test_register_raises_when_the_qualified_name_is_an_alias_of_another_function(
    registry: TaskRegistry,
) -> None:
    registry.register(make("renamed"), aliases=["app.send"])
    with pytest.raises(NameConflictError, match=r"'app\.renamed' is already registered for app\.renamed"):
        registry.register(make("send"))


def test_reloaded_function_replaces_the_old_one(registry: TaskRegistry) -> None:
    registry.register(make("send"), name="mail.send", aliases=["old"], options=TaskOptions(timeout=5))
    names = registry.lists.names
    fresh = make("send")
    task = registry.register(fresh)
    assert task.func is fresh
    assert (task.name, task.timeout) == ("mail.send", 5.0)
    assert {registry.resolve(name) for name in ("app.send", "mail.send", "old", "send")} == {task}
    assert registry.lists.names is names


def closure(number: int) -> JobFunction:
    async def inner() -> int:
        return number

    return inner


async def test_last_registered_closure_of_a_name_resolves(registry: TaskRegistry) -> None:
    registry.register(closure(1))
    task = registry.register(closure(2))
    assert task.name.endswith("closure.<locals>.inner")
    assert registry.resolve(task.name) is registry.resolve("inner") is task
    assert await task.func() == 2


@pytest.mark.parametrize("name", ["", "a\x00b", "\ud800"])
def test_register_raises_when_the_table_cannot_store_a_name(registry: TaskRegistry, name: str) -> None:
    for values in ({"name": name}, {"aliases": [name]}):
        with pytest.raises(ValueError, match="name") as caught:
            registry.register(make("send"), **values)
        assert repr(name) in str(caught.value)
    assert registry.lists.names == []


def test_register_raises_type_error_when_the_name_is_not_a_str(registry: TaskRegistry) -> None:
    with pytest.raises(TypeError, match="job name must be a str, not int: 5"):
        registry.register(make("send"), name=5)  # type: ignore[arg-type]


def test_register_raises_type_error_when_aliases_is_a_str(registry: TaskRegistry) -> None:
    with pytest.raises(TypeError, match="aliases must be a list of names, not the str 'old'"):
        registry.register(make("send"), aliases="old")
    with pytest.raises(TypeError, match="aliases must be a list of names, not the str 'old'"):
        job(aliases="old")(make("send"))


def test_register_raises_when_a_default_is_invalid(registry: TaskRegistry) -> None:
    with pytest.raises(ConfigurationError, match="timeout must be more than 0"):
        registry.register(make("send"), options=TaskOptions(timeout=0))
    with pytest.raises(ConfigurationError, match="misfire_grace_time must be between 0"):
        registry.register(make("send"), options=TaskOptions(misfire_grace_time=-1))
    with pytest.raises(ConfigurationError, match="max_retries must be between 0"):
        registry.register(make("send"), options=TaskOptions(max_retries=-1))
    with pytest.raises(TypeError, match="priority must be a JobPriority, not int: 5"):
        registry.register(make("send"), options=TaskOptions(priority=5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="retry must be a RetryPolicy, not int: 5"):
        registry.register(make("send"), options=TaskOptions(retry=5))  # type: ignore[arg-type]


# -- functions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("func", [Service().method, Service.static, Service.of_class])
def test_methods_resolve_by_module_and_qualname(registry: TaskRegistry, func: JobFunction) -> None:
    assert registry.register(func).name == f"{__name__}.{func.__qualname__}"
    assert registry.resolve(func.__name__)


@pytest.mark.parametrize(
    "func", [len, lambda: None, Service, Service(), generator, "app.send", None, make("x")()]
)
def test_register_raises_type_error_when_the_object_is_not_a_coroutine_function(
    registry: TaskRegistry, func: Any
) -> None:
    with pytest.raises(TypeError, match="Expected an async function"):
        registry.register(func)
    if hasattr(func, "close"):
        func.close()


def test_register_says_that_a_lambda_cannot_be_a_job(registry: TaskRegistry) -> None:
    with pytest.raises(TypeError, match="a lambda or a generator function cannot be a job"):
        registry.register(lambda: None)


def test_register_raises_with_the_remedy_when_the_object_is_a_partial(registry: TaskRegistry) -> None:
    with pytest.raises(TypeError, match=r"not a partial; pass the function, and its arguments as args="):
        registry.register(partial(make("send"), 1))


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ({"__spec__": SimpleNamespace(name="shop.worker")}, "shop.worker"),
        ({"__spec__": SimpleNamespace(name="shop.__main__")}, "shop"),
        ({"__file__": "/srv/shop/worker.py"}, "worker"),
        ({}, "__main__"),
    ],
)
def test_function_of_main_has_the_name_under_which_main_is_imported(
    monkeypatch: pytest.MonkeyPatch, main: dict[str, Any], expected: str
) -> None:
    send = make("send", "__main__")
    module = ModuleType("__main__")
    vars(module).update(main)
    monkeypatch.setitem(sys.modules, "__main__", module)
    assert module_name(send) == expected
    assert qualified_name(send) == f"{expected}.send"


@pytest.mark.parametrize(("module", "expected"), [("shop.worker", "shop.worker"), ("shop", "shop")])
def test_function_of_a_module_that_is_run_has_its_name_when_its_package_imports_the_library(
    tmp_path: Path, module: str, expected: str
) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("import pg_scheduler\n", encoding="utf-8")
    for name in ("worker", "__main__"):
        (package / f"{name}.py").write_text(
            "from pg_scheduler.jobs.naming import module_name\n"
            "async def send(): ...\n"
            "print(module_name(send))\n",
            encoding="utf-8",
        )
    ran = subprocess.run(
        [sys.executable, "-m", module],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == expected


# -- a registry over another ---------------------------------------------------------------------------


def test_name_of_the_parent_registry_resolves(registry: TaskRegistry) -> None:
    grandchild = TaskRegistry(TaskRegistry(registry))
    send = make("send")
    task = registry.register(send, name="mail.send")
    assert grandchild.resolve("mail.send") is grandchild.resolve("send") is grandchild.register(send) is task
    assert grandchild.lists.names == ["app.send", "mail.send", "send"]
    registry.register(make("late"))
    assert "late" in grandchild.lists.names, "the parent's growth is noticed"


def test_name_of_the_child_registry_does_not_resolve_in_the_parent(registry: TaskRegistry) -> None:
    child, sibling = TaskRegistry(registry), TaskRegistry(registry)
    child.register(make("send"))
    assert registry.lists.names == sibling.lists.names == []
    sibling.register(make("other"), name="app.send.v2")
    assert child.resolve("app.send.v2") is None


def test_bare_name_is_ambiguous_when_parent_and_child_have_it(registry: TaskRegistry) -> None:
    child = TaskRegistry(registry)
    one = registry.register(make("send", "a"))
    child.register(make("send", "b"))
    assert child.resolve("send") is None
    assert registry.resolve("send") is one


def test_register_raises_when_the_parent_registry_has_the_name(registry: TaskRegistry) -> None:
    registry.register(make("send"), name="mail.send")
    with pytest.raises(NameConflictError):
        TaskRegistry(registry).register(make("other"), name="mail.send")


def test_defaults_that_change_in_the_parent_registry_change_for_adopted_functions(
    registry: TaskRegistry,
) -> None:
    grandchild = TaskRegistry(TaskRegistry(registry))
    send = make("send")
    registry.register(send)
    task = grandchild.adopt(send)
    assert grandchild.adopted == {send: task}
    changed = registry.register(send, options=TaskOptions(timeout=5))
    assert grandchild.adopted == {}
    assert grandchild.adopt(send) is changed


def test_defaults_of_the_child_registry_do_not_change_the_parent(registry: TaskRegistry) -> None:
    child = TaskRegistry(registry)
    send = make("send")
    task = registry.register(send, name="mail.send", options=TaskOptions(timeout=5))
    changed = child.register(send, aliases=["old"])
    assert (changed.name, changed.timeout) == ("mail.send", 5.0)
    assert registry.resolve("mail.send") is task
    assert registry.resolve("old") is None


# -- @job ----------------------------------------------------------------------------------------------


def test_job_registers_the_function_and_returns_it(own_catalogue: TaskRegistry) -> None:
    send = make("send")
    decorate: Callable[[JobFunction], JobFunction] = job(
        "mail.send", ["old"], timeout=2, misfire_grace_time=None
    )
    assert decorate(send) is send
    task = own_catalogue.resolve("old")
    assert task
    assert (task.name, task.timeout, task.misfire_grace_time) == ("mail.send", 2.0, None)


def test_job_raises_with_the_remedy_when_it_is_used_without_parentheses(own_catalogue: TaskRegistry) -> None:
    with pytest.raises(TypeError, match=r"@job must be called; write @job\(\) above the function"):
        job(make("send"))  # type: ignore[arg-type]
    assert own_catalogue.lists.names == []


def test_job_raises_type_error_when_it_decorates_a_plain_function(own_catalogue: TaskRegistry) -> None:
    with pytest.raises(TypeError, match="Expected an async function"):
        job()(len)


def test_task_catalogue_is_shared_by_the_process() -> None:
    assert tasks.catalogue is catalogue


class _Mailer:
    async def send(self) -> None: ...


def _closure(value: object) -> JobFunction:
    async def job() -> object:
        return value

    return job


def test_adopt_raises_when_the_method_belongs_to_another_object() -> None:
    registry = TaskRegistry()
    mailer = _Mailer()
    registry.adopt(mailer.send)
    registry.adopt(mailer.send)  # a new bound method of the same object
    with pytest.raises(NameConflictError, match="method of another object"):
        registry.adopt(_Mailer().send)


def test_adopt_raises_when_the_closure_captured_other_values() -> None:
    registry = TaskRegistry()
    shared = object()
    registry.adopt(_closure("".join(["a", "b"])))
    registry.adopt(_closure("ab"))
    with pytest.raises(NameConflictError, match="captured"):
        registry.adopt(_closure("abc"))
    registry = TaskRegistry()
    registry.adopt(_closure(1))
    registry.adopt(_closure(1))
    for equal_value in (True, 1.0):
        with pytest.raises(NameConflictError, match="captured"):
            registry.adopt(_closure(equal_value))
    registry = TaskRegistry()
    registry.adopt(_closure(shared))
    registry.adopt(_closure(shared))
    with pytest.raises(NameConflictError, match="captured"):
        registry.adopt(_closure(object()))


def _twin() -> JobFunction:
    async def deliver(url: str) -> None: ...

    return deliver


def test_register_raises_when_another_function_of_the_same_def_gets_another_name() -> None:
    registry = TaskRegistry()
    first = _twin()
    registry.register(first, name="webhooks.fast", options=TaskOptions(timeout=5))
    with pytest.raises(NameConflictError, match=r"'webhooks\.fast', for another function of the same def"):
        registry.register(_twin(), name="webhooks.digest")
    assert registry.resolve("webhooks.digest") is None
    # An application that is made twice registers the same names twice.
    registry.register(_twin(), name="webhooks.fast")
    # One function may have several names.
    other = TaskRegistry()
    other.register(first, name="webhooks.fast")
    other.register(first, name="webhooks.slow")
    other.register(_twin(), name="webhooks.fast")


def _forward(*, is_assigned: bool) -> JobFunction:
    async def inner() -> object:
        return helper

    if is_assigned:
        helper = object()
    return inner


def test_adopt_accepts_a_closure_that_captures_a_variable_without_a_value() -> None:
    registry = TaskRegistry()
    task = registry.adopt(_forward(is_assigned=False))
    assert registry.adopt(_forward(is_assigned=False)).name == task.name
    with pytest.raises(NameConflictError, match="captured"):
        registry.adopt(_forward(is_assigned=True))


def test_lists_contain_a_function_that_another_thread_registers_while_they_are_made() -> None:
    class Interrupted(TaskRegistry):
        def every_name(self) -> set[str]:
            found = super().every_name()
            if "b" not in found:
                late.register(make("late"), name="b", options=TaskOptions(limits=(Limit(max_running=1),)))
            return found

    late = TaskRegistry()
    registry = Interrupted(late)
    registry.register(make("early"), name="a")
    assert "b" not in registry.lists.names
    assert {"a", "b"} <= set(registry.lists.names)
    assert registry.lists.limited.keys() == {"app.late", "b", "late"}


class _Base:
    async def run(self) -> str:
        return type(self).__name__


class _First(_Base): ...


class _Second(_Base): ...


def _with_default(value: object) -> JobFunction:
    async def inner(number: object = value) -> object:
        return number

    return inner


def _with_keyword_default(value: object) -> JobFunction:
    async def inner(*, number: object = value) -> object:
        return number

    return inner


def _decorated(func: Callable[..., Any], *, wraps: bool) -> JobFunction:
    async def wrapper(*args: object) -> object:
        return await func(*args)

    return functools.wraps(func)(wrapper) if wraps else wrapper


def _twice() -> tuple[JobFunction, JobFunction]:
    async def _() -> str:
        return "created"

    created = _

    async def _() -> str:
        return "deleted"

    return created, _


async def _charge() -> None: ...


TWINS: list[Callable[[], tuple[JobFunction, JobFunction]]] = [
    lambda: (closure(1), closure(2)),
    lambda: (_with_default(1), _with_default(2)),
    lambda: (_with_default(object()), _with_default(object())),
    lambda: (_with_keyword_default(1), _with_keyword_default(2)),
    lambda: (_Mailer().send, _Mailer().send),
    lambda: (_First().run, _Second().run),
    lambda: (_decorated(make("a"), wraps=False), _decorated(make("b"), wraps=False)),
    lambda: (_decorated(_charge, wraps=True), _charge),
    lambda: (_charge, _decorated(_charge, wraps=True)),
    _twice,
]
"""Pairs of functions with the same ``module.qualname`` that do different things."""


@each_case("twins", TWINS)
def test_second_function_of_a_qualified_name_takes_no_name_of_the_first(
    twins: Callable[[], tuple[JobFunction, JobFunction]],
) -> None:
    ways: list[tuple[str | None, Callable[[TaskRegistry, JobFunction], object]]] = [
        ("first", lambda registry, func: registry.register(func, name="second")),
        ("first", lambda registry, func: registry.register(func, aliases=["second"])),
        ("first", lambda registry, func: TaskRegistry(registry).register(func, name="second")),
        ("first", lambda registry, func: registry.adopt(func)),
        (None, lambda registry, func: registry.register(func, name="second")),
        (None, lambda registry, func: registry.adopt(func)),
    ]
    for name, register_other in ways:
        registry = TaskRegistry()
        func, other_func = twins()
        assert qualified_name(func) == qualified_name(other_func)
        task = registry.register(func, name=name)
        with pytest.raises(NameConflictError, match=rf"as {task.name!r}.*set another __qualname__"):
            register_other(registry, other_func)
        assert registry.resolve(task.name) is task
        assert registry.resolve("second") is None
        assert registry.register(other_func, name=name).func is other_func, "it replaces the first"


def _imported_again(func: JobFunction) -> JobFunction:
    """Compile the code once more, as an import does."""
    assert isinstance(func, FunctionType)
    func.__code__ = func.__code__.replace()
    return func


def test_same_function_gets_another_name_also_after_its_module_was_imported_again() -> None:
    mailer = _Mailer()
    pairs: list[tuple[JobFunction, JobFunction]] = [
        *((_charge, _charge), (closure(1), _imported_again(closure(1))), (mailer.send, mailer.send)),
        (_with_default("eu"), _imported_again(_with_default("eu"))),
    ]
    for func, same_func in pairs:
        registry = TaskRegistry()
        registry.register(func, name="first")
        assert registry.register(same_func, name="second").func is same_func


def test_changed_function_of_a_notebook_replaces_the_former_one(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = TaskRegistry()
    former, current = _twice()
    notebook = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    for func in (former, current):
        func.__module__, func.__qualname__ = "notebook", "cell"
        notebook.cell = func  # type: ignore[attr-defined]
        assert registry.adopt(func).func is func
    with pytest.raises(NameConflictError, match="with other code"):
        registry.adopt(former)
