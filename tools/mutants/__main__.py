"""Change the package at random, and report what no test notices: ``python3 dev.py mutants``.

Each mutant is one small change of a function or a statement, in a scratch copy of the last commit. The tests
that reach its function run until one fails. The report has the change of each mutant that no test noticed,
and how to repeat it. The exit status is 0 also if there are such mutants.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tools.changed import load_reach
from tools.environment import ROOT, DevError, exit_on_signals, note
from tools.mutants import checkout, drawing, report
from tools.mutants.mutant import Mutant
from tools.mutants.selection import Selection
from tools.mutants.trial import Outcome, Trial, Verdict

PACKAGE: Final = "pg_scheduler"


def main(arguments: Sequence[str]) -> int:
    """Draw mutants, try them, and write the report."""
    options = options_of(arguments)
    deadline = time.monotonic() + options.minutes * 60
    commit = checkout.git(ROOT, "rev-parse", "--short", "HEAD").strip()
    with checkout.scratch(ROOT) as tree:
        check_tests(tree, options.tests or ())
        mutants = drawing.all_mutants(tree, options.paths or [PACKAGE])
        if options.mutant:
            drawn = [mutant for mutant in mutants if mutant.name == options.mutant]
            if not drawn:
                raise DevError(f"commit {commit} has no mutant {options.mutant}; its report names its commit")
        else:
            recent_lines = checkout.recent_lines(ROOT, PACKAGE)
            drawn = drawing.draw(mutants, recent_lines, options.count, options.seed)
        note(f"{len(drawn)} of {len(mutants)} mutants, seed {options.seed}")
        selection = Selection(tree, PACKAGE, load_reach())
        trial = Trial(tree, (lambda _: [options.tests]) if options.tests else selection.tests_of)
        outcomes = try_all(drawn, trial, deadline)
    text = report.markdown(outcomes, options.seed, commit)
    if options.report:
        options.report.write_text(text, "utf-8")
    print(text, end="")
    return 0


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(prog="dev.py mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="change these files or folders only")
    parser.add_argument("--count", type=int, default=20, help="how many mutants to try (default: 20)")
    parser.add_argument("--seed", default=datetime.now(UTC).date().isoformat(), help="default: the date")
    parser.add_argument("--minutes", type=float, default=30.0, help="begin no mutant later (default: 30)")
    parser.add_argument("--mutant", metavar="NAME", help="try the mutant that a report names")
    parser.add_argument("--tests", nargs="+", metavar="TEST", help="run these, not those that are known")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the report there")
    return parser.parse_args(arguments)


def check_tests(tree: Path, tests: Sequence[str]) -> None:
    """Raise `DevError` if a test is not in the scratch copy, where pytest would fail with any mutant."""
    for test in tests:
        if not (tree / test.partition("::")[0]).exists():
            raise DevError(f"the last commit has no test {test}; commit it first")


def try_all(mutants: Sequence[Mutant], trial: Trial, deadline: float) -> list[Outcome]:
    """Try the mutants until the time is used up."""
    outcomes = []
    for mutant in mutants:
        is_early = time.monotonic() < deadline
        outcome = trial.run(mutant) if is_early else Outcome(mutant, "", Verdict.NOT_TRIED)
        note(f"{outcome.verdict}: {mutant.name} {outcome.noticed_by}".rstrip())
        outcomes.append(outcome)
    return outcomes


if __name__ == "__main__":
    exit_on_signals()
    try:
        sys.exit(main(sys.argv[1:]))
    except DevError as error:
        sys.exit(f"mutants: {error}")
