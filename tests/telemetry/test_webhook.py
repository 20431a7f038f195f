"""The webhook of the doctor: what is sent, once in a cluster, and once more after a failure."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.cli.errors import UsageError
from pg_scheduler.cli.servers import doctor_webhook
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.inspect import Severity
from pg_scheduler.inspect.store.audit import AuditReadRepository
from pg_scheduler.telemetry import webhook as module
from pg_scheduler.telemetry.webhook import DoctorWebhook
from tests.support.logs import warnings_of
from tests.support.patience import PATIENCE
from tests.support.world import DAY, HOUR, World

SECRET = "/T000/B000/secret"
ONLY = ["WORKER-NONE"]


class Receiver:
    """A server that notes each message, and answers with the statuses that a test gives it."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.statuses: list[int] = []
        self.came = threading.Semaphore(0)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.statuses.pop(0) if receiver.statuses else 204
                receiver.messages.append((self.path, json.loads(body)))
                self.send_response(status)
                if status == 302:
                    self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()
                receiver.came.release()

            def do_GET(self) -> None:
                receiver.messages.append((self.path, "GET"))

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}{SECRET}"

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.came.acquire, timeout=PATIENCE)

    @property
    def changes(self) -> list[tuple[list[str], list[str]]]:
        """The codes that have appeared and are gone, by message."""
        return [
            ([each["code"] for each in sent["appeared"]], [each["code"] for each in sent["gone"]])
            for _, sent in self.messages
        ]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, daemon=True)
    thread.start()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()
    thread.join(PATIENCE)


@pytest.fixture
async def scheduler(pool: asyncpg.Pool) -> Scheduler:
    return Scheduler(pool)


@pytest.fixture
def make(scheduler: Scheduler, receiver: Receiver) -> Callable[..., DoctorWebhook]:
    def make(**arguments: Any) -> DoctorWebhook:
        return DoctorWebhook(scheduler, receiver.url, **{"only": ONLY, **arguments})

    return make


async def test_finding_is_sent_when_it_appears_and_when_it_is_gone(
    world: World, pool: asyncpg.Pool, make: Callable[..., DoctorWebhook], receiver: Receiver
) -> None:
    webhook = make(link="https://jobs.example.org/")
    await webhook.run_once()
    await webhook.run_once()
    ((path, message),) = receiver.messages
    assert path == SECRET
    assert (message["source"], message["webhook"], message["link"], message["gone"]) == (
        "pg_scheduler",
        "doctor",
        "https://jobs.example.org/",
        [],
    )
    (finding,) = message["appeared"]
    assert (finding["code"], finding["severity"], finding["remedy"]) == (
        "WORKER-NONE",
        "error",
        "start a worker",
    )
    await world.worker(started=-DAY, lease=HOUR)
    await webhook.run_once()
    assert len(receiver.messages) == 1, "one examination may have missed it"
    await webhook.run_once()
    await webhook.run_once()
    assert receiver.changes == [(ONLY, []), ([], ONLY)]
    assert receiver.messages[1][1]["gone"][0]["title"] == finding["title"]
    rows = await pool.fetch("SELECT * FROM scheduler_audit WHERE action = 'notify_findings' ORDER BY id")
    assert [(row["subject"], json.loads(row["details"])["appeared"]) for row in rows] == [
        ("doctor", ["WORKER-NONE workers"]),
        ("doctor", []),
    ]
    assert "secret" not in str(rows)


async def test_restart_sends_nothing_again_and_notices_what_is_gone(
    world: World, make: Callable[..., DoctorWebhook], receiver: Receiver
) -> None:
    await make().run_once()
    await make().run_once()
    assert receiver.changes == [(ONLY, [])]
    await make(name="other").run_once()
    assert receiver.changes == [(ONLY, [])] * 2, "each webhook sends every message"
    await world.worker(started=-DAY, lease=HOUR)
    webhook = make()
    for _ in range(2):
        await webhook.run_once()
    assert receiver.changes[2:] == [([], ONLY)]


async def test_one_of_several_processes_sends_and_another_one_takes_over(
    world: World, dsn: str, receiver: Receiver
) -> None:
    @asynccontextmanager
    async def process() -> AsyncIterator[DoctorWebhook]:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
            interval = timedelta(seconds=1)
            async with DoctorWebhook(Scheduler(pool), receiver.url, only=ONLY, interval=interval) as webhook:
                yield webhook

    async with process() as first:
        await receiver.wait()
        async with process() as second:
            await asyncio.sleep(3)  # the subject is real time: several examinations
            assert (first._sent_findings is None, second._sent_findings is None) == (False, True)
            await first.__aexit__(None, None, None)
            await world.worker(started=-DAY, lease=HOUR)
            await receiver.wait()
    assert receiver.changes == [(ONLY, []), ([], ONLY)]


