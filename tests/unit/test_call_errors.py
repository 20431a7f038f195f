"""Errors of calls that schedule jobs: a command or a form shows them with a remedy of its own.

A remedy such as "omit job_id=" is for code. This module finds all errors with such a text in the modules that
prepare jobs and schedules. Each of them is made by ``call_error()``, or no command and no form can show it.
"""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import pytest

import pg_scheduler
from pg_scheduler.cli.errors import OPTION_REMEDIES, message_of
from pg_scheduler.dashboard.actions.request import FIELD_REMEDIES
from pg_scheduler.errors import ConfigurationError, PayloadError
from pg_scheduler.jobs.call_errors import Subject, call_error, message_for
from pg_scheduler.jobs.task import UnfitArgumentsError

PACKAGE: Final = Path(pg_scheduler.__file__).parent
FOLDERS: Final = ("jobs", "queue", "schedules")

DECLARATIONS: Final = (
    "chunks", "codec", "decorator", "executors", "limits", "middleware", "registry", "retry", "sequences",
    "shares", "declarations", "declared",
)  # fmt: skip
"""Modules whose errors are about a declaration in the code, where they are corrected."""

RUNNING: Final = ("context", "progress", "result", "step_retries", "step_values", "steps", "headers")
"""Modules whose errors are about the code of a job that runs, or of middleware."""

DECLARED: Final = "it is about a declaration in the code"
READ: Final = "commands and forms read values of the right type"
NO_OPTION: Final = "neither a command nor a form has such an option"
OWN_TEXT: Final = "commands and forms have an error of their own"

OTHERS: Final = {
    "jobs/metadata.py:with_trace": "it is about middleware",
    "jobs/naming.py:check_function": DECLARED,
    "jobs/naming.py:check_name": "commands and forms refuse an empty name",
    "jobs/payload.py:encode": READ,
    "jobs/task.py:__post_init__": NO_OPTION,
    "jobs/task.py:_check_chunk": DECLARED,
    "jobs/task.py:check_schedulable": DECLARED,
    "jobs/typed.py:__init__": DECLARED,
    "jobs/typed.py:_build": DECLARED,
    "jobs/unique.py:__post_init__": DECLARED,
    "jobs/unique.py:_check_debounce": DECLARED,
    "jobs/unique.py:check_unique": NO_OPTION,
    "jobs/validation.py:check_execution_time": READ,
    "jobs/validation.py:check_job_id": READ,
    "jobs/validation.py:check_keep_result": READ,
    "queue/enqueuer.py:_check_notify": NO_OPTION,
    "queue/job_template.py:_unique_text": NO_OPTION,
    "queue/job_template.py:extend": NO_OPTION,
    "queue/jobs.py:delete_and_retry": OWN_TEXT,
    "queue/prepare.py:_parents_of": NO_OPTION,
    "schedules/definition.py:check_trigger": READ,
    "schedules/policies.py:__post_init__": NO_OPTION,
    "schedules/timing.py:fire_times_between": OWN_TEXT,
}
"""Functions that raise other errors with such a text, and why no command and no form shows them."""

CODE: Final = re.compile(r"\w=|\w\(")
"""A parameter such as ``job_id=``, or a call."""


def text_of(node: ast.expr) -> str:
    """Return the literal parts of a text, without the values in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "".join(map(text_of, node.values)) if isinstance(node, ast.JoinedStr) else ""


def raising_functions() -> Iterator[str]:
    """Yield the functions that raise an error with code in its text, not by ``call_error()``."""
    for folder in FOLDERS:
        for path in sorted((PACKAGE / folder).glob("*.py")):
            if path.stem in {*DECLARATIONS, *RUNNING}:
                continue
            for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                # The body of a function within this one is a function of its own.
                nested = [node for node in ast.walk(function) if isinstance(node, type(function))][1:]
                inner_nodes = {node for inner in nested for node in ast.walk(inner)}
                for node in ast.walk(function):
                    if not isinstance(node, ast.Call) or node in inner_nodes:
                        continue
                    is_error = ast.unparse(node.func).endswith("Error")
                    if is_error and CODE.search(" ".join(map(text_of, node.args))):
                        yield f"{folder}/{path.name}:{function.name}"


def test_error_with_a_remedy_in_code_is_made_by_call_error_or_no_command_shows_it() -> None:
    assert sorted(set(raising_functions())) == sorted(OTHERS)


def test_commands_have_a_remedy_for_each_subject_and_forms_for_those_with_fields() -> None:
    subjects = set(get_args(Subject))
    assert set(OPTION_REMEDIES) == subjects
    assert set(FIELD_REMEDIES) < subjects
    remedies = {*OPTION_REMEDIES.values(), *FIELD_REMEDIES.values()}
    assert [remedy for remedy in remedies if CODE.search(remedy)] == []


@pytest.mark.parametrize("kind", [ConfigurationError, PayloadError, UnfitArgumentsError, ValueError])
def test_call_error_has_the_remedy_of_its_front_end(kind: type[Exception]) -> None:
    original = call_error(kind, "the job has two ids", "id", "omit job_id=")
    error = pickle.loads(pickle.dumps(original))
    assert type(error) is kind
    assert str(error) == "the job has two ids; omit job_id="
    assert message_of(error, schema=None) == "the job has two ids; omit --id"
    assert message_for(error, FIELD_REMEDIES) == "the job has two ids"
    assert message_for(ValueError("it is too long"), OPTION_REMEDIES) == "it is too long"
