"""A short run of the soak: its load, its disturbances and its figures."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import soak
from pg_scheduler.embedded import EmbeddedError, find_binaries
from tests.support.stories import NIGHTLY


@NIGHTLY
def test_soak_runs_every_kind_of_job_and_writes_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        find_binaries()
    except EmbeddedError as error:
        pytest.skip(str(error))
    file, plots = tmp_path / "soak.csv", tmp_path / "plots"
    code = soak.main(["--hours", "0.008", "--rate", "50", "--csv", str(file), "--plots", str(plots)])
    printed = capsys.readouterr().out
    assert "every job ended" in printed
    assert code == ("growth found" in printed)
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) >= 16
    assert {"snapshot", "dump"} <= {word for row in rows for word in row["meanwhile"].split()}
    assert sum(float(row["jobs/s"]) for row in rows) > 0
    last = rows[-1]
    assert float(last["scheduler_starts, MiB"]) > 0, "jobs within a limit ran"
    assert float(last["standby behind, MiB"]) >= 0
    assert any(float(row["standby behind, MiB"]) > 0 for row in rows), "a standby followed"
    assert {path.suffix for path in plots.iterdir()} == {".svg"}
