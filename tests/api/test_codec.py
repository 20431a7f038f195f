"""A codec encodes arguments, results and progress notes; plain jobs stay readable."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from pg_scheduler import (
    Abort,
    ConfigurationError,
    ConflictResolution,
    Job,
    JobCall,
    JobConflictError,
    JobSpec,
    JobStatus,
    Limit,
    PayloadError,
    ResultUnavailableError,
    ScheduledCall,
    Scheduler,
    Unique,
    current_job,
    job,
    periodic,
)
from pg_scheduler.events import Event, JobCompleted, JobFailed, JobProgressed, JobSuspended
from pg_scheduler.inspect import Inspector
from pg_scheduler.jobs.codec import PayloadCodec, check_codec
from pg_scheduler.jobs.payload import decode
from pg_scheduler.jobs.result import read_value
from pg_scheduler.jobs.step_values import step_value
from pg_scheduler.jobs.streams import published_value
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.testing import AsyncTestKit, TestScheduler
from pg_scheduler.triggers import Every
from tests.api.conftest import Make, Pools
from tests.api.test_cluster_events import until_wanted
from tests.support.cases import each_case
from tests.support.codecs import KeyedCodec, OtherCodec
from tests.support.worker import PATIENCE, Recorder
from tests.worker import processes

SECRET = "topsecret"
LATER = datetime(2099, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@job(name="codec.work")
async def work(value: Any, *, more: Any = None) -> Any:
    current_job().progress(1, 2, note=f"note {value}")
    return {"value": value, "more": more}


@job(name="codec.fail", on_failure="codec.alert")
async def fail(value: Any) -> None:
    raise ValueError("no")


@job(name="codec.alert")
async def alert(**details: Any) -> None: ...


async def dump(pool: asyncpg.Pool) -> str:
    """Return the text of every row of every table."""
    tables = await pool.fetch(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
    )
    rows = [row[0] for (name,) in tables for row in await pool.fetch(f"SELECT t::text FROM {name} AS t")]
    return "\n".join(rows)


async def read(scheduler: Scheduler, job_id: str) -> Job:
    found = await scheduler.get_job(job_id)
    assert found is not None
    return found


@pytest.mark.slow
async def test_no_table_has_plaintext_whatever_the_way_in(
    make: Make, pool: asyncpg.Pool, dsn: str, tmp_path: Path
) -> None:
    scheduler = make(codec=KeyedCodec("k1"), middleware=[Headers()])
    scheduler.register(processes.note, name="codec.process", executor="process")
    seen = Recorder(scheduler)
    await scheduler.start()
    args, kwargs = (SECRET,), {"more": {SECRET: [SECRET]}}
    given: dict[str, Any] = {"args": args, "kwargs": kwargs, "keep_result": HOUR}
    now = datetime.now(UTC)
    await scheduler.schedule(work, execution_time=now, metadata={"tag": "open"}, **given)
    await scheduler.schedule(work, execution_time=LATER, job_id="own", unique=Unique(), **given)
    await scheduler.schedule(
        work, execution_time=now, job_id="own", conflict_resolution=ConflictResolution.REPLACE, **given
    )
    await scheduler.enqueue(work, delay=0.01, **given)
    await scheduler.enqueue("codec.work", unique=Unique(per=HOUR), **given)
    await scheduler.schedule_job("codec.work", now, {"args": args, "kwargs": kwargs}, keep_result=HOUR)
    await scheduler.schedule_bulk([JobSpec(work, now, args, kwargs) for _ in range(3)])
    await scheduler.schedule_bulk([JobSpec(work, None, args, kwargs, job_id=f"b{n}") for n in range(3)])
    await scheduler.enqueue(fail, args=args)
    await scheduler.enqueue("codec.process", args=(str(tmp_path / "out"), SECRET), keep_result=HOUR)
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.enqueue(work, connection=connection, **given)
    async with await psycopg.AsyncConnection.connect(dsn) as session:
        await scheduler.enqueue(work, connection=session, **given)
    with psycopg.connect(dsn) as session_of_thread:
        SyncScheduler(codec=KeyedCodec("k1")).enqueue(work, connection=session_of_thread, **given)
    await scheduler.schedules.add(
        work, Every(hours=1), schedule_id="s", run_now=True, args=args, kwargs=kwargs, keep_result=HOUR
    )
    await scheduler.schedules.update("s", args=(SECRET,), metadata={"tag": "open"})
    await scheduler.schedules.trigger("s")
    await seen.until(JobCompleted, 18)  # the 16 jobs of work(), the process and the alert
    assert await scheduler.run_job(work, args=args) == {"value": SECRET, "more": None}
    text = await dump(pool)
    assert SECRET in (tmp_path / "out").read_text(encoding="utf-8")
    assert SECRET not in text
    assert base64.b64encode(SECRET.encode()).decode()[:-4] not in text
    for readable in ("codec.work", "own", '"open"', "sent", "ValueError: no"):
        assert readable in text.replace('""', '"'), readable
    jobs = await scheduler.list_jobs(limit=1000)
    assert {each.args for each in jobs if each.job_name == "codec.work"} == {args}
    done = [each for each in jobs if each.job_name == "codec.work" and each.progress is not None]
    assert {each.progress.note for each in done if each.progress} == {f"note {SECRET}"}
    (failure,) = [each for each in jobs if each.job_name == "codec.alert"]
    assert failure.kwargs["error"] == "ValueError: no"


class Headers:
    """Middleware that reads the arguments of what is scheduled."""

    def __init__(self) -> None:
        self.args: list[Any] = []

    async def __call__(self, call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return await call_next()

    def headers(self, call: ScheduledCall) -> dict[str, str]:
        self.args.append((call.args, call.kwargs))
        return {"header": "sent"}


async def test_middleware_and_executed_jobs_see_the_arguments(make: Make) -> None:
    headers = Headers()
    scheduler = make(codec=KeyedCodec("k1"), middleware=[headers])
    await scheduler.schedule(work, execution_time=LATER, args=(1,), kwargs={"more": 2})
    await scheduler.schedule_bulk([JobSpec(work, LATER, (3,))])
    assert headers.args == [((1,), {"more": 2}), ((3,), {})]


async def test_stored_form_is_an_object_under_args_beside_the_metadata(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make(codec=KeyedCodec("3fa9c210"))
    await scheduler.schedule(work, execution_time=LATER, args=(1,), metadata={"a": 1}, job_id="1")
    await scheduler.schedule(alert, execution_time=LATER, job_id="2")
    found = await pool.fetch("SELECT job_id, task_data::text FROM scheduled_jobs")
    rows = {row[0]: json.loads(row[1]) for row in found}
    assert rows["1"].keys() == {"args", "metadata"}
    assert rows["1"]["metadata"] == {"a": 1}
    assert rows["1"]["args"] | {"data": ""} == {"codec": "xor", "key": "3fa9c210", "data": ""}
    data = base64.b64decode(rows["1"]["args"]["data"], validate=True)
    assert json.loads(KeyedCodec("3fa9c210").decode(data, "codec.work")) == {"args": [1], "kwargs": {}}
    assert rows["2"] == {"args": [], "kwargs": {}}, "there is nothing to encode"


@pytest.mark.parametrize(
    ("codec", "problem"),
    [
        (None, "this Scheduler has no codec"),
        (OtherCodec("k1"), "this Scheduler has the codec 'rot'"),
        (KeyedCodec("k2"), "the codec here, with key k2, failed to decode it: LookupError"),
    ],
)
async def test_job_fails_without_retries_on_a_node_without_the_key_and_runs_once_that_is_deployed(
    codec: Any, problem: str, make: Make, pool: asyncpg.Pool
) -> None:
    client = make(codec=KeyedCodec("k1"))
    await client.schedule(
        work, execution_time=datetime.now(UTC), args=(SECRET,), max_retries=5, job_id="1", keep_result=HOUR
    )
    old = make(codec=codec)
    old.register(work)
    seen = Recorder(old)
    await old.start()
    (failed,) = await seen.until(JobFailed)
    assert f"encrypted with xor, key k1; {problem}" in failed.error
    assert SECRET not in await dump(pool)
    await old.shutdown()
    row = await read(old, "1")
    assert (row.status, row.attempt, row.args, problem in (row.no_args_reason or "")) == (
        JobStatus.FAILED, 1, (), True,
    )  # fmt: skip
    new = make(codec=KeyedCodec("k2", "k1"))
    new.register(work)
    await new.start()
    assert await new.retry_job("1")
    result = await new.get_job_result("1")
    assert result is not None
    assert result.unwrap() == {"value": SECRET, "more": None}
    assert (await read(new, "1")).no_args_reason is None


async def test_key_is_rotated_while_rows_have_the_old_one(make: Make) -> None:
    old, both, new = (make(codec=KeyedCodec(*keys)) for keys in (("k1",), ("k2", "k1"), ("k2",)))
    for number, scheduler in enumerate((old, both)):
        await scheduler.schedule(work, execution_time=LATER, args=(number,), job_id=str(number))
        await scheduler.schedules.add(work, Every(hours=1), args=(number,), schedule_id=str(number))
    assert [(await read(both, each)).args for each in "01"] == [(0,), (1,)]
    assert [(await read(new, each)).args for each in "01"] == [(), (1,)]
    await both.schedules.update("0", args=(0,), kwargs={})
    found = await new.schedules.get("0")
    assert found is not None
    assert found.args == (0,), "an update encodes with the new key"


async def test_codec_without_a_key_decodes_and_stores_plain_rows(make: Make, pool: asyncpg.Pool) -> None:
    reader, writer = make(codec=KeyedCodec("k1", encrypt=False)), make(codec=KeyedCodec("k1"))
    await reader.schedule(work, execution_time=LATER, args=("plain",), job_id="1")
    await reader.schedules.add(work, Every(hours=1), args=("plain",), schedule_id="1")
    assert (await dump(pool)).count("plain") == 3  # the job, the schedule, and its record in the audit
    await writer.schedule(work, execution_time=LATER, args=(2,), job_id="2")
    assert [(await read(each, "2")).args for each in (reader, writer)] == [(2,), (2,)]
    assert [(await read(each, "1")).args for each in (reader, writer, make())] == [("plain",)] * 3


async def test_size_limits_count_the_encoded_text(make: Make) -> None:
    scheduler = make(codec=KeyedCodec("k1"), max_payload_bytes=200, max_result_bytes=200)
    await make(max_payload_bytes=200).schedule(work, execution_time=LATER, args=("x" * 150,))
    with pytest.raises(PayloadError, match="more than max_payload_bytes = 200"):
        await scheduler.schedule(work, execution_time=LATER, args=("x" * 150,))
    with pytest.raises(PayloadError, match="more than max_payload_bytes = 200"):
        await scheduler.schedules.add(work, Every(hours=1), args=("x" * 150,))
    scheduler.register(large, name="codec.large")
    await scheduler.start()
    with pytest.raises(ResultUnavailableError, match="more than max_result_bytes = 200"):
        await scheduler.run_job("codec.large")


async def large() -> str:
    return "x" * 150


async def test_unique_jobs_exclude_one_another_by_their_arguments_before_encoding(make: Make) -> None:
    rule: dict[str, Any] = {"unique": Unique(args=("value",)), "execution_time": LATER}
    plain, first, second = make(), make(codec=KeyedCodec("k1")), make(codec=KeyedCodec("k2"))
    await first.schedule(work, args=(1,), kwargs={"more": 1}, **rule)
    for scheduler in (plain, first, second):
        with pytest.raises(JobConflictError):
            await scheduler.schedule(work, args=(1,), kwargs={"more": 2}, **rule)
        with pytest.raises(JobConflictError):
            await scheduler.schedule_bulk(
                [JobSpec(work, LATER, (), {"value": 1}, unique=rule["unique"])],
                conflict_resolution=ConflictResolution.RAISE,
            )


async def test_limits_receive_decoded_arguments(make: Make) -> None:
    async def call(account: str) -> str:
        return account

    scheduler = make(codec=KeyedCodec("k1"))
    limit = Limit("codec", max_running=1, key=lambda account: account)
    scheduler.register(call, name="codec.limited", limits=[limit])
    await scheduler.start()
    assert await scheduler.run_job("codec.limited", args=("a",)) == "a"


# -- schedules -----------------------------------------------------------------------------------------


async def test_schedule_with_the_same_arguments_is_kept_and_one_with_another_key_is_encoded_again(
    make: Make,
) -> None:
    options: dict[str, Any] = {
        "schedule_id": "s", "args": (SECRET,), "conflict_resolution": ConflictResolution.REPLACE,
    }  # fmt: skip
    old, new = make(codec=KeyedCodec("k1")), make(codec=KeyedCodec("k2", "k1"))
    await old.schedules.add(work, Every(hours=1), **options)
    assert (await old.schedules.add(work, Every(hours=1), **options)).version == 1
    assert (await new.schedules.add(work, Every(hours=1), **options)).version == 2
    assert (await new.schedules.add(work, Every(hours=1), **(options | {"args": (2,)}))).version == 3
    updated = await new.schedules.update("s", kwargs={"more": 1})
    assert (updated.args, updated.kwargs) == ((2,), {"more": 1})
    reader = make(codec=KeyedCodec("k2", encrypt=False))
    same = await reader.schedules.add(work, Every(hours=1), **options | {"args": (2,), "kwargs": {"more": 1}})
    assert same.version == updated.version, (
        "a codec that decodes only stores the same arguments no longer plain"
    )


async def test_schedule_is_read_without_arguments_where_the_codec_is_missing(make: Make) -> None:
    await make(codec=KeyedCodec("k1")).schedules.add(work, Every(hours=1), args=(1,), schedule_id="s")
    found = await make().schedules.get("s")
    assert found is not None
    assert (found.args, found.kwargs) == ((), {})
    assert found.no_args_reason == "encrypted with xor, key k1; this Scheduler has no codec: pass codec="
    with pytest.raises(PayloadError, match="encrypted with xor, key k1"):
        await make().schedules.update("s", args=(2,))
    assert (await make().schedules.update("s", args=(2,), kwargs={})).args == (2,)


async def test_node_without_the_codec_passes_the_arguments_of_a_schedule_on(make: Make) -> None:
    client = make(codec=KeyedCodec("k1"))
    await client.schedules.add(work, Every(hours=1), args=(SECRET,), schedule_id="s")
    job_id = await make().schedules.trigger("s")
    assert job_id is not None
    assert (await read(client, job_id)).args == (SECRET,)
    found = await client.schedules.get("s")
    assert found is not None
    assert found.paused_at is None


# -- reading -------------------------------------------------------------------------------------------


async def test_search_finds_no_encoded_arguments_and_shows_them_with_the_codec_only(make: Make) -> None:
    with_codec, without = make(codec=KeyedCodec("k1")), make()
    await with_codec.schedule(work, execution_time=LATER, args=("ada",), kwargs={"more": 1}, job_id="1")
    for scheduler in (with_codec, without):
        for text in ("arg.0:ada", "arg.more:1", "arg.codec:xor", "arg.key:k1"):
            assert not (await Inspector(scheduler).search_jobs(text)).items, text
    (shown,) = (await Inspector(with_codec).search_jobs("id:1")).items
    assert (shown.args, shown.no_args_reason) == (("ada",), None)
    (hidden,) = (await Inspector(without).search_jobs("id:1")).items
    assert (hidden.args, hidden.kwargs) == ((), {})
    assert (hidden.no_args_reason or "").startswith("encrypted with xor, key k1")


async def test_result_and_note_are_read_with_the_codec_only(make: Make) -> None:
    scheduler = make(codec=KeyedCodec("k1"))
    await scheduler.start()
    job_id = await scheduler.enqueue(work, args=(SECRET,), keep_result=HOUR)
    own = await scheduler.get_job_result(job_id)
    assert own is not None
    assert own.unwrap()["value"] == SECRET
    other = make()
    result = await other.get_job_result(job_id, wait=False)
    assert result is not None
    assert (result.value, result.status) == (None, JobStatus.COMPLETED)
    assert (result.no_value_reason or "").startswith("encrypted with xor, key k1")
    progress = (await read(other, job_id)).progress
    assert progress is not None
    assert (progress.done, progress.note) == (
        1, "encrypted with xor, key k1; this Scheduler has no codec: pass codec=",
    )  # fmt: skip


async def test_value_that_looks_encoded_is_returned_as_it_is(make: Make) -> None:
    value = {"codec": "xor", "key": "k1", "data": "AAAA"}
    for scheduler in (make(), make(codec=KeyedCodec("k1"))):
        async with scheduler:
            assert (await scheduler.run_job(work, args=(value,)))["value"] == value
            scheduler.register(echo, name="codec.echo")
            assert await scheduler.run_job("codec.echo", args=(value,)) == value


async def echo(value: Any) -> Any:
    return value


async def test_progress_event_of_another_node_has_no_note(make: Make, pools: Pools) -> None:
    local, remote = make(await pools(5), codec=KeyedCodec("k1")), make(await pools(5), role="observer")
    await remote.start()
    await local.start()
    received: asyncio.Queue[Event] = asyncio.Queue()
    remote.subscribe(received.put_nowait, JobProgressed, cluster=True)
    await until_wanted(local, "JobProgressed")
    seen = Recorder(local)
    job_id = await local.enqueue(work, args=(SECRET,))
    (sent,) = await seen.until(JobProgressed)
    async with asyncio.timeout(PATIENCE):
        found = await received.get()
    assert sent == JobProgressed(job_id, "codec.work", 1, done=1, total=2, note=f"note {SECRET}")
    assert found == replace(sent, note=None)


# -- test kits -----------------------------------------------------------------------------------------


async def test_test_kits_use_the_codec_of_their_scheduler(dsn: str, pool: asyncpg.Pool) -> None:
    async with TestScheduler(dsn, codec=KeyedCodec("k1")) as t:
        await t.scheduler.enqueue(work, args=(SECRET,))
        t.assert_scheduled(work, args=(SECRET,))
        assert SECRET not in await dump(pool)
        assert await t.drain() == 1
    like = Scheduler(pool, codec=KeyedCodec("k1"))
    async with pool.acquire() as connection, connection.transaction():
        kit = AsyncTestKit(connection, scheduler=like)
        await kit.scheduler.enqueue(work, args=(SECRET,), job_id="kit")
        await kit.assert_scheduled(work, args=(SECRET,))
        stored = await connection.fetchval("SELECT task_data::text FROM scheduled_jobs WHERE job_id = 'kit'")
        assert SECRET not in stored
        assert (await kit.drain()).completed == 1
        assert (await kit.run(work, SECRET))["value"] == SECRET


# -- codecs that misbehave -----------------------------------------------------------------------------


class Broken(KeyedCodec):
    """Does something else from a call on."""

    def __init__(self, act: Callable[[], Any], *, encode: bool = False, decode: bool = False) -> None:
        super().__init__("k1")
        self.act, self.encodes, self.decodes = act, encode, decode

    def encode(self, data: bytes, job_name: str) -> bytes:
        return self.act() if self.encodes else super().encode(data, job_name)

    def decode(self, data: bytes, job_name: str) -> bytes:
        return self.act() if self.decodes else super().decode(data, job_name)


def raising(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Unstorable(Exception):
    __qualname__ = "a\x00b"


MISDEEDS = [
    raising(ValueError(SECRET)),
    raising(Unprintable()),
    raising(Unstorable()),
    raising(SystemExit(1)),
    raising(asyncio.CancelledError()),
    raising(GeneratorExit()),
    lambda: SECRET,
    lambda: bytearray(b"x"),
    lambda: None,
]


@pytest.mark.parametrize("act", MISDEEDS)
async def test_codec_that_fails_to_encode_ends_its_call_only(
    act: Callable[[], Any], make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make(codec=Broken(act, encode=True))
    async with pool.acquire() as connection, connection.transaction():
        with pytest.raises(PayloadError, match="codec 'xor' failed to encode") as caught:
            await scheduler.enqueue(work, args=(1,), connection=connection)
        assert SECRET not in str(caught.value)
        await scheduler.enqueue(alert, connection=connection)
    with pytest.raises(PayloadError):
        await scheduler.schedule_bulk([JobSpec(alert, LATER), JobSpec(work, LATER, (1,))])
    with pytest.raises(PayloadError):
        await scheduler.schedules.add(work, Every(hours=1), args=(1,))
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1


@pytest.mark.parametrize(
    "act", [*MISDEEDS, lambda: b"\xff", lambda: b"[]", lambda: b"{", lambda: b'{"args": 1}']
)
async def test_codec_that_fails_to_decode_ends_its_attempt_only(
    act: Callable[[], Any], make: Make, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make(codec=Broken(act, decode=True))
    scheduler.register(work)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue(work, args=(1,), max_retries=3, job_id="1", keep_result=HOUR)
    (failed,) = await seen.until(JobFailed)
    assert failed.error.startswith(
        "PayloadError: encrypted with xor, key k1; the codec here, with key k1, failed"
    )
    for found in (failed.error, await dump(pool), caplog.text):
        assert SECRET not in found, "an exception of a codec may quote the data"
    row = await read(scheduler, "1")
    assert (row.args, row.attempt, row.no_args_reason is None) == ((), 1, False)
    plain = await make().enqueue(work, args=(1,))
    await seen.until(JobCompleted, job_id=plain)


def stored_value(job_name: str | None = None) -> str:
    """Return an encoded value as a row has it."""
    encoded = KeyedCodec("k1").encode(b"7", "codec.work")
    envelope = {"codec": "xor", "key": "k1", "data": base64.b64encode(encoded).decode()}
    return json.dumps(envelope if job_name is None else {**envelope, "job_name": job_name})


READERS: dict[str, Callable[[PayloadCodec], Any]] = {
    "arguments": lambda codec: decode(f'{{"args": {stored_value()}}}', codec, "codec.work"),
    "result": lambda codec: read_value(stored_value("codec.work"), "encoded", codec)[1],
    "step": lambda codec: step_value("a", stored_value("codec.work"), codec),
    "stream": lambda codec: published_value("7", "words", stored_value("codec.work"), codec),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("data", [f"[{SECRET}".encode(), b"[" * 100_000])
def test_every_value_that_a_codec_decodes_to_other_data_names_the_codec_and_the_key(
    reader: str, data: bytes
) -> None:
    codec = check_codec(Broken(lambda: data, decode=True))
    assert codec is not None
    try:
        message = str(READERS[reader](codec))
    except (PayloadError, Abort) as error:
        message = str(error)
    text = "encrypted with xor, key k1; the codec here, with key k1, failed to decode it: the result is not"
    assert text in message
    assert SECRET not in message


@pytest.mark.parametrize("act", MISDEEDS)
async def test_codec_that_fails_to_encode_costs_a_job_its_value_and_note_only(
    act: Callable[[], Any], make: Make
) -> None:
    scheduler = make(codec=Broken(act, encode=True))
    scheduler.register(work)
    await scheduler.start()
    job_id = await make().enqueue(work, args=(1,), keep_result=HOUR)
    result = await scheduler.get_job_result(job_id)
    assert result is not None
    assert (result.status, result.value) == (JobStatus.COMPLETED, None)
    assert (result.no_value_reason or "").startswith("codec 'xor' failed to encode")
    progress = (await read(scheduler, job_id)).progress
    assert progress is not None
    assert (progress.note or "").startswith("codec 'xor' failed to encode")


async def test_codec_that_fails_to_encode_keeps_no_alert_from_being_enqueued(make: Make) -> None:
    scheduler = make(codec=Broken(raising(ValueError()), encode=True))
    scheduler.register(fail)
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await make().enqueue(fail, args=(1,))
    await seen.until(JobFailed, job_id=job_id)
    await seen.until(JobCompleted, job_id=f"{job_id}:failed")


@each_case(
    ("codec", "error", "message"),
    [
        (object(), TypeError, "codec must be an object with name, key_id, encode() and decode(), not object"),
        (KeyedCodec, TypeError, "codec must be an object"),
        ("fernet", TypeError, "codec must be an object"),
        (
            type("C", (KeyedCodec,), {"encode": lambda _, data: data})("k"),
            TypeError,
            "encode() of the codec must take the data and the name of the job, not (data); write def ",
        ),
        (
            type("C", (KeyedCodec,), {"decode": lambda *_, key: key})("k"),
            TypeError,
            "decode() of the codec must take the data and the name of the job, not (*_, key); write def ",
        ),
        (type("C", (KeyedCodec,), {"name": ""})("k"), ConfigurationError, "name of the codec must be a text"),
        (type("C", (KeyedCodec,), {"name": 1})("k"), ConfigurationError, "name of the codec must be a text"),
        (KeyedCodec(""), ConfigurationError, "key_id of the codec must be None or a text"),
        (KeyedCodec(b"k"), ConfigurationError, "key_id of the codec must be None or a text of 1"),  # type: ignore[arg-type]
        (KeyedCodec("k\ud800"), ConfigurationError, "key_id of the codec must be None or a text of 1 to 80"),
        (KeyedCodec("k\x00"), ConfigurationError, "key_id of the codec must be None or a text of 1 to 80"),
        (KeyedCodec("k" * 81), ConfigurationError, "key_id of the codec must be None or a text of 1 to 80"),
        (
            type("C", (KeyedCodec,), {"name": "я"})("k"),
            ConfigurationError,
            "name of the codec must be a text",
        ),
    ],
)
def test_object_that_is_no_codec_is_rejected(codec: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        SyncScheduler(codec=codec)
    assert str(caught.value).startswith(message)


async def test_signal_to_a_job_of_a_periodic_function_is_decoded_by_the_name_of_its_task(
    make: Make,
) -> None:
    values = []

    @periodic(every=timedelta(days=999), dedup_key="approve")
    async def approve() -> None:
        values.append(await current_job().steps.wait("approved"))

    scheduler = make(codec=KeyedCodec("k1"))
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.trigger_periodic_job("approve")
    assert job_id is not None
    await seen.until(JobSuspended, job_id=job_id)
    await scheduler.signal(job_id, "approved", SECRET)
    await seen.until(JobCompleted, job_id=job_id)
    assert values == [SECRET]
