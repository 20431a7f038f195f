"""Arguments and options that do not fit the function of a job are invalid values of a command."""

from __future__ import annotations

import json
import shlex

from tests.cli.conftest import Ran, Run
from tests.support.inside import ExitCode

REJECTED = {
    "unfit.plain": ("""--kwargs '{"zzz": 1}'""", """--kwargs '{"\\u0000": 1}'""", "--args '[1, 2]'"),
    "unfit.thread": ("--args '[1, 2]'",),
    "unfit.typed": ("""--args '["x"]'""", """--kwargs '{"zzz": 1}'""", ""),
    "unfit.limited": ("",),
    "unfit.shared": ("",),
    "unfit.unique": ("",),
}
"""The tasks of ``unfit_jobs.py``, with options that each rejects."""

LARGE = json.dumps({"text": "x" * 1_048_576})
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
        "'name'; pass --args and --kwargs that fit the signature of the function\n"
    )


REMEDIES = {
    "jobs add unfit.once --id day": "omit --id",
    "jobs add unfit.debounced --in 5m": "omit --at and --in",
    "jobs add unfit.debounced --id day": "omit --id",
    "jobs add unfit.debounced --on-conflict ignore": "omit --on-conflict",
    "jobs add unfit.named": "pass it in --kwargs",
    "jobs add unfit.plain --deadline 2020-01-01T00:00Z": "pass a later --deadline, or a duration such as 1h",
    """jobs add unfit.plain --metadata '{"trace": 1}'""": "choose another key",
    """jobs add unfit.plain --args '["\\u0000"]'""": "pass another value, or encode it as a text",
    f"jobs add unfit.plain --metadata '{LARGE}'": "store them elsewhere and pass an id or a path",
    "schedules add unfit.plain --every 1h --catch-up all": "pass --overlap allow or queue_all, or "
    "--catch-up latest",
    "schedules add unfit.plain --every 1h --start 2030-01-02 --end 2030-01-01": "pass a later --end",
}
"""Commands whose options a task rejects, and the remedies."""


def test_remedy_of_a_rejected_option_names_options_of_the_command(call: Run, dsn: str) -> None:
    for command, remedy in REMEDIES.items():
        ran = call(*shlex.split(command), "--jobs", "tests.cli.unfit_jobs", "--dsn", dsn)
        assert (ran.code, ran.err.rstrip().rpartition("; ")[2]) == (ExitCode.USAGE, remedy)
