"""The Scheduler as a dependency of FastAPI, in the applications of users and in their tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from pg_scheduler import ConfigurationError, Scheduler
from pg_scheduler.events import JobCompleted
from tests.docs import asgi
from tests.support.worker import Recorder

pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")

from fastapi import Depends, FastAPI, WebSocket

from pg_scheduler.integrations.fastapi import SchedulerDep, get_scheduler


async def get_session() -> AsyncSession:
    raise NotImplementedError  # each test overrides it


SessionDep = Annotated[AsyncSession, Depends(get_session)]

sub = FastAPI()


@sub.post("/jobs")
async def add(scheduler: SchedulerDep) -> dict[str, str]:
    return {"job_id": await scheduler.enqueue("web.work")}


@sub.post("/orders")
async def order(session: SessionDep, scheduler: SchedulerDep) -> dict[str, str]:
    await session.execute(text("INSERT INTO orders VALUES (7)"))
    job_id = await scheduler.enqueue("web.work", args=(7,), connection=session)
    await session.commit()
    return {"job_id": job_id}


@sub.websocket("/jobs/{job_id}")
async def read(websocket: WebSocket, job_id: str, scheduler: SchedulerDep) -> None:
    await websocket.accept()
    job = await scheduler.get_job(job_id)
    await websocket.send_json({"status": job.status if job else None})


def application(lifespan: Any = None) -> FastAPI:
    app = FastAPI(lifespan=lifespan)
    app.include_router(sub.router)
    app.mount("/mounted", sub)
    return app


@pytest.mark.parametrize("path", ["/jobs", "/mounted/jobs"])
async def test_endpoint_and_websocket_receive_the_scheduler_of_the_lifespan(dsn: str, path: str) -> None:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Scheduler]]:
        async with Scheduler.connect(dsn) as scheduler:
            yield {"scheduler": scheduler}

    async def work() -> None: ...

    app = application(lifespan)
    async with asgi.lifespan(app) as state, asyncio.timeout(30):
        scheduler: Scheduler = state["scheduler"]
        scheduler.register(work, name="web.work")
        seen = Recorder(scheduler)
        answer = await asgi.post(app, path, state=state)
        await seen.until(JobCompleted, job_id=answer["job_id"])
        async with asgi.websocket(app, f"{path}/{answer['job_id']}", state=state) as receive:
            assert await receive() == {"status": "completed"}


@pytest.mark.parametrize("state", [{}, {"scheduler": "postgresql://"}])
async def test_lifespan_without_a_scheduler_is_an_error_with_the_remedy(state: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"yield \{\"scheduler\": scheduler\}"):
        await asgi.post(application(), "/jobs", state=state)


async def test_override_binds_jobs_to_the_transaction_of_a_test(
    dsn: str, pool: asyncpg.Pool[asyncpg.Record], connection: AsyncConnection
) -> None:
    """The commit of the endpoint releases a savepoint, and the test rolls everything back."""
    await pool.execute("CREATE TABLE orders (number int)")
    app = application()
    async with Scheduler.connect(dsn, start=False) as client, connection.begin() as transaction:
        session = AsyncSession(connection, join_transaction_mode="create_savepoint")
        app.dependency_overrides = {get_scheduler: lambda: client, get_session: lambda: session}
        job_id = (await asgi.post(app, "/orders"))["job_id"]
        job = await client.get_job(job_id, connection=session)
        assert job is not None
        assert job.args == (7,)
        await session.close()
        await transaction.rollback()
        assert await client.get_job(job_id) is None
    assert await pool.fetchval("SELECT count(*) FROM orders") == 0


async def test_health_of_a_scheduler_is_an_endpoint(dsn: str) -> None:
    """FastAPI evaluates the annotation of what the function returns."""
    app = FastAPI()
    async with Scheduler.connect(dsn, start=False) as client:
        app.get("/health")(client.health)
        assert (await asgi.get(app, "/health"))["state"] == client.health().state
