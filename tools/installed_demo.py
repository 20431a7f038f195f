"""Run the demo of an installed package, and open its dashboard as a browser does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import urllib.parse
from pathlib import Path
from typing import Final
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

from tools.environment import DevError

MAX_DEMO_S: Final = 300.0
"""Seconds after which the demo is killed; it takes about twenty."""

TIMEOUT_S: Final = 60.0


def open_dashboard(link: str) -> OpenerDirector:
    """Send the form of the one-time link, read the overview and its files, and return the browser.

    Raises:
        DevError: The page is another one, or has no style sheet or script.
        urllib.error.URLError: An address cannot be read.
    """
    browser = build_opener(HTTPCookieProcessor())
    with browser.open(link, data=b"", timeout=TIMEOUT_S) as answer:  # a POST
        page, address = answer.read().decode(), answer.geturl()
    if "Overview" not in page:
        raise DevError(f"{link} is not the overview: {page}")
    files = re.findall(r'(?:href|src)="([^"]*/static/[^"]+)"', page)
    for file in files:
        with browser.open(urllib.parse.urljoin(address, file), timeout=TIMEOUT_S) as answer:
            if not answer.read():
                raise DevError(f"{file} is empty")
    if {Path(urllib.parse.urlsplit(file).path).suffix for file in files} < {".css", ".js"}:
        raise DevError(f"the overview names no style sheet or no script: {files}")
    return browser


def check_demo(program: Path, folder: Path) -> None:
    """Run ``demo --dashboard`` in a folder, open its dashboard, and end it as Ctrl-C does.

    Args:
        program: The installed ``pg-scheduler``.
        folder: Where it runs.

    Raises:
        DevError: It printed no link, its dashboard has another page, or its exit code is not 0.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    command = [str(program), "demo", "--plain", "--dashboard", "--port", "0"]
    out, is_read = "", False
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        watchdog = threading.Timer(MAX_DEMO_S, demo.kill)
        watchdog.start()
        try:
            for line in demo.stdout:
                out += line
                if link := re.search(r"http://\S+", line):
                    open_dashboard(link[0])
                    is_read = True
                    demo.send_signal(signal.SIGINT)
        finally:
            watchdog.cancel()
            if not is_read:
                demo.kill()
    if not is_read or demo.returncode != 0:
        raise DevError(f"the demo ended with {demo.returncode}; its output:\n{out}")
