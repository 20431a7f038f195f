"""Debian's Chromium driven by Playwright, for tests and screenshots."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, async_playwright

FONTS: Final = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{root}/usr/share/fonts</dir>
  <cachedir>{scratch}</cachedir>
  <alias binding="same"><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias binding="same"><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias binding="same"><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


@asynccontextmanager
async def run_chromium(root: Path) -> AsyncIterator[Browser]:
    """Run the Chromium whose packages are unpacked in that folder, with their libraries and fonts only."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | _variables(root, Path(scratch))
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=root / "usr" / "lib" / "chromium" / "chromium-headless-shell",
                env={**environment},
            )
            try:
                yield browser
            finally:
                await browser.close()


def _variables(root: Path, scratch: Path) -> dict[str, str]:
    folder = next((root / "usr" / "lib").glob("*-linux-gnu*"))
    libraries = [folder, folder / "pulseaudio", root / "lib" / folder.name]
    fonts = scratch / "fonts.conf"
    fonts.write_text(FONTS.format(root=root, scratch=scratch), encoding="utf-8")
    return {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "FONTCONFIG_FILE": str(fonts)}
