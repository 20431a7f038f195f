from datetime import timedelta

import pytest
import shop

from pg_scheduler.testing import TestScheduler


@pytest.fixture
def mails(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    sent: list[str] = []

    async def send_mail(email: str, text: str) -> None:
        sent.append(text)

    async def pack(order: int) -> None: ...

    monkeypatch.setattr(shop, "send_mail", send_mail)
    monkeypatch.setattr(shop, "pack", pack)
    return sent


async def test_customer_is_asked_three_days_after_the_receipt(scheduler_dsn: str, mails: list[str]) -> None:
    async with TestScheduler(scheduler_dsn) as t:
        await t.scheduler.enqueue(shop.process_order, args=(7, "ada@example.org", 40), job_id="order:7")
        await t.drain()
        assert mails == ["receipt for order 7"]
        await t.run_until(timedelta(days=3))
        assert mails == ["receipt for order 7", "are you content with order 7?"]


async def test_large_order_waits_for_the_approval(scheduler_dsn: str, mails: list[str]) -> None:
    async with TestScheduler(scheduler_dsn) as t:
        await t.scheduler.enqueue(shop.process_order, args=(8, "ada@example.org", 800), job_id="order:8")
        await t.run_until(timedelta(days=30))
        assert mails == []
        await t.scheduler.signal("order:8", "approval", True)
        await t.drain()
        assert mails == ["receipt for order 8"]
