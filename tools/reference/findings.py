"""The pages about the doctor, completed by the advice that the doctor itself prints.

A table of all findings takes the place of a comment. In the runbook, the entry of a finding has the symptom
and what the advice omits; its cause and its remedy begin with the advice.
"""

from __future__ import annotations

import re
from typing import Final

from pg_scheduler.inspect.doctor.codes import ADVICE, FindingCode

COMMENT: Final = "<!-- findings -->"
"""A page has the table of all findings in the place of this comment."""

_ENTRY = re.compile(r"^### (?P<code>[A-Z-]+)\n\n(?P<parts>.+?)(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)
_PART = re.compile(r"\*\*(\w+):\*\* (.*?)(?= \*\*|$)")
_CODE = re.compile(
    r"pg-scheduler (?:(?:jobs|schedules|workers) [a-z]+|migrate indexes|[a-z]+)(?: --[a-z-]+(?: \d+m)?)?"
    r"|ALTER [A-Z]+ \.\.\. SET (?:\(\.\.\.\)|\w+ = '[^']+')|(?:DROP|REINDEX) INDEX CONCURRENTLY"
    r"|VACUUM \(FREEZE\)|\b[a-z]+(?:_[a-z]+)+(?:=(?:0|True)?)?|\b[a-z]+="
)
"""The commands, statements and settings in an advice."""


def with_findings(page: str) -> str:
    """Return a page with complete entries, and with the table of findings if it has the comment for it."""
    return _ENTRY.sub(_complete, page.replace(COMMENT, _table()))


def _table() -> str:
    rows = [
        f"| [`{code}`](runbook.md#{code.lower()}) | {_markdown(ADVICE[code].meaning)} |"
        for code in FindingCode
    ]
    return "\n".join(["| Code | Finding |", "|---|---|", *rows])


def _complete(entry: re.Match[str]) -> str:
    if entry["code"] not in set(FindingCode):
        return entry[0]
    code = FindingCode(entry["code"])
    written = dict(_PART.findall(" ".join(entry["parts"].split())))
    advice = {"Cause": ADVICE[code].meaning, "Remedy": ADVICE[code].remedy}
    parts = {
        "Symptom": written.pop("Symptom"),
        **{name: f"{_markdown(text)}. {written.pop(name, '')}".strip() for name, text in advice.items()},
        "Verification": written.pop("Verification", f"`pg-scheduler doctor --only {code}` finds nothing."),
    }
    if written:
        raise ValueError(f"the entry {code} of the runbook has unknown parts: {', '.join(written)}")
    return f"### {code}\n\n" + " ".join(f"**{name}:** {text}" for name, text in parts.items())


def _markdown(text: str) -> str:
    return _CODE.sub(lambda match: f"`{match[0]}`", text)
