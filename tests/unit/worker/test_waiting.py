"""Whether a task or a thread waits for steps only, for each way in which asyncio and threads can wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import Context, copy_context
from typing import Any

import anyio
import pytest

from pg_scheduler.jobs.context import RunningJob, current
from pg_scheduler.worker.waiting import continues_after, tasks_by_attempt, thread_waits, waits_for_steps
from tests.support.patience import PATIENCE

Step = asyncio.Future[None]
Shape = Callable[[Step], Awaitable[Any]]


async def on(step: Step) -> None:
    await step


async def after_work(step: Step) -> None:
    await asyncio.Event().wait()
    await step


async def end_at_once(step: Step) -> None: ...


async def in_task(step: Step) -> None:
    await asyncio.create_task(on(step))


async def in_group(step: Step) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(on(step))
        group.create_task(on(step))


async def in_body_of_group(step: Step) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(end_at_once(step))
        await step


async def in_group_of_anyio(step: Step) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(on, step)
        group.start_soon(on, step)


async def in_wait(step: Step) -> None:
    await asyncio.wait({asyncio.create_task(on(step)), asyncio.create_task(in_group(step))})


async def in_wait_for_the_first(step: Step) -> None:
    tasks = {asyncio.create_task(on(step)), asyncio.create_task(on(step))}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def behind_a_generator(step: Step) -> None:
    async def items() -> AsyncIterator[None]:
        await step
        yield

    async for _ in items():
        pass


async def without_a_limit(step: Step) -> None:
    async with asyncio.timeout(None):
        await asyncio.wait_for(step, None)


async def beside_the_timeout_of_another_task(step: Step) -> None:
    limit = Limit(asyncio.timeout(1000))

    async def enter() -> None:
        await limit.__aenter__()

    await asyncio.create_task(enter())
    async with AsyncExitStack() as stack:
        stack.push_async_exit(limit)
        await step


async def within_managers_without_a_timer(step: Step) -> None:
    class Client(Limit):
        _timeout_handle = 30

        @property
        def _timeout_handler(self) -> Any:
            raise ValueError("no connection")

        def __init__(self) -> None:
            self.itself = self
            self.sizes = dict.fromkeys(range(10_000), self)

        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *error: Any) -> None: ...

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(None))
        await stack.enter_async_context(Client())
        await step


class Wrapper:
    def __init__(self, step: Step) -> None:
        self._step = step

    def __await__(self) -> Generator[Any, Any, Any]:
        return on(self._step).__await__()


async def behind_a_wrapper(step: Step) -> None:
    await Wrapper(step)


async def after_a_timeout(step: Step) -> None:
    try:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    except TimeoutError:
        await step


WAIT: list[Shape] = [
    on,
    in_task,
    lambda step: asyncio.gather(on(step), in_task(step), end_at_once(step)),
    lambda step: asyncio.gather(asyncio.gather(on(step)), step),
    in_group,
    in_body_of_group,
    in_group_of_anyio,
    in_wait,
    in_wait_for_the_first,
    behind_a_generator,
    behind_a_wrapper,
    without_a_limit,
    after_a_timeout,
    beside_the_timeout_of_another_task,
    within_managers_without_a_timer,
]


async def within_a_timeout(step: Step) -> None:
    async with asyncio.timeout(1000):
        await step


async def within_a_timeout_of_anyio(step: Step) -> None:
    with anyio.fail_after(1000):
        await step


async def within_a_scope_of_anyio(step: Step) -> None:
    with anyio.move_on_after(1000):
        await asyncio.gather(on(step))


async def within_a_manager_of_its_own(step: Step) -> None:
    @asynccontextmanager
    async def limited() -> AsyncIterator[None]:
        async with asyncio.timeout(1000):
            yield

    async with limited():
        await step


async def within_two_managers(step: Step) -> None:
    @contextmanager
    def limited() -> Iterator[None]:
        with anyio.fail_after(1000):
            yield

    with limited():
        await in_task(step)


async def within_an_exit_stack(step: Step) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(1000))
        await step


async def within_an_exit_stack_of_anyio(step: Step) -> None:
    with ExitStack() as stack:
        stack.enter_context(anyio.move_on_after(1000))
        await step


class Limit:
    """A class of an application around a timeout, which it has in an attribute or in a slot."""

    def __init__(self, timer: Any) -> None:
        self._timer = timer

    async def __aenter__(self) -> None:
        await self._timer.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self._timer.__aexit__(*error)


class LimitWithSlots(Limit):
    __slots__ = ("_timer",)


async def within_a_class_around_a_timeout(step: Step) -> None:
    async with Limit(asyncio.timeout(1000)):
        await step


async def within_two_classes_around_a_timeout(step: Step) -> None:
    limit = LimitWithSlots(Limit(asyncio.timeout(1000)))
    vars(limit)["added"] = None  # its attributes are a dict of their own then
    async with limit:
        await in_task(step)


async def within_a_manager_with_an_exit_stack(step: Step) -> None:
    @asynccontextmanager
    async def limited() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(Limit(asyncio.timeout(1000)))
            yield

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(limited())
        await step


async def within_a_group_with_a_deadline(step: Step) -> None:
    async with anyio.create_task_group() as group:
        group.cancel_scope.deadline = anyio.current_time() + 1000
        await step


async def within_a_timeout_without_a_block(step: Step) -> None:
    limit = asyncio.timeout(1000)
    await limit.__aenter__()
    try:
        await step
    finally:
        await limit.__aexit__(None, None, None)


async def within_an_iteration_with_a_timeout(step: Step) -> None:
    async def items() -> AsyncIterator[None]:
        async with asyncio.timeout(1000):
            yield

    async for _ in items():
        await step


async def in_group_with_work(step: Step) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(on(step))
        group.create_task(after_work(step))


async def in_wait_with_a_timeout(step: Step) -> None:
    await asyncio.wait({asyncio.create_task(on(step))}, timeout=1000)


async def in_wait_with_work(step: Step) -> None:
    await asyncio.wait({asyncio.create_task(on(step)), asyncio.get_running_loop().create_future()})


async def at_the_end_of_a_class_like_a_group(step: Step) -> None:
    class Client:
        def __init__(self) -> None:
            self._tasks = {asyncio.create_task(on(step))}

        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None:
            await asyncio.get_running_loop().create_future()  # what it flushes

    async with Client():
        pass


async def in_a_thread(step: Step) -> None:
    ended = threading.Event()
    step.add_done_callback(lambda _: ended.set())
    await asyncio.to_thread(ended.wait, PATIENCE)


WORK: list[Shape] = [
    after_work,
    end_at_once,
    lambda step: asyncio.sleep(1000),
    lambda step: asyncio.gather(on(step), after_work(step)),
    lambda step: asyncio.gather(on(step), asyncio.sleep(1000)),
    lambda step: asyncio.wait_for(step, 1000),
    lambda step: asyncio.shield(after_work(step)),
    within_a_timeout,
    within_a_timeout_of_anyio,
    within_a_scope_of_anyio,
    within_a_manager_of_its_own,
    within_two_managers,
    within_an_exit_stack,
    within_an_exit_stack_of_anyio,
    within_a_class_around_a_timeout,
    within_two_classes_around_a_timeout,
    within_a_manager_with_an_exit_stack,
    within_a_group_with_a_deadline,
    within_a_timeout_without_a_block,
    within_an_iteration_with_a_timeout,
    in_group_with_work,
    in_wait_with_a_timeout,
    in_wait_with_work,
    at_the_end_of_a_class_like_a_group,
    in_a_thread,
]


async def begin(shape: Shape, step: Step) -> asyncio.Task[Any]:
    async def run() -> None:
        await shape(step)

    task = asyncio.create_task(run())
    for _ in range(10):  # iterations in which it comes to its wait
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("shape", [*WAIT, *WORK])
async def test_task_waits_for_steps_only_if_nothing_else_can_continue_it(shape: Shape) -> None:
    step: Step = asyncio.get_running_loop().create_future()
    before = asyncio.all_tasks()
    task = await begin(shape, step)
    assert waits_for_steps(task, {step}) is (shape in WAIT)
    assert not waits_for_steps(task, set())
    step.set_result(None)
    assert not waits_for_steps(task, {step}), "it is about to continue"
    for begun in asyncio.all_tasks() - before:
        begun.cancel()
        await asyncio.wait({begun})


async def test_tasks_of_an_attempt_are_those_that_its_code_has_begun() -> None:
    attempts: list[Any] = [object(), object()]
    step: Step = asyncio.get_running_loop().create_future()

    async def run(attempt: Any) -> None:
        job: Any = (None, 0.0, None, None, attempt)
        current.set(RunningJob(*job))
        tasks = [
            asyncio.create_task(on(step), name="pg_scheduler notify"),
            asyncio.create_task(on(step), context=Context()),
            asyncio.create_task(end_at_once(step)),
            asyncio.create_task(on(step), name=f"beside {attempts.index(attempt)}"),
        ]
        await step
        await asyncio.wait(tasks)

    running = [
        asyncio.create_task(run(attempt), name=f"attempt {number}", context=copy_context())
        for number, attempt in enumerate(attempts)
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    tasks = tasks_by_attempt(asyncio.get_running_loop())
    names = [sorted(task.get_name() for task in tasks[id(attempt)]) for attempt in attempts]
    step.set_result(None)
    await asyncio.wait(running)
    assert names == [[f"attempt {number}", f"beside {number}"] for number in range(2)]


def test_thread_waits_for_steps_in_a_step_and_at_the_end_of_threads_that_wait() -> None:
    go = threading.Event()
    begun = threading.Barrier(5)

    def run(*then: Callable[[], object]) -> threading.Thread:
        def work() -> None:
            begun.wait(PATIENCE)
            for call in then:
                call()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    step = run(go.wait)
    joining = run(step.join)
    limited = run(lambda: step.join(PATIENCE))
    twice = run(joining.join)
    begun.wait(PATIENCE)
    blocked = {step}
    while not thread_waits(joining, blocked) or not thread_waits(twice, blocked):
        pass  # it has not come to its wait
    assert thread_waits(step, blocked)
    assert continues_after(joining, step)
    assert continues_after(twice, step)
    assert not continues_after(step, joining)
    assert not continues_after(limited, step)
    assert not thread_waits(limited, blocked)
    assert not thread_waits(step, set())
    assert not thread_waits(twice, set())
    go.set()
    for thread in (step, joining, limited, twice):
        thread.join(PATIENCE)
        assert thread_waits(thread, set()), "it has ended"


@pytest.mark.parametrize(
    ("await_task", "does_wait"),
    [
        (lambda task: task, True),
        (lambda task: asyncio.gather(asyncio.sleep(1000), asyncio.gather(task)), True),
        (lambda task: asyncio.wait_for(task, 1000), True),
        (lambda task: asyncio.wait([task, asyncio.create_task(asyncio.sleep(1000))]), True),
        (lambda task: asyncio.wait([task], return_when=asyncio.FIRST_COMPLETED), True),
        (in_task, True),
        (lambda task: asyncio.wait([task], timeout=1000), False),
        (
            lambda task: asyncio.wait(
                [task, asyncio.create_task(asyncio.sleep(1000))], return_when=asyncio.FIRST_COMPLETED
            ),
            False,
        ),
        (lambda _: asyncio.gather(asyncio.sleep(1000)), False),
        (lambda _: asyncio.sleep(1000), False),
    ],
)
async def test_task_continues_after_a_task_that_it_awaits(
    await_task: Callable[[asyncio.Task[None]], Awaitable[Any]], does_wait: bool
) -> None:
    before = asyncio.all_tasks()
    awaited = asyncio.create_task(asyncio.sleep(1000))
    waiting = await begin(await_task, awaited)  # type: ignore[arg-type]
    assert continues_after(waiting, awaited) is does_wait
    assert not continues_after(awaited, waiting)
    for begun in asyncio.all_tasks() - before:
        begun.cancel()
        await asyncio.wait({begun})
