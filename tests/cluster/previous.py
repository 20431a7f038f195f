"""The library as it was before a migration, to be run beside the present one.

``previous.tar.gz`` holds the code and the migrations of a commit, in a file because a fresh clone may have no
history. Until there is a release it is the last commit of schema version 3; with each release it becomes
that release, so that the next one is tested against it::

    git archive --format=tar COMMIT pg_scheduler migrations | gzip -9n > tests/cluster/previous.tar.gz

The commit is 115eadd.
"""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("previous.tar.gz")


def unpack(folder: Path) -> Path:
    """Unpack it; the folder to import from."""
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            assert member.isdir() or member.isfile(), member.name
            assert not Path(member.name).is_absolute(), member.name
            assert ".." not in Path(member.name).parts, member.name
        archive.extractall(folder)
    return folder


def head(folder: Path) -> int:
    """The schema version that it makes."""
    return max(
        int(match[1]) for file in folder.iterdir() if (match := re.match(r"(\d+)_.*\.up\.sql", file.name))
    )
