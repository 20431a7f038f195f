"""The published documentation: builds of its versions, and a server that serves them as GitHub Pages does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

from tools.environment import ROOT
from tools.reference.llms import SITE

__all__ = ["PAGES", "build_documentation", "serve", "write_build"]

DOCS: Final = ROOT / "docs"
PAGES: Final = frozenset(
    path.relative_to(DOCS).with_suffix("").as_posix()
    for path in DOCS.rglob("*.md")
    if "_build" not in path.relative_to(DOCS).parts
)
"""The pages of the documentation, as Sphinx names them."""

BUILD_WITHOUT_NETWORK: Final = """
import sys

def refuse(event, arguments):
    if event in {"socket.connect", "socket.getaddrinfo", "socket.sendto", "subprocess.Popen", "os.system"}:
        raise PermissionError(f"the documentation is built without {event}{arguments}")

sys.addaudithook(refuse)

from sphinx.cmd.build import main

sys.exit(main(sys.argv[1:]))
"""
"""What builds the documentation, and fails where something of it would use the network or start a program."""


def build_documentation(folder: Path) -> None:
    """Build the documentation of the checkout without network."""
    command = [sys.executable, "-c", BUILD_WITHOUT_NETWORK, "-W", "--keep-going", "-q", "docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def write_build(folder: Path, pages: Iterable[str], text: str) -> Path:
    """Write what a build of these pages would have, with the text on each page."""
    for page in pages:
        path = folder / f"{page}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{page}</title></head>"
            f"<body><article role='main'><p>{text}</p><h2 id='part'>Part</h2></article></body></html>",
            encoding="utf-8",
        )
        path.with_suffix(".md").write_text(f"# {page}\n\n{text}\n", encoding="utf-8")
    (folder / "llms.txt").write_text(
        "".join(f"- [{page}]({SITE}{page}.md): {text}\n" for page in pages), encoding="utf-8"
    )
    (folder / "objects.inv").write_text(text, encoding="utf-8")
    return folder


class _Handler(SimpleHTTPRequestHandler):
    """Serves files without printing each request."""

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve the files of a folder, and yield the address, which ends with a slash."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
