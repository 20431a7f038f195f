"""Remedies as data: steps with commands, and the sentences that are made of them."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from pg_scheduler.base.text.remedies import (
    AND,
    RemedyStep,
    as_steps,
    execute,
    execute_all,
    joined,
    sentence_of,
    then,
)
from pg_scheduler.errors import SchemaMismatchError, SchemaMissingError
from pg_scheduler.inspect import Finding, FindingCode, Severity
from pg_scheduler.inspect.doctor import examination, server_faults
from pg_scheduler.inspect.doctor.check import Evidence, finding, hint_at_new_name
from pg_scheduler.inspect.doctor.codes import ADVICE
from tests.support.cases import each_case

SENTENCES: Final = dict(
    line.split(": ", 1)
    for line in Path(__file__).with_name("remedies.txt").read_text(encoding="utf-8").splitlines()
)
"""The remedy of each code, as the command line prints it."""

COMMAND: Final = re.compile(
    r"pg-scheduler [a-z]|await \w+\.|@job\(|(?:GRANT|REVOKE) [A-Z, ]+ (?:ON|FROM|TO) "
    r"|\b(?:ALTER|VACUUM|REINDEX|DROP|CREATE|SELECT|ANALYZE|COMMIT|ROLLBACK)\b"
)
"""How commands begin."""

JOINT: Final = re.compile(r"; |, then ")
"""What separates steps in a sentence."""

MODULES: Final = (*examination.MODULES, server_faults)


def words_of(steps: Sequence[RemedyStep]) -> Iterator[str]:
    for step in steps:
        yield from (step.text, step.note)


@pytest.mark.parametrize("code", FindingCode)
def test_remedy_of_a_code_is_the_sentence_of_its_steps(code: FindingCode) -> None:
    assert sentence_of(ADVICE[code].steps) == ADVICE[code].remedy == SENTENCES[code]


@pytest.mark.parametrize("code", FindingCode)
def test_remedy_of_a_code_has_its_commands_as_data(code: FindingCode) -> None:
    words = [*words_of(ADVICE[code].steps)]
    if code is FindingCode.RIGHTS:  # its advice names two kinds of statements, and contains none
        assert words[0].startswith("execute the GRANT or REVOKE statements")
        return
    assert not any(COMMAND.search(text) or JOINT.search(text) for text in words)
    assert all(COMMAND.match(step.command) for step in ADVICE[code].steps if step.command)


def _words_in(module: Path) -> Iterator[str]:
    """Yield the texts that the remedies of a module state as words."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        arguments: list[ast.expr] = []
        match node:
            case ast.Call(func=ast.Name(id="error" | "warning" | "info")):
                arguments = node.args[3:]
            case ast.Call(func=ast.Name(id="finding")):
                arguments = node.args[4:]
            case ast.Call(func=ast.Name(id="execute" | "execute_all")):
                arguments = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
            case ast.Call(func=ast.Name(id="then" | "joined")):
                arguments = node.args[-1:]
            case (
                ast.Assign(targets=[ast.Name(id="steps")], value=ast.List() | ast.Tuple() as value)
                | ast.AnnAssign(target=ast.Name(id="steps"), value=ast.List() | ast.Tuple() as value)
            ):
                arguments = value.elts
        # A call of execute() among them is a node of its own.
        texts = [argument for argument in arguments if not isinstance(argument, ast.Call)]
        for part in (part for text in texts for part in ast.walk(text)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def test_no_check_of_the_doctor_has_a_command_in_words() -> None:
    texts = [text for module in MODULES for text in _words_in(Path(str(module.__file__)))]
    assert "add workers, or raise max_concurrent_jobs= if the jobs mostly wait for I/O" in texts
    assert "store the data elsewhere and pass its id" in texts
    assert [text for text in texts if COMMAND.search(text)] == []
    joints = {" ", ", ", "; ", ": "}
    assert [text for text in texts if text not in joints and JOINT.search(text)] == []


def test_every_code_has_a_title_with_at_most_one_place_for_its_subject() -> None:
    assert list(ADVICE) == list(FindingCode)
    for advice in ADVICE.values():
        assert advice.title
        assert not re.search(r"[{}]", advice.title.replace("{}", "", 1))


def test_title_of_a_finding_has_its_subject() -> None:
    missing = Finding(FindingCode.INDEX_MISSING, Severity.ERROR, "{due}", "text")
    assert missing.title == "Index {due} is missing"
    none = Finding(FindingCode.WORKER_NONE, Severity.ERROR, "workers", "text")
    assert none.title == "No live worker runs jobs"


@each_case(
    ("parts", "sentence"),
    [
        ([], None),
        (["start a worker"], "start a worker"),
        (
            ["read the logs", then(execute("pg-scheduler jobs retry 'a; b' c"))],
            "read the logs, then pg-scheduler jobs retry 'a; b' c",
        ),
        (execute_all(["SELECT 1", "SELECT 2"], before="execute:"), "execute: SELECT 1; SELECT 2"),
        ([execute("VACUUM", "before it", command_end=", ")], "VACUUM, before it"),
        ([execute("VACUUM", "now", before="with free slots", text_end=", ")], "with free slots, VACUUM now"),
        (["cache_size=0", joined(AND, "direct_dsn=")], "cache_size=0; and direct_dsn="),
        (
            ["import it", *hint_at_new_name("a.mail", ["a.mails"])],
            "import it; or is 'a.mails' its new name? then @job(name='a.mails', aliases=['a.mail'])",
        ),
    ],
)
def test_sentence_consists_of_the_steps_and_what_joins_them(
    parts: Sequence[str | RemedyStep], sentence: str | None
) -> None:
    assert sentence_of(as_steps(parts)) == sentence


def test_finding_has_the_sentence_of_its_steps_and_the_whole_evidence() -> None:
    evidence = Evidence("2 jobs of 'mail' wait", "; running: 9 of 'payroll'")
    found = finding(FindingCode.LATE, Severity.WARNING, "mail", evidence, "add workers", execute("VACUUM"))
    assert found.remedy == "add workers; VACUUM"
    assert found.steps == (RemedyStep("add workers"), RemedyStep(command="VACUUM"))
    assert found.evidence == "2 jobs of 'mail' wait; running: 9 of 'payroll'"
    assert (found.own_evidence, found.other_evidence, found.objects) == (*evidence[:2], ())
    unknown = finding(FindingCode.PAYLOAD, Severity.WARNING, "mail", "large jobs, such as 'a'")
    assert (unknown.remedy, unknown.steps, unknown.own_evidence) == (None, (), "")
    assert unknown.evidence == unknown.other_evidence == "large jobs, such as 'a'"


def test_error_of_the_tables_has_its_remedy_as_data_and_in_its_message() -> None:
    error = SchemaMismatchError(
        "a table differs", "restore it", execute("DROP TABLE a", before="or execute:")
    )
    assert str(error) == "a table differs; restore it; or execute: DROP TABLE a"
    missing = SchemaMissingError("no table", "")
    assert (str(missing), missing.steps) == ("no table", ())
    arrived = pickle.loads(pickle.dumps(error))
    assert (str(arrived), arrived.problem, arrived.steps) == (str(error), error.problem, error.steps)
