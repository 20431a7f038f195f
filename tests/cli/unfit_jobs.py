"""Tasks that reject some arguments, for the exit codes of commands that pass them."""

from __future__ import annotations

from datetime import timedelta

from pg_scheduler import Limit, Share, Unique, job


def first_letter(name: str) -> str:
    return name[0]


@job(name="unfit.plain")
async def plain(number: int = 0) -> None: ...


@job(name="unfit.thread")
def in_thread(number: int = 0) -> None: ...


@job(name="unfit.typed", typed=True)
async def typed(number: int) -> None: ...


@job(name="unfit.limited", limits=[Limit("unfit", max_running=1, key=first_letter)])
async def limited(name: str) -> None: ...


@job(name="unfit.shared", share=Share("unfit", key=first_letter))
async def shared(name: str) -> None: ...


@job(name="unfit.unique", unique=Unique(args=("name",)))
async def unique(name: str) -> None: ...


@job(name="unfit.once", unique=Unique(per=timedelta(days=1)))
async def once(name: str = "") -> None: ...


@job(name="unfit.debounced", unique=Unique(debounce=60))
async def debounced(name: str = "") -> None: ...


@job(name="unfit.named", unique=Unique(args=("account",)))
async def named(**values: str) -> None: ...
