import asyncio

from pg_scheduler import Scheduler, job
from pg_scheduler.embedded import EmbeddedPostgres


@job()
async def greet(name: str) -> None:
    print("hello", name)


async def main() -> None:
    with EmbeddedPostgres("data") as postgres:
        async with Scheduler.connect(postgres.dsn()) as scheduler:
            await scheduler.run_job(greet, args=("Ada",))


asyncio.run(main())
