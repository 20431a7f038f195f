"""A scratch copy of the checkout, and what git knows about it."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.environment import DevError

HUNK: Final = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")
RECENT_S: Final = 7 * 24 * 3_600


def git(root: Path, *words: str) -> str:
    """Return what git prints."""
    command = ["git", *words]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DevError(f"mutants needs git and a commit: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def scratch(root: Path) -> Iterator[Path]:
    """Make a copy of the last commit in a temporary folder, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        git(root, "worktree", "add", "--quiet", "--detach", str(tree), "HEAD")
        try:
            yield tree
        finally:
            git(root, "worktree", "remove", "--force", str(tree))


def recent_lines(root: Path, package: str) -> dict[str, set[int]]:
    """Return the lines that were changed in the last days before the last commit, by file.

    None where the history ends sooner, as that of a shallow clone does.
    """
    instant = int(git(root, "log", "-1", "--format=%ct"))
    commit = git(root, "rev-list", "-1", f"--min-age={instant - RECENT_S}", "HEAD").strip()
    lines: defaultdict[str, set[int]] = defaultdict(set)
    if not commit:
        return lines
    path = ""
    diff = git(root, "diff", "--unified=0", "--no-renames", "--no-color", commit, "HEAD", "--", package)
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line[6:]
        elif hunk := HUNK.match(line):
            start, count = int(hunk[1]), int(hunk[2] or 1)
            # A removed line counts as the one before it.
            lines[path].update(range(start, start + max(count, 1)))
    return lines


class File:
    """A file of the scratch copy, which changes for one run of tests.

    Python decides by the second and the size whether compiled code is that of a file, and a mutant may have
    both of the mutant before it. So each text gets a second of its own.
    """

    _second = int(time.time())

    def __init__(self, path: Path) -> None:
        self._path = path
        self.text = path.read_text("utf-8")

    @contextmanager
    def changed(self, text: str) -> Iterator[None]:
        """Give the file another text for the block."""
        self._write(text)
        try:
            yield
        finally:
            self._write(self.text)

    def _write(self, text: str) -> None:
        self._path.write_text(text, "utf-8")
        File._second += 1
        os.utime(self._path, (File._second, File._second))
