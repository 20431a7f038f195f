"""Remedies that several rooms state, and remedies as data: their steps, and the sentence made of the steps.

A check of the doctor and an error of the tables state a remedy as steps. A step has words, a command, or
both. Front ends that show steps, such as the dashboard, read these. Those that show a line of text read the
sentence, which only ``sentence_of()`` makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

SCHEDULER_REMEDY: Final = (
    "pass what Scheduler(pool) returns, or what a block of Scheduler.connect(url) yields"
)
"""The remedy where another object than a Scheduler was passed."""

POOL_REMEDY: Final = "pass the result of asyncpg.create_pool()"
"""The remedy where another object than a pool was passed."""

THEN: Final = ", then "
"""Joins a step to the one before it, which has to be done first."""

AFTERWARDS: Final = "; then "
"""Joins a step that follows several others."""

AND: Final = "; and "
"""Joins a step that is needed as well."""


@dataclass(frozen=True, slots=True)
class RemedyStep:
    """A step of a remedy: words, a command between them, or both.

    The sentence of a step consists of its three texts and what separates them.
    """

    text: str = ""
    """What to do, or the words before the command."""
    command: str = ""
    """What can be copied and executed: a shell command, SQL or Python; empty if words are all."""
    note: str = ""
    """The words after the command."""
    joint: str = "; "
    """What joins it to the step before it, in a sentence."""
    text_end: str = " "
    """What separates the words from the command, in a sentence."""
    command_end: str = " "
    """What separates the command from the note, in a sentence."""

    @property
    def sentence(self) -> str:
        """The step as a part of a sentence."""
        before = f"{self.text}{self.text_end}" if self.text and self.command else self.text
        after = f"{self.command_end}{self.note}" if self.note else ""
        return f"{before}{self.command}{after}"


def as_steps(parts: Iterable[str | RemedyStep]) -> tuple[RemedyStep, ...]:
    """Return steps, of which those without a command may be given as their words."""
    return tuple(RemedyStep(part) if isinstance(part, str) else part for part in parts)


def joined(joint: str, part: str | RemedyStep) -> RemedyStep:
    """Return a step that is joined to the one before it by these words."""
    return replace(RemedyStep(part) if isinstance(part, str) else part, joint=joint)


def then(part: str | RemedyStep) -> RemedyStep:
    """Return a step that follows the one before it."""
    return joined(THEN, part)


def execute(
    command: str, note: str = "", *, before: str = "", text_end: str = " ", command_end: str = " "
) -> RemedyStep:
    """Return a step that executes a command, which words may precede and a note may follow."""
    return RemedyStep(before, command, note, text_end=text_end, command_end=command_end)


def execute_all(commands: Iterable[str], *, before: str = "") -> tuple[RemedyStep, ...]:
    """Return a step for each command; words may precede the first."""
    return tuple(execute(command, before="" if place else before) for place, command in enumerate(commands))


def sentence_of(steps: Iterable[RemedyStep]) -> str | None:
    """Return the sentence of a remedy; None without steps."""
    parts = [f"{step.joint if place else ''}{step.sentence}" for place, step in enumerate(steps)]
    return "".join(parts) or None
