"""The output of a command where stdout has an encoding that lacks some characters."""

from __future__ import annotations

import io
import json
import sys

import pytest

from pg_scheduler import Scheduler
from tests.cli.conftest import Read
from tests.support.cases import each_case
from tests.support.inside import run_command

NAME = "zu spät: €, 😀"


@each_case("encoding", ["ascii", "iso-8859-1", "utf-8"])
@pytest.mark.parametrize("form", ["json", "table", "csv"])
def test_command_that_deletes_a_job_writes_escapes_for_what_stdout_lacks(
    encoding: str, form: str, dsn: str, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def add(scheduler: Scheduler) -> None:
        await scheduler.enqueue("work", job_id=NAME)

    read(add)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    assert run_command(["jobs", "list", "--dsn", dsn, "-o", form]) == 0
    text = written.getvalue().decode(encoding)
    if form == "json":
        assert json.loads(text)["items"][0]["job_id"] == NAME
    assert ("\\u20ac" in text) == (encoding != "utf-8")
    assert run_command(["jobs", "delete", NAME, "--yes", "--dsn", dsn, "-o", form]) == 0
