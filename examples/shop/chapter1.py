import asyncio
import os

from pg_scheduler import Scheduler, job


@job()
async def send_receipt(order: int, email: str) -> None:
    print(f"to {email}: receipt for order {order}")


async def main() -> None:
    async with Scheduler.connect(os.environ["PG_SCHEDULER_DSN"], start=False) as scheduler:
        await scheduler.enqueue(send_receipt, args=(1, "ada@example.org"))


if __name__ == "__main__":
    asyncio.run(main())
