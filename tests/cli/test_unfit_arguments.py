"""Arguments that do not fit the function of a job are invalid values of the command that passes them."""

from __future__ import annotations

import shlex

from pg_scheduler.cli.errors import ExitCode
from tests.cli.conftest import Ran, Run

REJECTED = {
    "unfit.plain": ("""--kwargs '{"zzz": 1}'""", """--kwargs '{"\\u0000": 1}'""", "--args '[1, 2]'"),
    "unfit.thread": ("--args '[1, 2]'",),
    "unfit.typed": ("""--args '["x"]'""", """--kwargs '{"zzz": 1}'""", ""),
    "unfit.limited": ("",),
    "unfit.shared": ("",),
    "unfit.unique": ("",),
}
"""The tasks of ``unfit_jobs.py``, with options that each rejects."""

COMMANDS = (
    "jobs add {task} {options} --jobs tests.cli.unfit_jobs",
    "schedules add {task} {options} --every 1h --id {task} --on-conflict replace",
    "schedules update {task} {options}",
)


def test_arguments_that_do_not_fit_are_invalid_values(call: Run, dsn: str) -> None:
    def execute(command: str, task: str, options: str) -> Ran:
        return call(*shlex.split(command.format(task=task, options=options)), "--dsn", dsn)

    for task in REJECTED:
        options = (
            "--args '[1]'" if task in {"unfit.plain", "unfit.thread", "unfit.typed"} else """--args '["a"]'"""
        )
        for command in COMMANDS:
            accepted = execute(command, task, options)
            assert accepted.code == ExitCode.DONE, accepted.err
    rejected = {
        (command, task, options): execute(command, task, options)
        for command in COMMANDS
        for task, cases in REJECTED.items()
        for options in cases
        if options or "update" not in command
    }
    codes = {case: ran.code for case, ran in rejected.items()}
    assert codes == dict.fromkeys(rejected, ExitCode.USAGE)
    assert rejected[COMMANDS[0], "unfit.unique", ""].err == (
        "pg-scheduler: unique() cannot be called with the arguments of the job: missing a required argument: "
        "'name'; pass --args and --kwargs that fit its signature\n"
    )
