"""The pages about the doctor, completed by the advice that the doctor itself prints.

A table of all findings takes the place of a comment. In the runbook, the entry of a finding has the symptom
and what the advice omits; its cause and its remedy begin with the advice. The cause of a reason begins with
the docstring of its code. A part that an entry leaves out is that of its kind.
"""

from __future__ import annotations

import re
from typing import Final

from pg_scheduler.inspect.doctor.codes import ADVICE, FindingCode
from pg_scheduler.inspect.reasons import ReasonCode
from tools.environment import ROOT
from tools.reference.source import find

COMMENT: Final = "<!-- findings -->"
"""A page has the table of all findings in the place of this comment."""

ALERTS: Final = "<!-- runbook: alerts -->"
"""A page has the entries of the alerts, which the package contains, in the place of this comment."""

_RUNBOOK: Final = ROOT / "pg_scheduler" / "ops" / "runbook" / "alerts.md"

_ENTRY = re.compile(r"^### (?P<code>[\w-]+)\n\n(?P<parts>.+?)(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)
_PARTS = ("Symptom", "Cause", "Remedy", "Verification")
_ENDED = {ReasonCode.FAILED, ReasonCode.QUARANTINED, ReasonCode.EXPIRED, ReasonCode.CANCELLED}
_PART = re.compile(r"\*\*(\w+):\*\* (.*?)(?= \*\*|$)")
_CODE = re.compile(
    r"pg-scheduler (?:(?:jobs|schedules|workers) [a-z]+|migrate indexes|[a-z]+)(?: --[a-z-]+(?: \d+m)?)?"
    r"|ALTER [A-Z]+ \.\.\. SET (?:\(\.\.\.\)|\w+ = '[^']+')|(?:DROP|REINDEX) INDEX CONCURRENTLY"
    r"|VACUUM \(FREEZE\)|\b[a-z]+(?:_[a-z]+)+(?:=(?:0|True)?)?|\b[a-z]+="
)
"""The commands, statements and settings in an advice."""

_STARTS_WITH_CODE = re.compile(r"`|\w+[.(]\w")


def with_findings(page: str) -> str:
    """Return a page with complete entries, and with the table of findings if it has the comment for it."""
    return _ENTRY.sub(_complete, page.replace(COMMENT, _table())).replace(ALERTS, _RUNBOOK.read_text("utf-8"))


def _table() -> str:
    rows = [
        f"| [`{code}`](runbook.md#{code.lower()}) | {_markdown(ADVICE[code].meaning)} |"
        for code in FindingCode
    ]
    return "\n".join(["| Code | Finding |", "|---|---|", *rows])


def _complete(entry: re.Match[str]) -> str:
    name = entry["code"]
    written = dict(_PART.findall(" ".join(entry["parts"].split())))
    if not written:
        return entry[0]
    if name in set(FindingCode):
        default = _parts_of_finding(FindingCode(name), written)
    else:
        default = _parts_of_reason(ReasonCode(name), written)
    parts = {part: written.pop(part, None) or default[part] for part in _PARTS}
    if written:
        raise ValueError(f"the entry {name} of the runbook has unknown parts: {', '.join(written)}")
    return f"### {name}\n\n" + " ".join(f"**{part}:** {text}" for part, text in parts.items())


def _parts_of_finding(code: FindingCode, written: dict[str, str]) -> dict[str, str]:
    """Return the verification and the parts that begin with the advice; take their texts from ``written``."""
    advice = {"Cause": ADVICE[code].meaning, "Remedy": ADVICE[code].remedy}
    parts = {
        name: f"{_capitalized(_markdown(text))}. {written.pop(name, '')}".strip()
        for name, text in advice.items()
    }
    return {**parts, "Verification": f"`pg-scheduler doctor --only {code}` finds nothing."}


def _parts_of_reason(code: ReasonCode, written: dict[str, str]) -> dict[str, str]:
    """Return the cause, which begins with the docstring of the code, and the parts of every reason."""
    meaning = next(
        field.text
        for field in find(ReasonCode.__module__, ReasonCode.__name__).fields()
        if field.name == code.name
    )
    has_ended = "`pg-scheduler jobs wait ID` ends with `completed`."
    is_gone = "`pg-scheduler jobs explain ID` does not have this reason."
    return {
        "Symptom": "The job does not start.",
        "Cause": f"{meaning} {written.pop('Cause', '')}".strip(),
        "Verification": has_ended if code in _ENDED else is_gone,
    }


def _capitalized(text: str) -> str:
    """Return a text as the beginning of a sentence; a text that begins with code stays as it is."""
    return text if _STARTS_WITH_CODE.match(text) else text[0].upper() + text[1:]


def _markdown(text: str) -> str:
    return _CODE.sub(lambda match: f"`{match[0]}`", text)
