"""The agent, its tools, and the job in which it runs."""

from __future__ import annotations

import os

import asyncpg
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ToolCallPart

from pg_scheduler import current_job, job
from pg_scheduler.integrations.pydantic_ai import PgSchedulerDurability


async def ask_manager(_context: RunContext[asyncpg.Pool], call: ToolCallPart, token: str) -> None:
    """Ask a manager about a refund: a real application sends a mail with a link that contains the token."""
    pool = current_job().pool
    await pool.execute(
        "INSERT INTO question (token, tool, arguments) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        token,
        call.tool_name,
        call.args_as_json_str(),
    )


agent = Agent(
    # "test" is the model of Pydantic AI for tests, which calls each tool once. It needs no network, no key.
    os.environ.get("MODEL", "test"),
    name="support",
    deps_type=asyncpg.Pool,
    capabilities=[PgSchedulerDurability(ask=ask_manager)],
)


@agent.tool
async def find_order(context: RunContext[asyncpg.Pool], order: int) -> str:
    """Find an order by its number."""
    await context.deps.execute("INSERT INTO tool_call (tool) VALUES ('find_order')")
    return f"order {order}: 90 euros"


@agent.tool(requires_approval=True)
async def refund(context: RunContext[asyncpg.Pool], order: int) -> str:
    """Refund an order. A manager has to approve that."""
    # The key is the same if a crash repeats this tool, so the order is refunded once.
    await context.deps.execute(
        "INSERT INTO refund (call_id, order_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        f"{current_job().job_id} {context.run_step} {context.tool_call_id}",
        order,
    )
    return f"order {order} is refunded"


@job(name="support.answer", max_retries=5)
async def answer(question: str) -> str:
    """Answer the question of a customer."""
    result = await agent.run(question, deps=current_job().pool)
    return result.output
