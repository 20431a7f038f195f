"""Build hook: make the relative links of the README absolute in the metadata of wheel and sdist.

A package index shows the README without the files of the checkout.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES: Final = "https://github.com/pg-scheduler/pg-scheduler/blob"
FILES: Final = "https://raw.githubusercontent.com/pg-scheduler/pg-scheduler"
LINK: Final = re.compile(r"(?P<before>(?P<image>!?)\[[^\]]*\]\()(?![a-z]+:|#)(?P<target>[^)\s]+)")
PICTURE: Final = re.compile(r'(?P<before>\b(?:src|srcset)=")(?![a-z]+:)(?P<target>[^"\s]+)')
"""An attribute of HTML, for pictures in light and dark."""


def make_links_absolute(text: str, version: str) -> str:
    """Return Markdown whose relative links lead to the tag of the version; to ``main`` if it has no tag."""
    tag = "main" if "dev" in version else f"v{version}"
    text = LINK.sub(
        lambda link: f"{link['before']}{FILES if link['image'] else PAGES}/{tag}/{link['target']}", text
    )
    return PICTURE.sub(lambda link: f"{link['before']}{FILES}/{tag}/{link['target']}", text)


class AbsoluteLinks(MetadataHookInterface):
    """The hook that hatchling calls, named in ``pyproject.toml``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description of the package."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        links = make_links_absolute(text, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": links}
