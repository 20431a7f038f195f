"""What dev.py prints if the Python that runs it is too old. Older versions can parse and run this module."""

import shutil
import sys
from pathlib import Path

NEWER = ("python3.14", "python3.13", "python3.12", "python3.11")


def explain_old_python() -> str:
    """Return the error, with the command that runs dev.py by a newer Python, or that installs one."""
    words = " ".join(["dev.py", *sys.argv[1:]])
    problem = f"dev.py requires Python 3.11 or newer, but this is Python {sys.version.split()[0]}"
    for name in NEWER:
        program = shutil.which(name)
        # The shims of pyenv are on the path for all versions, and fail for those that are not activated.
        if program and "shims" not in Path(program).parts:
            return f"{problem}; run: {name} {words}"
    return (
        f"{problem}; install a newer one (Homebrew: brew install python@3.13; "
        f"Debian and Ubuntu: apt install python3.11 python3.11-venv), then run: python3.11 {words}"
    )
