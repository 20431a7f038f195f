"""Sphinx settings. ``python3 dev.py docs`` builds into docs/_build/html; warnings are errors."""

from __future__ import annotations

from pg_scheduler import __version__

project = "pg_scheduler"
author = "The pg_scheduler authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"pg_scheduler {release}"
html_show_sourcelink = False
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 90

# Every reference must lead somewhere, within this documentation: what other packages document is listed here.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(asyncio|asyncpg|collections|datetime|enum|logging|os|pathlib|types|typing|zoneinfo)\..*"),
    ("py:class", r"(AnyConnection|pg_scheduler\.jobs\.model\.Unset|pg_scheduler\..*\.F)"),  # ours, not public
]
