"""Tracebacks as blocks, with frames of libraries folded."""

from __future__ import annotations

import asyncio
import json

from pg_scheduler.dashboard.tracebacks import Frame, blocks_of, highlighted
from pg_scheduler.jobs.history import exception_entry
from tests.dashboard.client import Page

CHAINED = """Traceback (most recent call last):
  File "/app/acme/bank.py", line 41, in capture
    raise CardDeclined(f"card {card} declined")
acme.bank.CardDeclined: card 7 declined
in two lines

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/usr/lib/python3.11/asyncio/runners.py", line 190, in run
    return runner.run(main)
           ^^^^^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/httpx/_client.py", line 7, in send
    await send()
  [Previous line repeated 3 more times]
  File "C:\\app\\acme\\billing.py", line 84, in charge
    receipt = await bank.capture(account)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: no <b>receipt</b>
"""


def kinds(text: str) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in blocks_of(text)]


def test_chained_traceback_becomes_blocks() -> None:
    assert kinds(CHAINED) == [
        ("own", ""),
        ("message", "acme.bank.CardDeclined: card 7 declined\nin two lines"),
        ("separator", "caused"),
        ("library", "2 frames of asyncio and httpx"),
        ("own", ""),
        ("message", "ValueError: no <b>receipt</b>"),
    ]
    own = [each.frames[0] for each in blocks_of(CHAINED) if each.kind == "own"]
    assert [(each.folder, each.file, each.line, each.function) for each in own] == [
        ("acme/", "bank.py", 41, "capture"),
        ("acme\\", "billing.py", 84, "charge"),
    ]
    (library,) = [each for each in blocks_of(CHAINED) if each.kind == "library"]
    assert library.frames[1].lines == ["    await send()", "  [Previous line repeated 3 more times]"]


def test_frames_of_this_library_and_of_frozen_modules_are_folded() -> None:
    text = (
        '  File "/src/pg_scheduler/worker/runner.py", line 1, in run\n'
        '  File "<frozen importlib._bootstrap>", line 2, in _load\n'
        '  File "/src/pg_scheduler_shop/jobs.py", line 3, in mine\n'
    )
    assert kinds(text) == [("library", "2 frames of pg_scheduler and Python"), ("own", "")]


def test_frames_of_the_demo_are_those_of_an_application() -> None:
    text = (
        '  File "/venv/lib/python3.11/site-packages/pg_scheduler/worker/runner.py", line 1, in run\n'
        '  File "/venv/lib/python3.11/site-packages/pg_scheduler/cli/demo/jobs.py", line 55, in charge_card\n'
        '  File "C:\\lib\\pg_scheduler\\cli\\demo\\shop.py", line 46, in resize\n'
        '  File "/venv/lib/python3.11/site-packages/pg_scheduler/cli/jobs.py", line 3, in add\n'
    )
    assert kinds(text) == [
        ("library", "1 frame of pg_scheduler"),
        ("own", ""),
        ("own", ""),
        ("library", "1 frame of pg_scheduler"),
    ]


def test_text_without_frames_and_the_end_of_a_long_traceback_are_shown_whole() -> None:
    assert kinds("no traceback\nat all") == [("message", "no traceback\nat all")]
    assert kinds("") == []
    assert kinds('acme/bank.py", line 41, in capture\n    raise No\nNo: x') == [
        ("message", 'acme/bank.py", line 41, in capture\n    raise No\nNo: x')
    ]


def test_traceback_that_a_worker_stores_has_its_own_frame() -> None:
    async def charge() -> None:
        raise ValueError("declined")

    async def attempt() -> str:
        try:
            await charge()
        except ValueError as error:
            return str(json.loads(exception_entry("error", error))["traceback"])
        raise AssertionError

    blocks = blocks_of(asyncio.run(attempt()))
    assert [each.kind for each in blocks] == ["own", "own", "message"]
    assert [each.frames[0].function for each in blocks[:2]] == ["attempt", "charge"]


def test_code_is_highlighted_and_escaped() -> None:
    frame = Frame("x.py", 1, "f", ["    raise Error('<i>\u202e')", "    ~~~^^^"])
    html = str(highlighted(frame))
    page = Page(html)
    assert page.text == "    raise Error('<i>\\u202e')\n    ~~~^^^"
    assert {attrs["class"] for attrs in page.all("span")} >= {"k", "mark"}
    assert not page.all("i")
    assert all(set(attrs) == {"class"} for _, attrs in page.elements), "no inline style"
