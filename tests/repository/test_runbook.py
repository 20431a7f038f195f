"""Every entry of the runbook has the same four parts, and its commands exist."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime

import pytest

from pg_scheduler.inspect import FindingCode, parse_search
from pg_scheduler.inspect.audit import ACTIONS
from pg_scheduler.inspect.doctor.codes import ADVICE
from tests.docs.snippets import ROOT
from tests.repository.test_command_page import parse
from tests.support.cases import each_case
from tools.reference.extension import DOCTOR_PAGES, complete_findings
from tools.reference.findings import with_findings

PARTS = ["Symptom", "Cause", "Remedy", "Verification"]
PAGE = (ROOT / "docs" / "operations" / "runbook.md").read_text(encoding="utf-8")
COMPLETE, _, ALERTS = complete_findings()["operations/runbook"].partition("\n## Alerts of Prometheus\n")
ENTRY = re.compile(r"^### ([\w-]+)\n\n(.*?)\n(?=\n##|\Z)", re.MULTILINE | re.DOTALL)
ENTRIES = dict(ENTRY.findall(COMPLETE))
ALERT_ENTRIES = dict(ENTRY.findall(ALERTS))
SHOWN = {
    line.partition("#")[0].strip() for line in re.findall(r"^\$ (pg-scheduler .*)", ALERTS, re.MULTILINE)
}
COMMANDS = sorted({*re.findall(r"`(pg-scheduler [^`]+)`", PAGE), *SHOWN})


ADVISED = {
    "add_schedule": "pg-scheduler schedules add",
    "update_schedule": "pg-scheduler schedules update ID",
    "remove_schedule": "pg-scheduler schedules remove",
    "pause_schedule": "pg-scheduler schedules pause ID",
    "resume_schedule": "pg-scheduler schedules resume ID",
    "backfill_schedule": "pg-scheduler schedules backfill ID",
    "pause_task": "pg-scheduler tasks pause NAME",
    "resume_task": "pg-scheduler tasks resume NAME",
    "drain_worker": "pg-scheduler workers drain",
    "resume_worker": "pg-scheduler workers resume",
    "cancel_jobs": "pg-scheduler jobs cancel ID",
    "retry_jobs": "pg-scheduler jobs retry ID",
    "move_jobs": "pg-scheduler jobs move ID",
    "change_job": '"Change…" on its page',
    "keep_job": "keep_job(ID)",
    "skip_head": "sequences skip NAME KEY",
    "move_to_front": "pg-scheduler sequences front ID",
    "run_job": "pg-scheduler jobs run ID",
    "signal_job": "pg-scheduler jobs signal ID",
    "wake_job": "scheduler.end_sleep(ID)",
    "show_stack": '"Show its stack" on the page of the job',
    "vacuum_jobs": "pg-scheduler vacuum",
}
"""How an entry of the runbook names each action that a person takes because of a reason or a finding."""

NO_ADVICE = {
    "add_job": "repairs no job",
    "trigger_schedule": "repairs no schedule",
    "delete_jobs": "repairs no job",
    "broadcast": "is signal_job for many",
    **dict.fromkeys(("mute_finding", "unmute_finding", "mute_error", "unmute_error"), "repairs nothing"),
    **dict.fromkeys(("start_bulk", "resume_bulk", "stop_bulk", "end_bulk"), "belongs to the other actions"),
    **dict.fromkeys(("declare_dead", "start_release", "notify_findings"), "is taken by a worker"),
}
"""Actions that no entry needs, with the reason."""


def test_every_action_that_helps_is_named_by_an_entry() -> None:
    """When an action is added, an older advice may be worse than it, as "cancel it" was to end a sleep."""
    text = " ".join(f"{COMPLETE} {ALERTS}".split())
    assert {action for action, words in ADVISED.items() if words not in text} == set()
    assert sorted([*ADVISED, *NO_ADVICE]) == sorted(ACTIONS)


@pytest.mark.parametrize(
    ("page", "section"),
    [
        ("concepts/delivery.md", "My job does not run"),
        ("guides/inspecting.md", "Explaining why a job is not running"),
        ("operations/troubleshooting.md", "My job does not start"),
    ],
)
def test_other_pages_lead_to_the_list_of_reasons_and_have_none_of_their_own(page: str, section: str) -> None:
    """Four pages had such a list, each with other reasons."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    assert "runbook.md#jobs-that-wait)" in text
    assert re.findall(r"^(?:- |\d+\. |\|)", text, re.MULTILINE) == []


