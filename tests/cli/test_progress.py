"""Progress on stderr: a bar, lines, or nothing."""

from __future__ import annotations

import pytest

from pg_scheduler.cli.errors import CommandError
from pg_scheduler.cli.output import Output
from pg_scheduler.cli.progress import Reporter, read_style


def test_line_is_written_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 9.9, 10.0, 10.0, 19.9, 20.0, 20.0])
    with Reporter("lines", Output(), clock=lambda: next(seconds)) as reporter:
        for number in range(4):
            reporter.show(f"\x1b step {number}", number, None)
    assert capsys.readouterr().err == "\\x1b step 1\n\\x1b step 3\n"


@pytest.mark.parametrize("style", ["bar", "off"])
def test_bar_and_off_write_no_lines(capsys: pytest.CaptureFixture[str], style: str) -> None:
    with Reporter(read_style(style), Output()) as reporter:
        reporter.show("\x1b[31m[red]step", 1, 3)
        reporter.show("done", 3, None)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "\x1b[31m" not in captured.err
    if style == "off":
        assert captured.err == ""


def test_unknown_style_is_a_usage_error() -> None:
    assert read_style(None) == "lines", "stderr is no terminal here"
    with pytest.raises(CommandError, match="bar, lines, off, not 'x'"):
        read_style("x")
