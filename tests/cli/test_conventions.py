"""Settings, formats, exit codes and messages, which all commands share."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import jsonschema
import pytest

from pg_scheduler.base.dsn import mask_dsn
from pg_scheduler.cli.errors import CommandError, exit_code_of
from pg_scheduler.cli.main import FUNCTIONS, run
from pg_scheduler.cli.main import program as program_of_commands
from pg_scheduler.cli.output import Column, Output, Shape, read_zone
from pg_scheduler.errors import JobNotFoundError
from tests.cli.conftest import Run, schema
from tests.docs.snippets import ROOT
from tests.support import inside
from tests.support.golden import golden
from tests.support.inside import ExitCode, normalise_dsn
from tests.support.stories import LONG

SECRET = "s3cr3t-w0rd"
UNREACHABLE = f"postgresql://app:{SECRET}@127.0.0.1:1/app"


@dataclass(frozen=True, slots=True)
class Example:
    """An object that a command writes."""

    name: str
    count: int
    note: str | None


SHAPE = Shape(
    "example",
    Example,
    (Column("name", "NAME"), Column("count", "COUNT"), Column("note", "NOTE", is_wide=True)),
)
OBJECTS = [Example("ada", 1, None), Example("grace", 20, 'two "words"')]
ROWS = [
    {"v": 1, "name": "ada", "count": 1, "note": None},
    {"v": 1, "name": "grace", "count": 20, "note": 'two "words"'},
]


def program(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "pg_scheduler", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=50)


def written(format_: str | None, values: Sequence[Example | Mapping[str, object]] = OBJECTS) -> str:
    out = io.StringIO()
    Output(format_, UTC, out=out).write_list(SHAPE, values)  # type: ignore[arg-type]
    return out.getvalue()


class TestSettings:
    def test_option_wins_over_variable_over_file_over_default(
        self, call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def origin(*options: str) -> tuple[str | None, str]:
            (line,) = (each for each in call("config", *options).checked("setting") if each["name"] == "dsn")
            return line["value"], line["origin"]

        assert origin() == (None, "libpq: PGHOST, PGSERVICE, ~/.pgpass ...")
        file = tmp_path / "pyproject.toml"
        file.write_text('[tool.pg-scheduler]\ndsn = "postgres://file/x"\nschema = "jobs"\n', encoding="utf-8")
        assert origin() == ("postgresql://file/x", str(file))
        monkeypatch.setenv("DATABASE_URL", "postgresql+asyncpg://web/x?ssl=require")
        assert origin() == ("postgresql://web/x?ssl=require", "DATABASE_URL")
        monkeypatch.setenv("PG_SCHEDULER_DSN", "postgresql://own/x")
        assert origin() == ("postgresql://own/x", "PG_SCHEDULER_DSN")
        assert origin("--dsn", "postgres://option/x") == ("postgresql://option/x", "--dsn")

    def test_options_before_the_command_apply_and_later_ones_win(self, call: Run) -> None:
        ran = call("--schema", "one", "--tz", "utc", "config", "--schema", "two", "-o", "jsonl")
        values = {line["name"]: line["value"] for line in ran.lines}
        assert (values["schema"], values["tz"]) == ("two", "utc")

    def test_file_of_a_parent_folder_is_read(
        self, call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pyproject.toml").write_text('[tool.pg-scheduler]\noutput = "csv"\n', encoding="utf-8")
        (tmp_path / "deep").mkdir()
        monkeypatch.chdir(tmp_path / "deep")
        assert call("config").out.startswith("name,value,origin\n")

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ('shema = "x"', "did you mean schema?"),
            ('colour = "x"', "known keys: dsn,"),
            ("schema = 3", "must be a text"),
            ("schema", "cannot be read"),
        ],
    )
    def test_invalid_file_is_a_usage_error(self, call: Run, tmp_path: Path, table: str, message: str) -> None:
        (tmp_path / "pyproject.toml").write_text(f"[tool.pg-scheduler]\n{table}\n", encoding="utf-8")
        ran = call("config")
        assert ran.code == ExitCode.USAGE
        assert message in ran.err

    @pytest.mark.parametrize(
        ("dsn", "masked"),
        [
            ("postgresql://h/x", "postgresql://h/x"),
            ("postgresql://a@h/x", "postgresql://a@h/x"),
            (f"postgresql://a:{SECRET}@h/x", "postgresql://a:***@h/x"),
            (f"postgresql://a:{SECRET}@one,two/x", "postgresql://a:***@one,two/x"),
            (f"postgresql:///x?user=a&password={SECRET}", "postgresql:///x?user=a&password=***"),
        ],
    )
    def test_passwords_of_a_dsn_are_masked(self, dsn: str, masked: str) -> None:
        assert mask_dsn(normalise_dsn(dsn, "dsn")) == masked

    @pytest.mark.parametrize(
        "dsn",
        [
            f"mysql://a:{SECRET}@h",
            f"host=x password={SECRET}",
            f"postgresql://[{SECRET}",
            f"postgresql://a:{SECRET}#x@h/y",
            f"postgresql://a:{SECRET}?x@h/y",
            f"postgresql://a:{SECRET}/x@h/y",
            f"postgresql://a:12?{SECRET}@h/y",
            f"postgresql://a:12/{SECRET}?x=1@h/y",
            f"postgresql://a:p@{SECRET}:1@h/y",
            f"postgresql://a:[{SECRET}@h/y",
            f"postgresql://a:{SECRET}",
            f"postgresql://h/y?password=p@{SECRET}",
            f"postgresql://h/y?password=p&{SECRET}",
            f"postgresql://a:{SECRET}@h:99999/y",
            f"postgresql://a:{SECRET}@h:5432,[::1]:0/y",
        ],
    )
    def test_invalid_dsn_is_a_usage_error_that_does_not_quote_it(self, call: Run, dsn: str) -> None:
        ran = call("migrate", "--check", "--dsn", dsn)
        assert ran.code == ExitCode.USAGE
        assert "the DSN from --dsn" in ran.err
        assert SECRET not in ran.out + ran.err

    @pytest.mark.parametrize(
        "source", ["PG_SCHEDULER_DSN", "DATABASE_URL", "PG_SCHEDULER_DIRECT_DSN", "file"]
    )
    @pytest.mark.parametrize(
        "command", ["config", "migrate --check", "jobs list", "worker os", "doctor", "exporter", "demo"]
    )
    def test_commands_omit_the_password_of_a_dsn_with_a_raw_at_sign(
        self, call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, command: str
    ) -> None:
        dsn = f"postgresql://app:p@{SECRET}:1@127.0.0.1:5432/shop"
        for variable in ("PG_SCHEDULER_DSN", "DATABASE_URL"):
            monkeypatch.delenv(variable, raising=False)
        if source == "file":
            (tmp_path / "pyproject.toml").write_text(
                f"[tool.pg-scheduler]\ndsn = {json.dumps(dsn)}\n", encoding="utf-8"
            )
        else:
            monkeypatch.setenv(source, dsn)
        ran = call(*command.split())
        assert ran.code == ExitCode.USAGE
        assert "@ as %40" in ran.err
        assert SECRET not in ran.out + ran.err

    @pytest.mark.parametrize(
        "table", ['[tool]\npg-scheduler = "{}"\n', '[tool.pg-scheduler]\ndirect-dsn = ["{}"]\n']
    )
    def test_file_with_a_dsn_of_another_type_is_not_quoted(
        self, call: Run, tmp_path: Path, table: str
    ) -> None:
        (tmp_path / "pyproject.toml").write_text(
            table.format(f"postgresql://a:{SECRET}@h/x"), encoding="utf-8"
        )
        ran = call("config")
        assert ran.code == ExitCode.USAGE
        assert SECRET not in ran.out + ran.err


class TestFormats:
    def test_lists_in_every_format(self) -> None:
        assert json.loads(written("json")) == {"v": 1, "items": ROWS}
        assert [json.loads(line) for line in written("jsonl").splitlines()] == ROWS
        assert written(None) == written("jsonl")
        assert written("csv") == 'name,count,note\nada,1,\ngrace,20,"two ""words"""\n'
        assert written("ids") == "ada\ngrace\n"
        assert written("table") == "NAME   COUNT\nada        1\ngrace     20\n"
        assert written("wide") == 'NAME   COUNT  NOTE\nada        1  -\ngrace     20  two "words"\n'
        assert written("ids", []) == written("csv", []) == ""
        assert written("table", []) == "NAME  COUNT\n"

    def test_json_document_of_a_list_fits_its_schema(self) -> None:
        jsonschema.validate(json.loads(written("json")), schema("list"))

    def test_control_characters_do_not_reach_a_terminal(self) -> None:
        hostile = "\x1b[31mred\u202egnp\n\x00"
        table = written("table", [{"v": 1, "name": hostile, "count": 1, "note": None}])
        assert table == "NAME                        COUNT\n\\x1b[31mred\\u202egnp\\n\\x00      1\n"
        (line,) = written("jsonl", [{"v": 1, "name": hostile}]).splitlines()
        assert json.loads(line)["name"] == hostile

    def test_times_are_utc_in_data_and_local_to_the_zone_in_tables(self) -> None:
        row = {
            "v": 1,
            "name": datetime(2027, 1, 2, 3, tzinfo=UTC),
            "count": timedelta(minutes=1),
            "note": True,
        }
        assert written("jsonl", [row]) == (
            '{"v": 1, "name": "2027-01-02T03:00:00Z", "count": 60.0, "note": true}\n'
        )
        out = io.StringIO()
        Output("table", read_zone("Asia/Kolkata"), out=out).write_list(SHAPE, [row])
        assert "2027-01-02 08:30:00+05:30" in out.getvalue()

    @pytest.mark.parametrize(
        ("zone", "instant"),
        [
            ("Asia/Kolkata", "9999-12-31 23:59:59+00:00"),
            ("America/New_York", "0001-01-01 01:00:00+00:00"),
        ],
    )
    def test_time_that_the_zone_moves_out_of_the_calendar_is_shown_in_utc(
        self, zone: str, instant: str
    ) -> None:
        assert Output("table", read_zone(zone)).when(datetime.fromisoformat(instant)) == instant

    @pytest.mark.parametrize("variable", ["Asia/Kolkata", ":Asia/Kolkata"])
    def test_local_zone_is_that_of_the_variable_with_or_without_a_colon(
        self, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        monkeypatch.setenv("TZ", variable)
        assert read_zone("local") == ZoneInfo("Asia/Kolkata")

    @pytest.mark.parametrize("option", [("-o", "yaml"), ("--tz", "Mars/Base")])
    def test_unknown_format_or_zone_is_a_usage_error(self, call: Run, option: tuple[str, str]) -> None:
        ran = call("config", *option)
        assert ran.code == ExitCode.USAGE
        assert repr(option[1]) in ran.err

    @pytest.mark.parametrize("width", [80, 200])
    def test_config_table_fits_the_width(
        self, call: Run, width: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        ran = call(
            "config",
            "-o",
            "table",
            "--dsn",
            "postgresql://app:x@db-one.example.com,db-two.example.com/shop",
            "--schema",
            "jobs",
        )
        file = ROOT / "tests" / "cli" / "golden" / f"config-{width}.txt"
        assert ran.out == golden(file, ran.out)


class TestProgram:
    def test_version_is_printed_as_option_and_as_command(self, call: Run) -> None:
        from pg_scheduler import __version__

        assert call("--version").out == f"pg-scheduler {__version__}\n"
        document = json.loads(call("version").out)
        jsonschema.validate(document, schema("version"))
        assert document["version"] == __version__
        assert call("version", "-o", "table").out.splitlines()[0].split() == ["pg_scheduler", __version__]
        assert call("version", "-o", "ids").out == f"{__version__}\n"

    @pytest.mark.parametrize(
        "arguments", [(), ("nothing",), ("migrate", "nothing"), ("config", "--nothing"), ("migrate", "down")]
    )
    def test_wrong_usage_exits_with_2(self, call: Run, arguments: tuple[str, ...]) -> None:
        ran = call(*arguments)
        assert ran.code == ExitCode.USAGE
        assert "Usage: pg-scheduler" in ran.err
        assert not ran.out

    def test_unavailable_database_exits_with_5_and_hides_the_password(self, call: Run) -> None:
        ran = call("migrate", "--dsn", UNREACHABLE)
        assert ran.code == ExitCode.UNAVAILABLE
        assert "ConnectionRefusedError" in ran.err
        assert "the DSN is postgresql://app:***@127.0.0.1:1/app, from --dsn" in ran.err
        assert SECRET not in ran.err

    @pytest.mark.parametrize(
        ("dsn", "host", "origin"),
        [
            ("postgresql://postgres@127.0.0.1:1,/t", None, "the DSN from --dsn"),
            ("postgresql://postgres@/t?host=127.0.0.1,", None, "host= of the DSN from --dsn"),
            ("postgresql://postgres@/t", "127.0.0.1,", "PGHOST"),
        ],
    )
    def test_empty_host_among_several_exits_with_2(
        self, call: Run, monkeypatch: pytest.MonkeyPatch, dsn: str, host: str | None, origin: str
    ) -> None:
        if host is not None:
            monkeypatch.setenv("PGHOST", host)
        ran = call("status", "--dsn", dsn)
        assert ran.code == ExitCode.USAGE
        message = f"{origin} has 2 hosts separated by commas, of which number 2 is empty; write that host"
        assert message in " ".join(ran.err.split())

    def test_without_a_dsn_the_error_names_the_setting(
        self, call: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PGHOST", "127.0.0.1")
        monkeypatch.setenv("PGPORT", "1")
        ran = call("jobs", "list")
        assert ran.code == ExitCode.UNAVAILABLE
        assert "no DSN is set: pass --dsn" in ran.err

    def test_search_term_that_looks_like_an_option_is_explained(self, call: Run) -> None:
        ran = call("jobs", "list", "-name:shop.*")
        assert ran.code == ExitCode.USAGE
        assert "put -- before the terms of a search: -- -name:shop.*" in ran.err

    def test_rejected_role_exits_with_4(self, call: Run, dsn: str) -> None:
        ran = call("migrate", "--check", "--dsn", dsn.replace("postgres@", f"nobody:{SECRET}@"))
        assert ran.code == ExitCode.REFUSED, ran.err
        assert "the server rejected a connection" in ran.err
        assert SECRET not in ran.err

    def test_unknown_job_maps_to_3_and_bugs_keep_their_traceback(self) -> None:
        assert exit_code_of(JobNotFoundError("x")) is ExitCode.NOT_FOUND
        assert exit_code_of(CommandError(ExitCode.TIMEOUT, "late")) is ExitCode.TIMEOUT
        assert exit_code_of(RuntimeError("bug")) is None

    def test_program_without_its_extra_names_it(self, tmp_path: Path) -> None:
        code = (
            "import importlib.util as u, sys; find = u.find_spec\n"
            "u.find_spec = lambda name, *rest: None if name == 'typer' else find(name, *rest)\n"
            "from pg_scheduler.__main__ import main; sys.exit(main())"
        )
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == ExitCode.USAGE
        assert ran.stderr == (
            "pg-scheduler: the command line needs typer; install the extra: pip install 'pg-scheduler[cli]'\n"
        )

    @pytest.mark.slow
    def test_command_is_imported_when_it_is_used(self) -> None:
        code = (
            "import sys; from pg_scheduler.cli.main import run\n"
            "code = run(sys.argv[1:])\n"
            "print(*sorted({'rich', 'pg_scheduler.inspect', 'pg_scheduler.cli.jobs'} & set(sys.modules)))"
        )

        def imported(*arguments: str) -> str:
            command = [sys.executable, "-c", code, *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            return ran.stdout.splitlines()[-1]

        assert imported("version") == imported("completion", "show", "bash") == ""
        assert imported("jobs", "list", "--help") == "pg_scheduler.cli.jobs pg_scheduler.inspect"

    def test_each_command_has_its_function(self) -> None:
        commands = program_of_commands().commands
        assert list(commands) == list(FUNCTIONS)
        assert [each.name for each in commands.values()] == list(FUNCTIONS)

    def test_key_error_of_a_module_is_no_unknown_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def import_module(*_: object) -> None:
            raise KeyError("missing")

        inside.replace(monkeypatch, import_of_commands=import_module)
        with pytest.raises(KeyError, match="missing"):
            run(["audit", "--help"])

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("command", "start"),
        [("migrate sql", '-- schema "public", version 0 to'), ("jobs --help", "Usage: pg-scheduler jobs")],
    )
    def test_program_writes_data_to_stdout_and_honours_a_closed_pipe(self, command: str, start: str) -> None:
        ran = program(*command.split())
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.startswith(start)
        piped = subprocess.run(
            ["bash", "-c", f"'{sys.executable}' -m pg_scheduler {command} | :; echo ${{PIPESTATUS[0]}}"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        )
        assert (piped.stdout, piped.stderr) == ("0\n", "")

    @pytest.mark.slow
    @pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
    @pytest.mark.parametrize(
        ("command", "code"),
        [
            ("jobs list", ExitCode.DONE),
            ("worker --drain tests.cli.worker_jobs", ExitCode.DONE),
            *(
                [
                    ("jobs --help", ExitCode.DONE),
                    ("jobs show none", ExitCode.NOT_FOUND),
                    ("worker --check tests.cli.worker_jobs", ExitCode.DONE),
                ]
                if LONG
                else []
            ),
        ],
    )
    def test_closed_streams_change_no_exit_code(
        self, dsn: str, command: str, code: ExitCode, closed: str
    ) -> None:
        ran = subprocess.run(
            ["sh", "-c", f"exec '{sys.executable}' -m pg_scheduler {command} {closed}"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PG_SCHEDULER_DSN": dsn},
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )
        assert (ran.returncode, "Traceback" in ran.stderr) == (code, False), ran.stderr

    @pytest.mark.slow
    @pytest.mark.parametrize("command", ["migrate sql", "jobs --help"])
    def test_full_device_is_an_error_of_one_line(self, command: str) -> None:
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            ran = subprocess.run(
                [sys.executable, "-m", "pg_scheduler", *command.split()],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=50,
            )
        assert ran.returncode == ExitCode.NEGATIVE
        assert ran.stderr == "pg-scheduler: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("received_bytes", [0, 8], ids=["at once", "after the request for TLS"])
@pytest.mark.parametrize("mode", ["prefer", "require", "disable"])
def test_server_that_ends_the_connection_is_unavailable(call: Run, mode: str, received_bytes: int) -> None:
    """As a proxy does without a server behind it. asyncpg raises several classes of errors for that."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def end_connections() -> None:
            with suppress(OSError):  # the listener is closed
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(received_bytes)

        thread = threading.Thread(target=end_connections)
        thread.start()
        port = listener.getsockname()[1]
        ran = call("migrate", "--dsn", f"postgresql://app:{SECRET}@127.0.0.1:{port}/app?sslmode={mode}")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert ran.code == ExitCode.UNAVAILABLE
    assert f"postgresql://app:***@127.0.0.1:{port}/app?sslmode={mode}, from --dsn" in ran.err
    assert SECRET not in ran.err
