"""Compare the cost of typed arguments in two checkouts, A B A B.

``python benchmarks/typed_values.py BEFORE AFTER`` takes the folders of two checkouts. It measures CPU time,
so other processes of the machine matter less. No database is used.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel

ROUNDS: Final = 7
"""Processes per checkout."""

CALLS: Final = 2000
"""Calls of each kind in a process."""


class Line(BaseModel):
    """A part of an order."""

    price: Decimal
    number: int = 1
    note: str | None = None


class Order(BaseModel):
    """A model of the usual size."""

    order_id: UUID
    customer: int
    at: datetime
    lines: list[Line]
    tags: list[str] = []


@dataclass
class Point:
    """A small dataclass."""

    x: float
    y: float


LINES: Final = [Line(price=Decimal("9.90"), number=number) for number in range(5)]
ORDER: Final = Order(order_id=UUID(int=7), customer=1, at=datetime(2030, 1, 1, tzinfo=UTC), lines=LINES)
NUMBERS: Final = list(range(1000))


async def take_numbers(customer: int, text: str) -> None:
    """Take two scalars."""


async def take_dataclass(point: Point) -> None:
    """Take a dataclass."""


async def take_order(order: Order) -> None:
    """Take a model."""


async def take_dict(order: Order) -> None:
    """Take a dict for a model."""


async def take_list(numbers: list[int]) -> None:
    """Take a list."""


async def take_set(names: set[str]) -> None:
    """Take a set."""


async def take_anything(order: dict[str, Any]) -> None:
    """Take a dict of values without a type."""


CASES: Final[dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]]] = {
    "untyped, two scalars": (take_numbers, (1, "x"), False),
    "two scalars": (take_numbers, (1, "x"), True),
    "a dataclass": (take_dataclass, (Point(1.0, 2.0),), True),
    "a model with five lines": (take_order, (ORDER,), True),
    "the same as a dict": (take_dict, (ORDER.model_dump(mode="json"),), True),
    "a list of 1,000 int": (take_list, (NUMBERS,), True),
    "a set of 20 texts": (take_set, ({f"name-{number}" for number in range(20)},), True),
    "dict[str, Any]": (take_anything, ({"a": 1, "b": [1, 2, 3]},), True),
}
"""Functions, their arguments, and whether they are typed."""


def measure(folder: str) -> None:
    """Write the microseconds of each case, with the package of a folder."""
    sys.path.insert(0, folder)
    from pg_scheduler.jobs.task import Task, TaskOptions  # noqa: PLC0415 - that of the folder

    for name, (func, args, is_typed) in CASES.items():
        task = Task(func, name).changed(func, name, TaskOptions(typed=is_typed))
        task.encode(args, None)
        began = time.process_time()
        for _ in range(CALLS):
            task.encode(args, None)
        micros = (time.process_time() - began) / CALLS * 1e6
        sys.stdout.write(f"{name}\t{micros:.2f}\n")


def compare(before: str, after: str) -> None:
    """Write the median and the range of each case in two checkouts, and the ratio of the medians."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in CASES}
    for _ in range(ROUNDS):
        for index, folder in enumerate((before, after)):
            command = [sys.executable, __file__, folder]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            for line in output.splitlines():
                name, micros = line.split("\t")
                times[name][index].append(float(micros))
    for name, (old, new) in times.items():
        ratio = statistics.median(new) / statistics.median(old)
        ranges = " and ".join(f"{min(values):.1f} to {max(values):.1f}" for values in (old, new))
        medians = f"{statistics.median(old):8.1f} us {statistics.median(new):8.1f} us"
        sys.stdout.write(f"{name:28} {medians}   x {ratio:.2f}   ({ranges})\n")


if __name__ == "__main__":
    compare(*sys.argv[1:]) if len(sys.argv) == 3 else measure(sys.argv[1])