def test_every_heading_is_an_entry() -> None:
    assert list(ENTRIES) == re.findall(r"^### (.+)$", PAGE, re.MULTILINE)


def test_entry_of_an_alert_leads_from_the_symptom_to_the_cure_in_ten_lines() -> None:
    form = re.compile(
        r"\*\*Symptom:\*\* .+\*\*Cause:\*\* .+```console\n.+```.*\*\*Verification:\*\* .+\.", re.DOTALL
    )
    assert ALERT_ENTRIES
    assert [name for name, text in ALERT_ENTRIES.items() if not form.fullmatch(text.strip())] == []
    lines = {name: [line for line in text.splitlines() if line] for name, text in ALERT_ENTRIES.items()}
    assert {name: len(found) for name, found in lines.items() if len(found) > 12} == {}


def test_every_entry_has_symptom_cause_remedy_and_verification() -> None:
    parts = {
        name: re.findall(r"\*\*(\w+):\*\* (.*?)(?= \*\*|$)", " ".join(text.split()))
        for name, text in ENTRIES.items()
    }
    assert [name for name, found in parts.items() if [part for part, _ in found] != PARTS] == []
    assert [name for name, found in parts.items() if not all(text.endswith(".") for _, text in found)] == []


@each_case("command", COMMANDS)
def test_command_of_the_runbook_is_accepted(command: str) -> None:
    assert parse(command)
    words = shlex.split(command)
    search = words[words.index("--where") + 1] if "--where" in words else ""
    if words[1:3] == ["jobs", "list"]:
        search = " ".join(words[3:])
    parse_search(search, now=datetime.now(UTC))
    assert {words[at + 1] for at, word in enumerate(words) if word == "--only"} <= {*FindingCode}


def test_entry_of_a_finding_checks_its_own_code() -> None:
    checked = {name: set(re.findall(r"--only ([\w-]+)", ENTRIES[name])) for name in FindingCode}
    assert {name: codes for name, codes in checked.items() if not codes <= {name}} == {}


def test_entry_of_a_finding_begins_its_cause_and_remedy_with_the_advice() -> None:
    text = with_findings(
        "### STUCK\n\n**Symptom:** one. **Cause:** Two\nlines. **Verification:** three.\n\nMore.\n"
    )
    advice = ADVICE[FindingCode.STUCK]
    cause = f"{advice.meaning[0].upper()}{advice.meaning[1:]}. Two lines."
    remedy = re.sub(r"(pg-scheduler jobs explain|timeout=)", r"`\1`", advice.remedy)
    parts = f"**Symptom:** one. **Cause:** {cause} **Remedy:** {remedy}. **Verification:** three."
    assert text == f"### STUCK\n\n{parts}\n\nMore.\n"


def test_entry_of_a_reason_begins_its_cause_with_the_docstring_of_the_code() -> None:
    after, failed = with_findings(
        "### AFTER\n\n**Cause:** Two. **Remedy:** three.\n\n"
        "### FAILED\n\n**Symptom:** one. **Remedy:** three.\n"
    ).split("\n\n")[1::2]
    cause = "**Cause:** It waits for other jobs. Two. **Remedy:** three."
    check = "`pg-scheduler jobs explain ID` does not have this reason."
    assert after == f"**Symptom:** The job does not start. {cause} **Verification:** {check}"
    cause = "**Cause:** It failed. **Remedy:** three."
    check = "`pg-scheduler jobs wait ID` ends with `completed`."
    assert failed == f"**Symptom:** one. {cause} **Verification:** {check}\n"


def test_entry_of_a_finding_with_an_unknown_part_is_rejected() -> None:
    with pytest.raises(ValueError, match="the entry STUCK of the runbook has unknown parts: Reason"):
        with_findings("### STUCK\n\n**Symptom:** one. **Reason:** two.\n")


def test_source_of_a_page_about_the_doctor_leads_to_the_site() -> None:
    """The file alone, as a code host shows it, is not the page."""
    for page in DOCTOR_PAGES:
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        url = f"https://pg-scheduler.github.io/pg-scheduler/{page}.html"
        assert f"\n% The complete page is on the site: {url}\n" in text
