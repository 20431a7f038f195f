"""Stand-ins for services in other processes, which cannot take part in a transaction."""

from __future__ import annotations

from pydantic import BaseModel

__all__ = ["LIMIT", "PRICES", "Quote", "charge", "fetch_quote", "mails", "payments", "send_mail"]

PRICES = {"chair": 40, "piano": 9000}
LIMIT = 1000
"""What the card of every customer can pay."""

payments: dict[str, int] = {}
"""The amounts that were charged, by idempotency key."""

mails: list[str] = []


class Quote(BaseModel):
    """The price of an item."""

    item: str
    price: int


async def fetch_quote(item: str) -> Quote:
    """Return the price of an item, as of now."""
    return Quote(item=item, price=PRICES[item])


async def charge(amount: int, key: str) -> str | None:
    """Charge a card, once however often the key is used; return the payment, or None if it is declined.

    A decline is a value and not an exception, so the job stores it: no later attempt asks again.
    """
    if amount > LIMIT:
        return None
    payments.setdefault(key, amount)
    return f"payment of {key}"


async def send_mail(text: str) -> None:
    """Send a mail to the customer."""
    mails.append(text)