async def test_message_is_sent_again_a_bounded_number_of_times(
    make: Callable[..., DoctorWebhook],
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSES_S", (0.0, 0.0))
    webhook = make()
    receiver.statuses = [503] * 3 + [500]
    await webhook.run_once()
    assert len(receiver.messages) == 3
    (warning,) = warnings_of(caplog)
    assert "'doctor' refused a message: status 503" in warning
    await webhook.run_once()
    assert len(receiver.messages) == 5, "the next examination sends it"
    await webhook.run_once()
    assert len(receiver.messages) == 5
    assert "secret" not in caplog.text


@pytest.mark.parametrize("status", [404, 302])
async def test_permanent_refusal_is_sent_once_in_an_examination(
    make: Callable[..., DoctorWebhook], receiver: Receiver, status: int
) -> None:
    receiver.statuses = [status]
    await make().run_once()
    assert [sent for sent in receiver.messages if sent[1] == "GET"] == [], "no redirection is followed"
    assert len(receiver.messages) == 1


async def test_server_that_is_away_is_reported_without_its_url(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSES_S", ())
    webhook = DoctorWebhook(scheduler, f"http://127.0.0.1:9{SECRET}", only=ONLY)
    await webhook.run_once()
    (warning,) = warnings_of(caplog)
    assert "ConnectionRefusedError" in warning
    assert "secret" not in caplog.text + repr(webhook)


async def test_slack_gets_a_text_without_its_marks(
    world: World, make: Callable[..., DoctorWebhook], receiver: Receiver
) -> None:
    await world.worker(names=["a<b>&"], started=-DAY, lease=HOUR)
    await world.job("late", "a<b>&", due=-HOUR)
    await make(format="slack", only=["LATE"], name="on call").run_once()
    ((_, message),) = receiver.messages
    assert list(message) == ["text"]
    head, line, *_ = message["text"].splitlines()
    assert head == "pg_scheduler, on call"
    assert line.startswith(":red_circle: *")
    assert "a&lt;b&gt;&amp;" in line
    assert "(LATE)" in line


async def test_muted_and_less_severe_findings_are_not_sent(
    world: World, make: Callable[..., DoctorWebhook], receiver: Receiver
) -> None:
    until = "2099-01-01T00:00:00+00:00"
    await world.audit("mute_finding", "WORKER-NONE workers", details={"until": until})
    await make().run_once()
    await world.audit("unmute_finding", "WORKER-NONE workers")
    await world.worker("dead", lease=-HOUR)
    await make(only=["WORKER-DEAD"], severity=Severity.ERROR).run_once()
    assert receiver.messages == []
    await make().run_once()
    assert len(receiver.messages) == 1


async def test_record_that_a_person_wrote_stops_nothing(
    world: World, make: Callable[..., DoctorWebhook], receiver: Receiver
) -> None:
    for odd in ({"open": "odd"}, {"open": [7, {}, {"id": 7, "code": []}]}):
        await world.audit("notify_findings", "doctor", details=odd)
        webhook = make()
        for _ in range(2):
            await webhook.run_once()
    assert receiver.changes[0] == (ONLY, [])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"format": "xml"}, "format must be"),
        ({"interval": timedelta(0)}, "interval must be"),
        ({"only": ["NO-SUCH-CODE"]}, "unknown code"),
        ({"name": "a\0"}, "name .* NUL"),
    ],
)
async def test_wrong_arguments_are_refused(
    make: Callable[..., DoctorWebhook], arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        make(**arguments)


@pytest.mark.parametrize("url", ["ftp://secret.example.org", "secret", "https://", "http://[secret"])
async def test_wrong_url_is_refused_without_showing_it(scheduler: Scheduler, url: str) -> None:
    with pytest.raises(ValueError, match="url must begin with") as raised:
        DoctorWebhook(scheduler, url)
    assert "secret.example" not in str(raised.value)


async def test_pool_of_two_connections_is_refused(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        with pytest.raises(ConfigurationError, match="max_size of 4"):
            DoctorWebhook(Scheduler(pool), "https://example.org")


async def test_tables_that_are_missing_yet_are_no_reason_to_refuse(
    pool: asyncpg.Pool, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    async with DoctorWebhook(Scheduler(pool, schema="later"), receiver.url) as webhook:
        await webhook._check_role()
    assert receiver.messages == []


async def test_role_that_loses_its_privileges_is_reported_and_sends_nothing(
    scheduler: Scheduler,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [True, False]
    has_answered = asyncio.Event()

    async def is_writable(_: object) -> bool:
        if not answers:
            has_answered.set()
        return bool(answers) and answers.pop(0)

    monkeypatch.setattr(AuditReadRepository, "is_writable", is_writable)
    async with DoctorWebhook(scheduler, receiver.url, only=ONLY, interval=timedelta(seconds=1)):
        await asyncio.wait_for(has_answered.wait(), PATIENCE)
    assert receiver.messages == []
    (warning,) = warnings_of(caplog)
    assert "the webhook 'doctor' waits: the database role may not read and write" in warning


async def test_commands_send_findings_if_the_environment_has_a_webhook(
    scheduler: Scheduler, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with doctor_webhook(scheduler):
        pass
    monkeypatch.setenv("PG_SCHEDULER_WEBHOOK_URL", receiver.url)
    async with doctor_webhook(scheduler):
        await receiver.wait()
    assert "WORKER-NONE" in receiver.changes[0][0]
    monkeypatch.setenv("PG_SCHEDULER_WEBHOOK_FORMAT", "xml")
    with pytest.raises(UsageError, match="format must be one of") as raised:
        async with doctor_webhook(scheduler):
            pass
    assert "secret" not in str(raised.value)


async def test_smallest_pool_suffices_for_a_whole_examination(dsn: str, receiver: Receiver) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=3) as pool,
        DoctorWebhook(Scheduler(pool), receiver.url),
    ):
        await receiver.wait()
    assert "WORKER-NONE" in receiver.changes[0][0]
