"""The previous version of the library, to run before the present one.

``previous.tar.gz`` contains the code and the migrations of a commit, because a fresh clone may have no
history. Until the first release it is the last commit of schema version 9. Each release replaces it, so that
the next one is tested against it::

    git archive --format=tar COMMIT pg_scheduler migrations | gzip -9n > tests/cluster/previous.tar.gz

The commit is 31f04ed, with the present texts of the migrations 0001 and 0004, which no release has: they set
the storage parameters earlier.
"""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("previous.tar.gz")


def unpack(folder: Path) -> Path:
    """Unpack the archive and return the folder to import from."""
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            assert member.isdir() or member.isfile(), member.name
            assert not Path(member.name).is_absolute(), member.name
            assert ".." not in Path(member.name).parts, member.name
        archive.extractall(folder)
    return folder


def head(folder: Path) -> int:
    """Return the newest schema version of a folder of migrations."""
    return max(
        int(match[1]) for file in folder.iterdir() if (match := re.match(r"(\d+)_.*\.up\.sql", file.name))
    )
