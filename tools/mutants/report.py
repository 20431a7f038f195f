"""The report of a run, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tools.mutants import python, sql
from tools.mutants.trial import Outcome, Verdict

OPERATORS = {**python.OPERATORS, **sql.OPERATORS}
SHOWN = (Verdict.UNNOTICED, Verdict.NOT_REACHED)
"""The verdicts whose mutants are shown with their change."""


def markdown(outcomes: Sequence[Outcome], seed: str, commit: str) -> str:
    """Return the report.

    Args:
        outcomes: What became of each mutant.
        seed: The seed of the run.
        commit: The commit whose files were changed.
    """
    return "\n".join(_lines(outcomes, seed, commit)) + "\n"


def _lines(outcomes: Sequence[Outcome], seed: str, commit: str) -> Iterator[str]:
    counts = Counter(outcome.verdict for outcome in outcomes)
    yield "# Mutants"
    yield ""
    yield f"{len(outcomes)} mutants of commit `{commit}`, drawn with the seed `{seed}`."
    yield ""
    yield "| Verdict | Mutants |"
    yield "|---|---:|"
    yield from (f"| {verdict} | {counts[verdict]} |" for verdict in Verdict if counts[verdict])
    for verdict in SHOWN:
        shown = [outcome for outcome in outcomes if outcome.verdict is verdict]
        if shown:
            yield ""
            yield f"## {verdict.capitalize()}"
        for outcome in shown:
            yield from _section(outcome)
    yield ""
    yield "## All"
    yield ""
    yield "| Mutant | Function | Verdict | Noticed by | Seconds |"
    yield "|---|---|---|---|---:|"
    for outcome in outcomes:
        mutant = outcome.mutant
        noticed_by = f"`{outcome.noticed_by}`" if outcome.noticed_by else ""
        yield (
            f"| `{mutant.name}` | `{mutant.function}` | {outcome.verdict} | {noticed_by} "
            f"| {outcome.elapsed_s:.0f} |"
        )


def _section(outcome: Outcome) -> Iterator[str]:
    mutant = outcome.mutant
    yield ""
    yield f"### `{mutant.function}` in `{mutant.path}`"
    yield ""
    yield f"The change: {OPERATORS[mutant.operator]}. Repeat it with:"
    yield ""
    yield "```console"
    yield f"$ python3 dev.py mutants --mutant {mutant.name}"
    yield "```"
    yield ""
    yield "```diff"
    yield outcome.diff.rstrip("\n")
    yield "```"
    yield ""
    if outcome.tests:
        yield f"Its tests, which pass: {', '.join(f'`{test}`' for test in outcome.tests)}"
    else:
        yield "No test of it is known."
