"""The tables of the shop, its engine, and a session for each request."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = ["URL", "Base", "Order", "SessionDep", "engine", "get_session"]

URL = os.environ["DATABASE_URL"]
engine = create_async_engine(URL)


class Base(DeclarativeBase):
    """The metadata of the shop."""


class Order(Base):
    """An order of a customer."""

    __tablename__ = "orders"

    number: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    invoice: Mapped[str | None]


async def get_session() -> AsyncIterator[AsyncSession]:
    """Open the session of a request. The endpoint commits it."""
    async with AsyncSession(engine, expire_on_commit=False) as session:
        yield session


SessionDep = Annotated[AsyncSession, Depends(get_session)]
