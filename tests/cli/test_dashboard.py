"""The command dashboard, as a process of its own and in this one."""

from __future__ import annotations

import base64
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import NamedTuple

import pytest

from pg_scheduler.cli import servers
from pg_scheduler.cli.servers import PASSWORD, USER
from tests.cli.conftest import Run
from tests.support.inside import ExitCode, hide_libraries
from tests.support.patience import PATIENCE
from tests.support.tables import rename

pytestmark = pytest.mark.slow


@contextmanager
def running(dsn: str, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """Start a dashboard; its process, its port and the path of its link."""
    command = [sys.executable, "-m", "pg_scheduler", "dashboard", "--port", "0", *options]
    environment = {**os.environ, "PG_SCHEDULER_DSN": dsn, **variables}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.fullmatch(r"serving http://127\.0\.0\.1:(\d+)(/.*)\n", line)
            assert found, line
            yield process, int(found[1]), found[2]
        finally:
            process.kill()


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def get(port: int, path: str, headers: Mapping[str, str] | None = None, *, method: str = "GET") -> Answer:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request(method, path, headers=dict(headers or {}))
        with connection.getresponse() as answer:
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


def test_link_works_once_and_its_cookie_until_a_signal(dsn: str) -> None:
    with running(dsn) as (process, port, path):
        assert get(port, "/").status == 403
        assert get(port, "/?token=wrong").status == 403
        assert get(port, "/?token=wrong", method="POST").status == 405
        first = get(port, path, method="POST")
        assert (first.status, first.headers["location"]) == (303, "/")
        cookie = first.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
        for method, status in (("GET", 403), ("POST", 405)):
            assert get(port, path, method=method).status == status, "the link was used"
        headers = {"cookie": cookie.partition(";")[0]}
        page = get(port, "/", headers)
        assert page.status == 200
        assert "server" not in page.headers
        assert b"No worker has started yet" in page.body
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
            connection.request("GET", "/live?page=/workers", headers=headers)
            with connection.getresponse() as stream:
                assert stream.readline() == b"retry: 1000\n"
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_link_is_used_up_by_its_button_only(dsn: str) -> None:
    with running(dsn) as (_, port, path):
        assert get(port, path, method="HEAD").body == b""
        for headers in ({}, {"sec-purpose": "prefetch;prerender"}, {"user-agent": "preview"}):
            shown = get(port, path, headers)
            assert (shown.status, "set-cookie" in shown.headers) == (200, False)
            assert "form-action 'self'" in shown.headers["content-security-policy"]
            form = re.search(r'<form method="post" action="([^"]+)"><button', shown.body.decode())
            assert form
            assert form[1] == path
        assert get(port, path, method="POST").status == 303


def test_link_leads_to_the_root_whatever_its_path(dsn: str) -> None:
    with running(dsn) as (_, port, path):
        for start in ("//evil.example", "/\\evil.example", "//evil.example/%2e%2e"):
            assert f'action="{path}"'.encode() in get(port, f"{start}{path}").body
        assert get(port, f"//evil.example{path}", method="POST").headers["location"] == "/"


def test_password_lets_in(dsn: str) -> None:
    with running(dsn, "--auth", "basic", **{PASSWORD: "secret", USER: "ada"}) as (process, port, path):
        assert (path, get(port, "/").status) == ("/", 401)
        right = base64.b64encode(b"ada:secret").decode()
        assert get(port, "/", {"authorization": f"Basic {right}"}).status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def test_dashboard_logs_why_a_page_could_not_be_shown(dsn: str) -> None:
    with running(dsn, "--auth", "basic", **{PASSWORD: "secret"}) as (process, port, _):
        rename(dsn, "priority")
        headers = {"authorization": f"Basic {base64.b64encode(b'admin:secret').decode()}"}
        status = get(port, "/jobs", headers).status
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        log = process.stderr.read()
    assert status == 503
    assert "priority" in log


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--auth", "basic"], PASSWORD),
        (["--auth", "none"], "token, basic or proxy:HEADER"),
        (["--auth", "proxy:"], "token, basic or proxy:HEADER"),
        (["--role", "root"], "--role must be viewer, operator or admin, not 'root'"),
    ],
)
def test_wrong_authorization_is_a_usage_error(
    options: list[str], text: str, call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PASSWORD, raising=False)
    ran = call("dashboard", "--dsn", dsn, "--port", "0", *options)
    assert ran.code == ExitCode.USAGE
    assert text in ran.err


def test_users_of_a_proxy_are_let_in() -> None:
    assert callable(servers._authorization("proxy:X-Auth-User", 1))


@pytest.mark.parametrize(("role", "status"), [(None, 403), ("operator", 400)])
def test_role_decides_what_a_user_may_do(dsn: str, role: str | None, status: int) -> None:
    chosen = ["--role", role] if role else []
    with running(dsn, "--auth", "basic", *chosen, **{PASSWORD: "secret"}) as (process, port, _):
        headers = {
            "authorization": f"Basic {base64.b64encode(b'admin:secret').decode()}",
            "content-type": "application/x-www-form-urlencoded",
        }
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
            connection.request("POST", "/actions/tasks/pause", "", headers)
            assert connection.getresponse().status == status, "400: the form has no task"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def test_used_port_is_refused(call: Run, dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = call("dashboard", "--dsn", dsn, "--port", str(port))
    assert ran.code == ExitCode.REFUSED
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in ran.err


def test_missing_extra_is_named(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_libraries(monkeypatch)
    ran = call("dashboard")
    assert ran.code == ExitCode.USAGE
    assert "pip install 'pg-scheduler[dashboard]'" in ran.err
