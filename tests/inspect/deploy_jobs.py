"""Jobs with durable steps as a deployment has them: the check reads the source of this module."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, field_validator

from pg_scheduler import Sleep, Wait, current_job


class Quote(BaseModel):
    price: int
    parts: list[int] = []

    @field_validator("price")
    @classmethod
    def check_price(cls, price: int) -> int:
        if price == 0:
            raise KeyError("no price")
        return price


async def fetch_quote(order: int) -> Quote:
    return Quote(price=order)


async def fetch_page(number: int) -> int:
    return number


async def reserve(connection: Any) -> list[Quote]:
    return []


async def untyped(order: int):  # type: ignore[no-untyped-def] # noqa: ANN201 - a function without an annotation
    return order


async def order(order_id: int) -> None:
    """Has a step of each kind; a check calls no job."""
    steps: Any = current_job().steps
    await steps.run("quote", fetch_quote, order_id)
    for number in range(3):
        await steps.run(f"page-{number}", fetch_page, number)
    await steps.run("old-" + str(order_id), fetch_page, order_id)
    await steps.transaction("reserve", reserve)
    await steps.run("untyped", untyped, order_id)
    await steps.run("local", lambda: None)
    async with steps.cursor("lines", start=0):
        pass
    await steps.sleep("cool-off", 1)
    await steps.wait("approval")
    await steps.sleep(name="delivery", delay=1)
    await steps.gather("docs", [])
    await steps.first("fastest", Wait("cheapest"), Sleep("patience", 1))
