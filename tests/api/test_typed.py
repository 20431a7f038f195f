"""@job(typed=True): arguments that pydantic validates when they are scheduled and when they run."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, NotRequired, Unpack
from uuid import UUID

import asyncpg
import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from pg_scheduler import (
    ConfigurationError,
    JobFunction,
    JobSpec,
    JobStatus,
    PayloadError,
    ResultUnavailableError,
    Scheduler,
    call,
)
from pg_scheduler.events import JobCompleted, JobFailed, JobRetried
from tests.api.conftest import Make
from tests.support.cases import each_case
from tests.support.inside import TaskOptions, TaskRegistry
from tests.support.values import PYDANTIC
from tests.support.worker import PATIENCE, Gate, Recorder

HOUR = timedelta(hours=1)
ID = UUID("01a1faf7-d5d0-7e20-8474-d0c3200823df")
DUE = datetime(2030, 1, 1, tzinfo=UTC)


class Color(Enum):
    RED = "red"


class Line(BaseModel):
    price: Decimal
    count: int = Field(1, alias="number")


class Order(BaseModel):
    model_config = ConfigDict(strict=True)

    order_id: UUID
    at: datetime
    lines: tuple[Line, ...] = ()


@dataclass
class Point:
    x: float


@dataclass
class Pixel:
    x: float


received: list[Any] = []


async def bill(
    order: Order,
    days: timedelta = timedelta(days=1),
    *rest: int,
    note: Annotated[str, Field(min_length=2)] = "hi",
    tries: int = Field(3, gt=0),
    **more: date,
) -> bool:
    received.append((order, days, rest, note, tries, more))
    return True


async def paint(color: Color, where: Point, tags: set[str], raw: bytes, anything: Any, /) -> None:
    received.append((color, where, tags, raw, anything))


@pytest.fixture(autouse=True)
def _nothing_received() -> None:
    received.clear()


@pytest.fixture
def scheduler(make: Make) -> Scheduler:
    """Return a Scheduler that was not started."""
    scheduler = make()
    for function in (bill, paint):
        scheduler.register(function, typed=True)
    return scheduler


ORDER = Order(order_id=ID, at=DUE, lines=(Line(price=Decimal("1.50"), number=2),))
JSON_ORDER = {
    "order_id": str(ID),
    "at": "2030-01-01T00:00:00Z",
    "lines": [{"price": "1.50", "number": 2}],
}


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((ORDER,), {}, (ORDER, timedelta(days=1), (), "hi", 3, {})),
        ((JSON_ORDER, "P2D"), {"note": "no"}, (ORDER, timedelta(days=2), (), "no", 3, {})),
        ((), {"order": ORDER, "tries": "5"}, (ORDER, timedelta(days=1), (), "hi", 5, {})),
        (
            (ORDER,),
            {"since": date(2030, 5, 1)},
            (ORDER, timedelta(days=1), (), "hi", 3, {"since": date(2030, 5, 1)}),
        ),
        ((ORDER, 60, 1, "2"), {}, (ORDER, timedelta(minutes=1), (1, 2), "hi", 3, {})),
    ],
)
async def test_typed_function_receives_objects(
    scheduler: Scheduler, args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.enqueue(bill, args=args, kwargs=kwargs)
    await seen.until(JobCompleted, job_id=job_id)
    assert received == [expected]
    job = await scheduler.get_job(job_id)
    assert job
    assert (len(job.args), set(job.kwargs)) == (len(args), set(kwargs)), "the row keeps the shape"


async def test_result_that_fits_several_types_has_the_first_one_that_its_function_declares(
    make: Make,
) -> None:
    async def draw() -> Point | Pixel:
        return Point(1.5)

    async def fill() -> Pixel | Point:
        return Pixel(1.5)

    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    kinds: tuple[Any, Any] = (Point | Pixel, Pixel | Point)
    for function, kind, expected in zip((draw, fill), kinds, (Point(1.5), Pixel(1.5)), strict=True):
        scheduler.register(function, typed=True, keep_result=HOUR)
        job_id = await scheduler.enqueue(function)
        await seen.until(JobCompleted, job_id=job_id)
        assert (await scheduler.get_job_result(job_id)).unwrap(kind) == expected


async def test_typed_function_below_a_wrapper_that_accepts_anything_is_refused(make: Make) -> None:
    received: list[date] = []

    async def pay(due: date) -> None:
        received.append(due)

    @functools.wraps(pay)
    async def wrapper(*args: Any, **kwargs: Any) -> None:
        await pay(*args, **kwargs)

    scheduler = make()
    with pytest.raises(ConfigurationError, match=r"typed=True cannot validate .* wrapper.__signature__ = "):
        scheduler.register(wrapper, name="pay", typed=True)
    wrapper.__signature__ = inspect.signature(pay)  # type: ignore[attr-defined] # the remedy
    scheduler.register(wrapper, name="pay", typed=True)
    await scheduler.start()
    with pytest.raises(PayloadError, match="due"):
        await scheduler.enqueue("pay", args=("never",))
    await scheduler.run_job("pay", args=("2030-01-01",), wait_timeout=PATIENCE)
    assert received == [date(2030, 1, 1)]


async def test_typed_function_with_positional_parameters_receives_objects(scheduler: Scheduler) -> None:
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue(call(paint, Color.RED, Point(0.5), {"a"}, b"x", {"free": [1]}))
    await seen.until(JobCompleted)
    assert received == [(Color.RED, Point(0.5), {"a"}, b"x", {"free": [1]})]


async def test_typed_job_with_objects_and_named_extras_of_a_non_strict_model_runs(make: Make) -> None:
    async def mixed(point: Point, /, *, when: datetime) -> None:
        received.append((point, when))

    scheduler = make()
    scheduler.register(mixed, typed=True)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue(call(mixed, Point(1), when=DUE))
    await seen.until(JobCompleted)
    assert received == [(Point(1.0), DUE)]


async def pick(order: Order, /, note: str = "", *, at: date | None = None) -> None:
    received.append((order, note, at))


async def ship(first: str, *orders: Order, note: str = "", **more: date) -> None:
    received.append((first, orders, note, more))


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "expected"),
    [
        (pick, (ORDER,), {"note": "x"}, (ORDER, "x", None)),
        (pick, (ORDER, "x"), {"at": date(2030, 1, 1)}, (ORDER, "x", date(2030, 1, 1))),
        (ship, ("a",), {"note": "x"}, ("a", (), "x", {})),
        (ship, (), {"first": "a", "note": "x"}, ("a", (), "x", {})),
        (
            ship,
            ("a", ORDER, ORDER),
            {"note": "x", "day": date(2030, 1, 1)},
            ("a", (ORDER, ORDER), "x", {"day": date(2030, 1, 1)}),
        ),
    ],
)
async def test_strict_types_are_read_as_json_whatever_the_kinds_of_parameters(
    make: Make, function: JobFunction, args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any
) -> None:
    scheduler = make()
    scheduler.register(function, typed=True)
    await scheduler.start()
    await scheduler.run_job(function, args=args, kwargs=kwargs, wait_timeout=PATIENCE)
    assert received == [expected]


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "message"),
    [
        (pick, (), {"note": "x"}, r"args\[0\]: Missing required"),
        (pick, (), {"order": ORDER, "note": "x"}, "order"),
        (pick, (ORDER, "x", 1), {"at": None}, "Unexpected positional argument"),
        (pick, (ORDER, "x"), {"note": "x"}, "note: Got multiple values"),
        (pick, ({},), {"note": "x"}, r"order\.order_id: Field required"),
        (ship, ("a", {}), {"note": "x"}, r"orders\[0\]\.order_id: Field required"),
        (ship, ("a", ORDER), {"first": "a"}, "first: Got multiple values"),
    ],
)
async def test_wrong_call_of_such_a_function_is_refused(
    make: Make, function: JobFunction, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    scheduler = make()
    scheduler.register(function, typed=True)
    with pytest.raises(PayloadError, match=message):
        await scheduler.enqueue(function, args=args, kwargs=kwargs)


async def charge(amount: Annotated[int, Field(alias="cents")]) -> None: ...


async def refund(amount: int = Field(5, validation_alias="cents")) -> None: ...


@pytest.mark.filterwarnings("ignore:The 'alias' attribute", "ignore:The 'validation_alias' attribute")
@pytest.mark.parametrize("function", [charge, refund])
async def test_alias_of_a_parameter_is_refused(make: Make, function: JobFunction) -> None:
    scheduler = make()
    scheduler.register(function, typed=True)
    for kwargs in ({"amount": 5}, {"cents": 5}):
        with pytest.raises(
            ConfigurationError, match=r"the alias of the parameter 'amount' of .*; remove the"
        ):
            await scheduler.enqueue(function, kwargs=kwargs)


class Extras(TypedDict):
    count: int
    at: NotRequired[datetime]


async def collect(**extras: Unpack[Extras]) -> None:
    received.append(extras)


@pytest.mark.skipif(PYDANTIC < (2, 10), reason="pydantic before 2.10 does not support Unpack")
async def test_keys_that_are_not_required_have_their_types(make: Make) -> None:
    scheduler = make()
    scheduler.register(collect, typed=True)
    await scheduler.start()
    with pytest.raises(PayloadError, match="count: Field required"):
        await scheduler.enqueue(collect, kwargs={"at": DUE})
    await scheduler.run_job(collect, kwargs={"count": 1, "at": DUE}, wait_timeout=PATIENCE)
    assert received == [{"count": 1, "at": DUE}]


async def price(count: int) -> Decimal:
    return count * Decimal("9.90")


async def boast() -> int:
    return "many"  # type: ignore[return-value] # as functions do


async def test_run_job_returns_what_a_typed_function_declares(make: Make) -> None:
    scheduler = make()
    for function in (price, boast):
        scheduler.register(function, typed=True)
    await scheduler.start()
    assert await scheduler.run_job(call(price, 2), wait_timeout=PATIENCE) == Decimal("19.80")
    by_name = await scheduler.run_job(f"{__name__}.price", args=(1,), wait_timeout=PATIENCE)
    assert by_name == Decimal("9.90")
    assert await scheduler.run_job(boast, wait_timeout=PATIENCE) == "many", "as it is, since it does not fit"
    scheduler.register(price, typed=False)
    with pytest.raises(ResultUnavailableError, match="Decimal"):
        await scheduler.run_job(call(price, 2), wait_timeout=PATIENCE)


@each_case(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"^order: Missing required argument; pass arguments that fit the annotations of bill"),
        (
            ({**JSON_ORDER, "lines": [{"price": "x"}]},),
            {},
            r"^order\.lines\[0\]\.price: Input should be a valid",
        ),
        (
            (ORDER,),
            {"note": "x", "tries": 0},
            r"^note: String should have at least 2 .*; tries: Input",
        ),
        ((ORDER, 60, "x"), {}, r"^args\[2\]: Input should be a valid integer"),
        ((ORDER,), {"order": ORDER}, "^order: Got multiple values for argument"),
        ((ORDER,), {f"day{n}": "x" for n in range(7)}, "; 2 more; pass arguments"),
        ((object(),), {}, r"^args\[0\] cannot be serialized by pydantic"),
        ((), {"order": object()}, r"^kwargs\['order'\] cannot be serialized by pydantic"),
        ((float("nan"),), {}, r"^args\[0\] is nan, which JSON cannot represent"),
        (("\x00",), {}, r"^args\[0\] contains a NUL"),
        (5, {}, "args must be a tuple or a list"),
        ((), 5, "kwargs must be a dict"),
    ],
)
async def test_typed_arguments_that_do_not_fit_raise_payload_error_with_the_path_and_nothing_is_stored(
    scheduler: Scheduler, args: Any, kwargs: Any, message: str
) -> None:
    await scheduler.initialize_db()
    calls: list[Callable[[], Any]] = [
        lambda: scheduler.schedule(bill, execution_time=DUE, args=args, kwargs=kwargs),
        lambda: scheduler.enqueue(f"{__name__}.bill", args=args, kwargs=kwargs),
        lambda: scheduler.schedule_bulk([JobSpec(bill, DUE, (ORDER,)), JobSpec(bill, DUE, args, kwargs)]),
        lambda: scheduler.schedule_job(f"{__name__}.bill", DUE, {"args": args, "kwargs": kwargs}),
    ]
    for enqueue in calls:
        with pytest.raises(PayloadError, match=message):
            await enqueue()
    assert (await scheduler.count_jobs()).total == 0


async def store(pool: asyncpg.Pool, scheduler: Scheduler, job_id: str, data: object) -> None:
    """Store arguments that no check has seen, as another version of the program may."""
    await scheduler.schedule(bill, execution_time=DUE, args=(ORDER,), job_id=job_id, max_retries=5)
    await pool.execute(
        "UPDATE scheduled_jobs SET task_data = $2::text::jsonb, execution_time = now() WHERE job_id = $1",
        job_id,
        json.dumps(data),
    )


async def test_rows_with_typed_arguments_that_no_longer_fit_fail_alone_and_without_retries(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    secret = "correct-horse"
    wrong: dict[str, Any] = {
        "missing": {"args": [], "kwargs": {}},
        "type": {"args": [{**JSON_ORDER, "order_id": secret}], "kwargs": {}},
        "unexpected": {"args": [JSON_ORDER], "kwargs": {"order": JSON_ORDER}},
        "deep": {"args": [json.loads("[" * 150 + "]" * 150)], "kwargs": {}},
        "shape": {"args": {}, "kwargs": []},
        "null": {"args": [None], "kwargs": {"note": None}},
    }
    for job_id, data in wrong.items():
        await store(pool, scheduler, job_id, data)
    right = [await scheduler.enqueue(bill, args=(ORDER, n), delay=0.01) for n in range(100)]
    seen = Recorder(scheduler)
    await scheduler.start()
    await seen.until(JobCompleted, len(right))
    await seen.until(JobFailed, len(wrong))
    assert not seen.of(JobRetried)
    jobs = {job_id: await scheduler.get_job(job_id) for job_id in wrong}
    assert {job.status for job in jobs.values() if job} == {JobStatus.FAILED}
    texts = {job_id: str(job.error_message) for job_id, job in jobs.items() if job}
    assert "1 validation error for" in texts["missing"]
    assert "order\n  Missing required argument" in texts["missing"]
    assert "order.order_id\n  Input should be a valid UUID" in texts["type"]
    assert secret not in texts["type"]


def reject(value: int) -> int:
    raise RuntimeError(f"no database for {value:d}" if value > 1 else "")


Checked = Annotated[int, AfterValidator(lambda value: reject(value) if value > 1 else value)]


async def checked(value: Checked) -> None: ...


async def test_error_of_a_validator_fails_the_attempt_which_is_retried(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    scheduler.register(checked, typed=True, max_retries=1)
    with pytest.raises(RuntimeError, match="no database"):
        await scheduler.enqueue(checked, args=(2,))
    job_id = await scheduler.schedule(checked, execution_time=DUE, args=(1,))
    await pool.execute(
        """UPDATE scheduled_jobs SET task_data = '{"args": [2], "kwargs": {}}', execution_time = now()"""
    )
    seen = Recorder(scheduler)
    await scheduler.start()
    (event,) = await seen.until(JobRetried, job_id=job_id)
    assert event.error == "RuntimeError: no database for 2"


async def unsupported(value: Gate) -> None: ...


async def undefined(value: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(("func", "reason"), [(unsupported, "Gate"), (undefined, "'Missing' is not defined")])
async def test_annotation_that_pydantic_does_not_support_raises_at_the_first_use(
    make: Make, pool: asyncpg.Pool, func: JobFunction, reason: str
) -> None:
    scheduler = make()
    task = scheduler.register(func)
    job_id = await scheduler.enqueue(task, args=(1,))
    scheduler.register(func, typed=True)
    with pytest.raises(ConfigurationError, match=f"typed=True cannot use the annotations of .*{reason}"):
        await scheduler.enqueue(func, args=(1,))
    seen = Recorder(scheduler)
    await scheduler.start()
    (event,) = await seen.until(JobFailed, job_id=job_id)
    assert event.error.startswith("ConfigurationError: typed=True cannot use the annotations of")


def square(point: Point, *, at: datetime) -> None:
    received.append((point, at))


async def test_typed_function_in_a_thread_receives_objects(make: Make) -> None:
    scheduler = make()
    scheduler.register(square, typed=True)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue(call(square, Point(2), at=DUE))
    await seen.until(JobCompleted)
    assert received == [(Point(2.0), DUE)]


def test_typed_lasts_until_it_is_changed_when_a_function_is_registered_again() -> None:
    registry = TaskRegistry()
    assert registry.register(bill).typed is None
    assert registry.register(bill, options=TaskOptions(typed=True)).typed
    assert registry.register(bill, name="billing").typed
    assert registry.register(bill, options=TaskOptions(typed=False)).typed is None
    with pytest.raises(TypeError, match="typed must be a bool, not int: 1"):
        registry.register(bill, options=TaskOptions(typed=1))  # type: ignore[arg-type]
