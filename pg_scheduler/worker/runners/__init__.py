"""Run coroutines as asyncio tasks, with time limits."""
