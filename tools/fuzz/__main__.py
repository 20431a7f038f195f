"""Search for texts that break a parser: ``python3 dev.py fuzz [--minutes M] [PARSER ...]``.

Each parser gets M minutes in a process of its own, in which atheris measures which branches a text reaches,
and keeps the texts that reach new ones. A text that raises an error other than a refusal, or takes longer
than the parser may, is written into the folder of findings, and the exit status is 1. ``--corpus`` names a
folder in which the texts stay for the next search.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tools.environment import exit_on_signals

if TYPE_CHECKING:
    from tools.fuzz.parsers import Parser

FINDINGS: Final = Path("fuzz-findings")
DONE: Final = re.compile(
    r"#(?P<runs>[0-9]+)\s+\w+\s+cov: (?P<edges>[0-9]+) ft: [0-9]+ corp: (?P<texts>[0-9]+)"
)
MAX_MEMORY_MB: Final = 2_048


class Figures(NamedTuple):
    """What a search has done.

    Attributes:
        runs: The texts that were read.
        edges: The branches that they have reached.
        texts: The texts that have reached them.
        findings: The texts that have broken the parser.
    """

    runs: int
    edges: int
    texts: int
    findings: int


def main(arguments: list[str]) -> int:
    """Search for the parsers that are named, one after the other."""
    options = options_of(arguments)
    from tools.fuzz.search import PARSERS  # noqa: PLC0415 - it needs atheris, and takes long

    names = chosen(options.parsers, PARSERS)
    total = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for name in names:
            started = time.monotonic()
            figures = run(PARSERS[name], options.minutes, options.corpus or Path(folder))
            total += figures.findings
            print(
                f"{name:18} {(time.monotonic() - started) / 60:5.1f} min {figures.runs:12,} texts "
                f"{figures.edges:6,} edges {figures.texts:6,} kept {figures.findings} findings",
                flush=True,
            )
    return int(total > 0)


def options_of(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(prog="dev.py fuzz", description=__doc__)
    parser.add_argument("parsers", nargs="*", metavar="PARSER", help="the parsers (default: all)")
    parser.add_argument("--minutes", type=float, default=1.0, help="minutes for each parser (default: 1)")
    parser.add_argument("--corpus", type=Path, help="keep the texts in this folder")
    return parser.parse_args(arguments)


def chosen(names: list[str], parsers: Collection[str]) -> list[str]:
    """Return the names, or those of all parsers if there are none; end the program for an unknown one."""
    if unknown := set(names) - set(parsers):
        sys.exit(f"unknown parsers {', '.join(sorted(unknown))}; there are {', '.join(parsers)}")
    return names or list(parsers)


def run(parser: Parser, minutes: float, corpus: Path) -> Figures:
    """Search in a process of its own, and return what it has done."""
    from tools.fuzz.search import search  # noqa: PLC0415 - it needs atheris

    texts, findings = corpus / parser.name, FINDINGS / parser.name
    texts.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    log = findings / "log.txt"
    before = {log, *findings.iterdir()}
    for number, text in enumerate(parser.corpus()):
        (texts / f"seed-{number:04}").write_bytes(text.encode("utf-8", "surrogatepass"))
    arguments = [
        str(texts),
        f"-max_total_time={max(int(minutes * 60), 1)}",
        f"-timeout={parser.timeout_s}",
        f"-max_len={parser.max_length + 1}",
        f"-rss_limit_mb={MAX_MEMORY_MB}",
        f"-artifact_prefix={findings}/",
    ]
    code = search(parser.name, arguments, log)
    output = log.read_text("utf-8", errors="replace")
    new_findings = set(findings.iterdir()) - before
    lines = DONE.findall(output)
    runs, edges, corpus_size = map(int, lines[-1]) if lines else (0, 0, 0)
    if code and not new_findings:
        sys.exit(f"the search for {parser.name} has not run, with the code {code}:\n{output[-3000:]}")
    for path in sorted(new_findings):
        print(f"{parser.name}: {path}: {path.read_bytes()[:200]!r}", flush=True)
    if new_findings:
        print(output[-3000:], flush=True)
    return Figures(runs, edges, corpus_size, len(new_findings))


if __name__ == "__main__":
    exit_on_signals()
    sys.exit(main(sys.argv[1:]))
