"""The new code that the command check compares with the database; each job has a name of its own."""

from __future__ import annotations

from pg_scheduler import Limit, current_job, job


def account_key(account: int) -> str:
    if account > 100:
        raise LookupError(account)
    return str(account)


async def fetch_quote() -> int:
    return 7


@job(name="clichecked.order", limits=[Limit("clichecked.bank", max_running=1, key=account_key)])
async def order(account: int) -> None:
    await current_job().steps.run("quote", fetch_quote)
