"""Signatures and annotations are read in one module, which evaluates only what is needed."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import pg_scheduler
from pg_scheduler import ConfigurationError, Injected, PayloadError, job
from pg_scheduler.base.annotations import UNDECLARED, annotations_of, return_annotation, signature_of, text_of
from pg_scheduler.jobs.injected import own_signature
from pg_scheduler.jobs.step_values import ReturnType
from pg_scheduler.jobs.typed import TypedArguments
from tests.support.source import parsed
from tests.support.values import PYDANTIC

READERS = {"signature", "get_type_hints", "get_annotations", "__annotations__"}

OWN_CODE = {
    "pg_scheduler/base/annotations.py": "reads those of user code",
    "pg_scheduler/base/blocking.py": "derives the blocking methods from those of this library",
    "pg_scheduler/base/setting_rules.py": "checks the settings of this library by their annotations",
    "pg_scheduler/base/deprecation.py": "finds the place of a parameter of a function of this library",
    "pg_scheduler/cli/commands.py": "makes options from the functions of the commands",
    "pg_scheduler/cli/schema.py": "describes the JSON of classes of this library",
    "pg_scheduler/inspect/job_actions.py": "copies the parameters of methods of this library",
    "pg_scheduler/testing/sync_kit.py": "copies the parameters of methods of this library",
    "pg_scheduler/jobs/codec.py": "counts the parameters of a codec's methods, without their annotations",
    "pg_scheduler/jobs/chunks.py": "sets that of the function that stands for a call for one job",
    "pg_scheduler/jobs/typed.py": "sets those of the function that pydantic reads",
}
"""The modules that read annotations themselves, and why that evaluates nothing that is not needed."""


def reads_annotations(path: Path) -> bool:
    """Return whether a module reads signatures or annotations."""
    return any(map(is_reader, ast.walk(parsed(path))))


def is_reader(node: ast.AST) -> bool:
    """Return whether a node of the source reads them, or imports what does."""
    match node:
        case ast.Attribute(value=ast.Name(id="inspect" | "typing" | "annotationlib"), attr=name):
            return name in READERS
        case ast.Attribute(attr=name) | ast.Constant(value=str(name)):
            return name == "__annotations__"
        case ast.ImportFrom(module="inspect" | "typing" | "annotationlib", names=names):
            return any(alias.name in READERS for alias in names)
    return False


def test_user_code_is_read_by_one_module() -> None:
    root = Path(pg_scheduler.__file__).parent
    readers = {
        path.relative_to(root.parent).as_posix() for path in root.rglob("*.py") if reads_annotations(path)
    }
    assert readers == set(OWN_CODE)


def test_one_exception_covers_whatever_an_annotation_raises() -> None:
    """pydantic's own errors are only some of them, so no other module handles them."""
    root = Path(pg_scheduler.__file__).parent
    names = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and any("PydanticUser" in alias.name for alias in node.names)
    }
    assert names == {"base/validators.py"}, "it reads the code of an error that needs another configuration"


@pytest.mark.parametrize(
    "annotation",
    [
        "Annotated[str, Field(pattern='^(?=a).$')]",
        "Annotated[int, Field(discriminator='kind')] | str",
        "math.no_such_name",
        "math.pi / 0",
        "list[int",
        "Strange",
    ],
)
async def test_no_annotation_raises_an_error_of_its_own(annotation: str) -> None:
    source = f"""
import math
from typing import Annotated
from pydantic import Field
class Strange:
    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        raise OSError("no schema")
async def take(value: {annotation!r}) -> None: ...
async def give() -> {annotation!r}: ...
"""
    with pytest.raises(ConfigurationError, match="typed=True cannot use the annotations of take: "):
        TypedArguments(undefined(source, "take")).encode((1,), None)
    with pytest.raises(ConfigurationError, match=r"a step cannot use the return annotation of give\(\): "):
        ReturnType(undefined(source, "give"))
    assert TypedArguments(undefined(source, "give")).form_of_result("receipt 1") == "receipt 1"


