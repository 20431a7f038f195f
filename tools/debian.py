"""Programs for tests that are no Python packages, from Debian's archive: ``dev.py test`` fetches them.

Each component is a few packages unpacked into a folder of its own. Nothing of the system's is touched, nobody
need be root, and a folder that is there is left alone. The archive is the one that apt knows here; where it
knows none of Debian's, there are no components, and tests that need them are skipped.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"

COMPONENTS = {
    "bookworm": {
        # 1.18, which knows nothing of prepared statements, with all of its libraries: it runs on any Linux.
        "pgbouncer-bookworm": (
            "libaudit1 libc-ares2 libc6 libcap-ng0 libcap2 libevent-2.1-7 libgcrypt20 libgpg-error0 liblz4-1 "
            "liblzma5 libpam0g libssl3 libsystemd0 libzstd1 pgbouncer"
        ),
        "libfaketime": "libfaketime",
        "etcd": "etcd-server etcd-client",
    },
    "trixie": {
        # 1.24, which does.
        "pgbouncer-trixie": (
            "libaudit1 libc6 libcap-ng0 libcap2 libcares2 libevent-2.1-7t64 libpam0g libssl3t64 libsystemd0 "
            "libzstd1 pgbouncer zlib1g"
        ),
        # Python alone: what it needs compiled (psycopg2, psutil, yaml) is in the lock.
        "patroni": (
            "patroni python3-click python3-dateutil python3-dnspython python3-etcd python3-prettytable "
            "python3-six python3-urllib3 python3-wcwidth python3-ydiff"
        ),
    },
}
"""By release of Debian and name: the packages."""


def fetch(target: Path, note: Callable[[str], None]) -> None:
    """Put each component that is missing into a folder `target / name`, which appears when it is complete."""
    for suite, components in COMPONENTS.items():
        missing = {
            name: packages.split() for name, packages in components.items() if not (target / name).exists()
        }
        if not missing:
            continue
        note(f"fetching {', '.join(missing)} from Debian {suite} ...")
        target.mkdir(exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(dir=target) as scratch:
                apt = _apt(suite, Path(scratch))
                for name, packages in missing.items():
                    _unpack(apt, packages, Path(scratch, name), target / name)
        except (OSError, subprocess.CalledProcessError) as error:
            note(f"there is none, tests that need it are skipped: {error}")


def _apt(suite: str, scratch: Path) -> list[str]:
    """The command apt-get, with everything it keeps in the scratch folder, up to date for that release."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    known = subprocess.run(targets, capture_output=True, text=True, check=True).stdout.split()
    archive = next((uri for uri in known if uri.rstrip("/").endswith("/debian")), None)
    if archive is None:
        raise OSError("apt knows no archive of Debian's here")
    sources = scratch / "sources.list"
    sources.write_text(f"deb [signed-by={KEYS}] {archive} {suite} main\n")
    for name in ("lists/partial", "cache/archives/partial"):
        (scratch / name).mkdir(parents=True)
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": scratch / "lists",
        "Dir::State::Status": "/dev/null",
        "Dir::Cache": scratch / "cache",
        "APT::Sandbox::User": "",
        "Acquire::http::Timeout": "20",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    subprocess.run([*apt, "update"], check=True)
    return apt


def _unpack(apt: list[str], packages: list[str], scratch: Path, folder: Path) -> None:
    root = scratch / "root"
    root.mkdir(parents=True)
    subprocess.run([*apt, "download", *packages], cwd=scratch, check=True)
    for package in scratch.glob("*.deb"):
        extract = ["dpkg-deb", "--extract", str(package), str(root)]
        subprocess.run(extract, check=True)
    shutil.rmtree(root / "usr" / "share" / "doc", ignore_errors=True)
    root.chmod(0o755)
    root.rename(folder)
