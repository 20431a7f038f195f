"""The driver of DBOS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from dbos import DBOS, AsyncSQLAlchemyDatasource, DBOSClient, DBOSConfig
from sqlalchemy import text

from benchmarks.peers.protocol import Order, Peer, record, run

QUEUE = "work"
TOPIC = "go"
TUNED_POLL_S = 0.02
WAIT_S = 3600.0
END_TIMEOUT_S = 10
INSERT = text("INSERT INTO effects VALUES (:user)")

datasources: list[AsyncSQLAlchemyDatasource] = []


async def same(number: int) -> int:
    """Return a small value."""
    return number


stored = DBOS.step(name="same")(same)


async def steps(t: float, user: str, steps: int) -> None:  # noqa: ARG001 - a typical argument
    """Store as many steps as wanted."""
    record.begin()
    for number in range(steps):
        await stored(number)
    record(t)


async def wait(t: float, user: str) -> None:  # noqa: ARG001 - a typical argument
    """Wait for a message, and record when it arrives."""
    record.suspend()
    record(await DBOS.recv_async(TOPIC, timeout_seconds=WAIT_S))


async def sleep(t: float, user: str) -> None:  # noqa: ARG001 - a typical argument
    """Sleep for an hour."""
    record.suspend()
    await DBOS.sleep_async(WAIT_S)


async def write(t: float, user: str) -> None:
    """Write a row in the transaction of a step."""
    record.begin()
    await datasources[0].run_tx_step_async({"isolation_level": "READ COMMITTED"}, insert, user)
    record(t)


WORKFLOWS = {"steps": steps, "wait": wait, "sleep": sleep, "write": write}


async def insert(user: str) -> None:
    """Write a row."""
    await datasources[0].sql_session().execute(INSERT, {"user": user})


class Dbos(Peer):
    """DBOS. Tuned: queues are polled every 20 ms."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        if order.job in WORKFLOWS:
            DBOS.workflow(name=order.job)(WORKFLOWS[order.job])
        self._config: DBOSConfig = {
            "name": "bench",
            "system_database_url": order.dsn,
            "log_level": "CRITICAL",
            "application_version": "1",
        }
        self._client: DBOSClient | None = None

    async def install(self) -> None:
        """Create the tables."""
        async with self.working():
            pass

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Open a client."""
        self._client = DBOSClient(system_database_url=self.order.dsn)
        yield

    async def send(self, arguments: dict[str, Any], due: float | None) -> None:
        """Call enqueue_async()."""
        raise NotImplementedError

    async def send_many(self, arguments: list[dict[str, Any]], due: float | None) -> None:  # noqa: ARG002
        """Call enqueue() from 16 threads, because there is no bulk call."""
        assert self._client is not None
        client = self._client

        def enqueue(each: tuple[int, dict[str, Any]]) -> None:
            number, one = each
            client.enqueue(
                {"workflow_name": self.order.job, "queue_name": QUEUE, "workflow_id": f"job-{number}"}, **one
            )

        with ThreadPoolExecutor(16) as threads:
            await asyncio.to_thread(lambda: list(threads.map(enqueue, enumerate(arguments))))

    async def signal(self, number: int, value: float) -> None:
        """Call send_async()."""
        assert self._client is not None
        await self._client.send_async(f"job-{number}", value, TOPIC)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Launch DBOS with a queue."""
        datasources[:] = [await AsyncSQLAlchemyDatasource.create(self.order.dsn, {"pool_size": 20})]
        DBOS(config=self._config)
        DBOS.launch()
        await DBOS.register_queue_async(
            QUEUE,
            worker_concurrency=self.order.options.get("slots"),
            polling_interval_sec=TUNED_POLL_S if self.order.tuned else 1.0,
        )
        yield
        if self.order.job != "sleep":
            await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=END_TIMEOUT_S)


def main(order: str) -> None:
    """Run the driver."""
    run(Dbos, order)