@pytest.mark.skipif(PYDANTIC < (2, 10), reason="pydantic before 2.10 does not support Unpack")
def test_types_of_unpacked_keys_are_evaluated_at_the_first_use() -> None:
    """pydantic reports an undefined name in them only when it validates a value."""
    source = """
from typing import Unpack
from typing_extensions import TypedDict
class Keys(TypedDict):
    amount: "Missing"
async def take(**keys: Unpack[Keys]) -> None: ...
"""
    with pytest.raises(ConfigurationError, match=r"cannot use the annotations of take: .*Missing"):
        TypedArguments(undefined(source, "take")).encode((), {"amount": 1})


def undefined(source: str, name: str = "func") -> Any:
    """Return what a module defines whose names for type checkers do not exist when it runs."""
    namespace: dict[str, Any] = {"Injected": Injected, "job": job, "__name__": "undefined_names"}
    exec(compile(source, "<undefined>", "exec", dont_inherit=True), namespace)
    return namespace[name]


FUTURE = "from __future__ import annotations\n"
MODULES = [FUTURE] + ([""] if sys.version_info >= (3, 14) else [])
"""How a module may begin that names undefined types. Since Python 3.14 annotations are lazy."""


@pytest.mark.parametrize("start", MODULES)
@pytest.mark.parametrize(
    "source",
    [
        "async def func(order: Order) -> None: ...",
        "async def func(n: int) -> Decimal: ...",
        "def func(order: list[Order], *, n: int = 1) -> Order: ...",
        "class Service:\n    async def run(self, x: Order): ...\nfunc = Service.run",
        "async def func(n: int, *, session: Injected[Session]) -> Order: ...",
    ],
)
def test_undefined_names_do_not_matter_where_no_value_is_converted(start: str, source: str) -> None:
    func = undefined(start + source)
    job(name=func.__qualname__)(func)
    assert "session" not in own_signature(func).parameters
    assert text_of(annotations_of(func).get("return", "None")) in {"None", "Order", "Decimal", None}
    assert ReturnType(func).to_json("step", None) is None


@pytest.mark.parametrize("start", MODULES)
def test_typed_arguments_need_the_annotations_of_their_own_parameters_only(start: str) -> None:
    func = undefined(start + "async def func(n: int, *, session: Injected[Session]) -> Order: ...")
    typed = TypedArguments(func)
    assert typed.encode(("5",), None) == '{"args":["5"],"kwargs":{}}'
    assert typed.bind(["5"], {}) == ((), {"n": 5})
    assert typed.form_of_result({"a": 1}) == {"a": 1}
    missing = undefined(start + "async def func(n: Order) -> None: ...")
    with pytest.raises(ConfigurationError, match="name 'Order' is not defined"):
        TypedArguments(missing).encode((1,), None)


@pytest.mark.parametrize("start", MODULES)
def test_undefined_return_annotation_is_an_error_for_a_value_that_needs_it(start: str) -> None:
    func = undefined(start + "async def func(n: int) -> Order: ...")
    with pytest.raises(ConfigurationError, match="name 'Order' is not defined"):
        ReturnType(func).to_json("step", object())


def test_return_annotation_is_evaluated_alone() -> None:
    func = undefined(FUTURE + "async def func(order: Order) -> list[int]: ...")
    assert return_annotation(func) == list[int]
    assert return_annotation(lambda: None) is UNDECLARED
    assert return_annotation(functools.wraps(func)(lambda: None)) == list[int]


def test_signature_is_that_of_inspect() -> None:
    def func(a: int, /, b: str = "x", *, c: float) -> None: ...

    assert signature_of(func).parameters.keys() == inspect.signature(func).parameters.keys()
    with pytest.raises((TypeError, ValueError)):
        signature_of(5)  # type: ignore[arg-type]


def test_values_of_typed_functions_are_refused_with_their_path() -> None:
    func = undefined("from pydantic import SecretStr\nasync def func(a: dict[str, SecretStr]): ...")
    from pydantic import SecretStr

    with pytest.raises(PayloadError, match=r"args\[0\]\['key'\] is a SecretStr"):
        TypedArguments(func).encode(({"key": SecretStr("x")},), None)
