"""Choose the tests that ``dev.py test`` runs: ``dev.py renew``, or ``python -m tools.tier`` for this alone.

It takes the costs that ``dev.py test --all`` has recorded over into ``tests/durations.json``, and writes
``tests/tier.txt``. The tier has the cheapest tests, and for each guard of ``tools/mutations.toml`` the
cheapest of the tests that notice its removal. Ten percent of the tests take half of the time, so most of the
tests fit into a quarter of it.

A recorded cost is replaced only if it has changed by more than a half and by more than 50 ms, because the
costs of one commit differ that much from run to run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tools import mutations, suite
from tools.suite import Cost

TIER_S: Final = 420.0
"""The processor time that the tests of the tier may take together."""

GREATER: Final = 1.5
CHANGE_S: Final = 0.05


def merge(records: Iterable[Path], costs: dict[str, dict[str, Cost]]) -> dict[str, dict[str, Cost]]:
    """Return the costs after a run of all tests, by file and test function."""
    merged: defaultdict[str, dict[str, Cost]] = defaultdict(dict)
    for record in records:
        for test, numbers in json.loads(record.read_text("utf-8"))["costs"].items():
            file, _, name = test.partition("::")
            cost = Cost.read(numbers)
            recorded = costs.get(file, {}).get(name)
            merged[file][name] = recorded if recorded and is_alike(recorded, cost) else rounded(cost)
    return dict(merged)


def is_alike(recorded: Cost, cost: Cost) -> bool:
    """Return whether a cost has changed no more than it does from run to run."""
    if (recorded.cases, recorded.is_slow) != (cost.cases, cost.is_slow):
        return False
    pairs = [(recorded.processor_s, cost.processor_s), (recorded.elapsed_s, cost.elapsed_s)]
    return all(max(pair) - min(pair) <= CHANGE_S or max(pair) <= GREATER * min(pair) for pair in pairs)


def rounded(cost: Cost) -> Cost:
    """Return a cost in hundredths of a second, which is as exact as it can be measured."""
    return cost._replace(processor_s=round(cost.processor_s, 2), elapsed_s=round(cost.elapsed_s, 2))


def guards(costs: dict[str, dict[str, Cost]]) -> set[str]:
    """Return the cheapest test of each guard."""
    tests = set()
    for mutation in mutations.load():
        by_cost = {
            test: costs[file][name]
            for test in mutation.tests
            for file, _, name in [test.partition("::")]
            if name in costs.get(file, {})
        }
        if by_cost:
            tests.add(min(by_cost, key=lambda test: (by_cost[test].processor_s, test)))
    return tests


def choose(costs: dict[str, dict[str, Cost]], guarding: set[str], budget_s: float = TIER_S) -> list[str]:
    """Return the lines of the tier: files of which all tests are in it, and single tests.

    The guards' tests come first, then one test of each file, then the cheapest by test case, as far as the
    budget goes.
    """
    tests = {f"{file}::{name}": cost for file, names in costs.items() for name, cost in names.items()}
    usual = {test: cost for test, cost in tests.items() if not cost.is_slow}
    by_case = sorted(usual, key=lambda test: (usual[test].processor_s / usual[test].cases, test))
    first_of_file = {test.partition("::")[0]: test for test in reversed(by_case)}
    chosen = {*guarding, *first_of_file.values()}
    total_s = sum(tests[test].processor_s for test in chosen)
    for test in by_case:
        if test not in chosen:
            total_s += usual[test].processor_s
            if total_s > budget_s:
                break
            chosen.add(test)
    lines = []
    for file, names in costs.items():
        usual_names = {name for name, cost in names.items() if not cost.is_slow}
        chosen_names = {name for name in names if f"{file}::{name}" in chosen}
        if usual_names and usual_names <= chosen_names:
            lines.append(file)
            chosen_names -= usual_names
        lines += [f"{file}::{name}" for name in chosen_names]
    return sorted(lines)


def total_s(tests: suite.Suite) -> float:
    """Return the processor time of the tier, as recorded."""
    return sum(
        cost.processor_s
        for file, names in tests.costs.items()
        for name, cost in names.items()
        if tests.is_in_tier(f"{file}::{name}", is_slow=cost.is_slow)
    )


def texts() -> dict[Path, str]:
    """Return both files with their texts.

    Without records of a run of all tests, the costs stay as they are, but for files that are gone.
    """
    records = sorted(suite.RECORDS.glob("*.json"))
    recorded = suite.load().costs
    costs = merge(records, recorded) if records else recorded
    costs = {file: costs[file] for file in costs if (suite.ROOT / file).exists()}
    files = [
        f"  {json.dumps(file)}: {{\n"
        + ",\n".join(
            f"    {json.dumps(name)}: {json.dumps([*cost[:3], int(cost.is_slow)])}"
            for name, cost in sorted(costs[file].items())
        )
        + "\n  }"
        for file in sorted(costs)
    ]
    return {
        suite.DURATIONS: "{\n" + ",\n".join(files) + "\n}\n",
        suite.TIER: "\n".join(choose(costs, guards(costs))) + "\n",
    }


def main() -> None:
    """Write both files from the records of the last run of all tests, and say what the tier has."""
    for path, text in texts().items():
        path.write_text(text, "utf-8")
    tests = suite.load()
    cases = [
        (cost.cases, tests.is_in_tier(f"{file}::{name}", is_slow=cost.is_slow))
        for file, names in tests.costs.items()
        for name, cost in names.items()
    ]
    count = sum(number for number, is_chosen in cases if is_chosen)
    print(
        f"tests/tier.txt: {count:,} of {sum(number for number, _ in cases):,} test cases, "
        f"{total_s(tests):.0f} of at most {TIER_S:.0f} core-seconds"
    )


if __name__ == "__main__":
    main()
