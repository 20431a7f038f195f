"""The committed pictures and trees of pages, and what makes a new one different.

A picture is compared by the mean colors of its blocks, 40 x 43 pixels each. Such a block has two lines of
text, so other glyphs of the same text change its mean by some units of 255. A missing row of text changes it
by 20 and more, another theme by 200. Some blocks may differ, since a word that is wrapped elsewhere moves
others.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Page

__all__ = [
    "PICTURES",
    "SIZE",
    "TARGET",
    "THEMES",
    "is_renewing",
    "read_blocks",
    "share_of_other_blocks",
]

TARGET: Final = Path(__file__).parents[2] / "docs" / "figures"
SIZE: Final = {"width": 1280, "height": 860}
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
PICTURES: Final[Mapping[str, str]] = {
    "overview": "/",
    "jobs": "/jobs?q=status:running",
    "job": "/job?id=0195c04d-898b-7cb9-9534-9c3edbfb004d",
    "errors": "/errors",
    "schedules": "/schedules",
    "workers": "/workers",
}
"""The addresses of the pages that the documentation shows, by name."""

COLUMNS: Final = 32
ROWS: Final = 20
BLOCK_TOLERANCE: Final = 12.0
"""Units of 255 by which each of red, green and blue may differ."""

Blocks = Sequence[Sequence[float]]
"""The mean red, green and blue of each block, row by row."""

READ_BLOCKS: Final = """
    async ([pictures, columns, rows]) => Promise.all(pictures.map(async (picture) => {
      const image = new Image();
      image.src = `data:image/png;base64,${picture}`;
      await image.decode();
      const { width, height } = image;
      const context = new OffscreenCanvas(width, height).getContext("2d");
      context.drawImage(image, 0, 0);
      const pixels = context.getImageData(0, 0, width, height).data;
      const sums = Array.from({ length: columns * rows }, () => [0, 0, 0, 0]);
      for (let y = 0; y < height; y += 1) {
        for (let x = 0; x < width; x += 1) {
          const sum = sums[Math.floor(y * rows / height) * columns + Math.floor(x * columns / width)];
          const place = 4 * (y * width + x);
          for (let part = 0; part < 3; part += 1) sum[part] += pixels[place + part];
          sum[3] += 1;
        }
      }
      return sums.map(([red, green, blue, count]) => [red / count, green / count, blue / count]);
    }))
"""


def is_renewing() -> bool:
    """Return whether to write what is seen, instead of comparing it."""
    return bool(os.environ.get("PG_SCHEDULER_RENEW"))


async def read_blocks(page: Page, pictures: Sequence[bytes]) -> list[Blocks]:
    """Return the mean colors of pictures; an empty page of the browser decodes them."""
    texts = [b64encode(each).decode() for each in pictures]
    found: list[Blocks] = await page.evaluate(READ_BLOCKS, [texts, COLUMNS, ROWS])
    return found


def share_of_other_blocks(one: Blocks, other: Blocks) -> float:
    """Return the share of the blocks whose colors differ, from 0 to 1."""
    pairs = zip(one, other, strict=True)
    differing = sum(
        any(abs(before - after) > BLOCK_TOLERANCE for before, after in zip(*pair, strict=True))
        for pair in pairs
    )
    return differing / len(one)
