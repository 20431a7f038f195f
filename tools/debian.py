"""Test programs that are not Python packages; ``dev.py test`` downloads them from the Debian archive.

Each component is a set of packages, unpacked into its own folder. This needs no root privileges, does not
change the system and keeps existing folders. It uses the Debian archive that apt is configured for. Without
one, there are no components and the tests that need them are skipped.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"

COMPONENTS = {
    "bookworm": {
        # 1.18 does not support prepared statements. With all of its libraries, it runs on any Linux.
        "pgbouncer-bookworm": (
            "libaudit1 libc-ares2 libc6 libcap-ng0 libcap2 libevent-2.1-7 libgcrypt20 libgpg-error0 liblz4-1 "
            "liblzma5 libpam0g libssl3 libsystemd0 libzstd1 pgbouncer"
        ),
        "libfaketime": "libfaketime",
        "zsh": "libc6 libcap2 libtinfo6 zsh zsh-common",
        "fish": "fish fish-common libc6 libgcc-s1 libpcre2-32-0 libstdc++6 libtinfo6",
        "etcd": "etcd-server etcd-client",
        # With promtool. Of its libraries it needs the C library only; the others are of its web pages.
        "prometheus": "libc6 prometheus",
        # Headless, with every library but the C library, and with one family of fonts.
        "chromium": (
            "chromium-common chromium-headless-shell fonts-dejavu-core libasound2 libasyncns0 libatk1.0-0 "
            "libatspi2.0-0 libblkid1 libbrotli1 libbsd0 libcap2 libdav1d6 libdbus-1-3 libdouble-conversion3 "
            "libdrm2 libexpat1 libffi8 libflac12 libfontconfig1 libfreetype6 libgbm1 libgcc-s1 libgcrypt20 "
            "libglib2.0-0 libgpg-error0 libgraphite2-3 libharfbuzz-subset0 libharfbuzz0b libjpeg62-turbo "
            "liblz4-1 liblzma5 libmd0 libminizip1 libmount1 libmp3lame0 libmpg123-0 libnspr4 libnss3 "
            "libogg0 libopenh264-7 libopus0 libpcre2-8-0 libpng16-16 libpulse0 libselinux1 libsndfile1 "
            "libsqlite3-0 libstdc++6 libsystemd0 libudev1 libvorbis0a libvorbisenc2 libwayland-server0 "
            "libx11-6 libx11-xcb1 libxau6 libxcb1 libxcomposite1 libxdamage1 libxdmcp6 libxext6 libxfixes3 "
            "libxi6 libxkbcommon0 libxnvctrl0 libxrandr2 libxrender1 libzstd1 zlib1g"
        ),
    },
    "trixie": {
        # 1.24 supports prepared statements.
        "pgbouncer-trixie": (
            "libaudit1 libc6 libcap-ng0 libcap2 libcares2 libevent-2.1-7t64 libpam0g libssl3t64 libsystemd0 "
            "libzstd1 pgbouncer zlib1g"
        ),
        # Its second version, which validates files without an engine. It needs the machine's C library only.
        "docker-compose": "docker-compose",
        # Renders the manifests of Kubernetes without a cluster. It needs the machine's C library only.
        "kustomize": "kustomize",
        # Pure Python only: the compiled dependencies (psycopg2, psutil, yaml) are in the lock file.
        "patroni": (
            "patroni python3-click python3-dateutil python3-dnspython python3-etcd python3-prettytable "
            "python3-six python3-urllib3 python3-wcwidth python3-ydiff"
        ),
    },
}
"""Packages by Debian release and component."""


def fetch(
    target: Path, note: Callable[[str], None], wanted: "dict[str, dict[str, str]]" = COMPONENTS
) -> None:
    """Download each missing component into `target / name`; the folder appears once it is complete.

    Args:
        target: The folder of the components.
        note: Prints a line.
        wanted: Packages by Debian release and component.
    """
    for suite, components in wanted.items():
        missing = {
            name: packages.split() for name, packages in components.items() if not (target / name).exists()
        }
        if not missing:
            continue
        note(f"downloading {', '.join(missing)} from Debian {suite} ...")
        target.mkdir(exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(dir=target) as scratch:
                apt = _apt(suite, Path(scratch))
                for name, packages in missing.items():
                    _unpack(apt, packages, Path(scratch, name), target / name)
        except (OSError, subprocess.CalledProcessError) as error:
            note(f"not available, what needs it is skipped: {error}")


def _apt(suite: str, scratch: Path) -> list[str]:
    """Return an apt-get command for that release; its state and package lists are in the scratch folder."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    known = subprocess.run(targets, capture_output=True, text=True, check=True).stdout.split()
    archive = next((uri for uri in known if uri.rstrip("/").endswith("/debian")), None)
    if archive is None:
        raise OSError("apt is configured without a Debian archive")
    sources = scratch / "sources.list"
    sources.write_text(f"deb [signed-by={KEYS}] {archive} {suite} main\n", encoding="utf-8")
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
