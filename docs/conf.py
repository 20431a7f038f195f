"""Sphinx settings. ``python3 dev.py docs`` builds into docs/_build/html; warnings are errors."""

from __future__ import annotations

from pg_scheduler import __version__

project = "pg_scheduler"
author = "The pg_scheduler authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx_copybutton", "tools.reference.extension"]
exclude_patterns = ["_build"]
smartquotes = False  # "--group" in a text would become a dash

html_theme = "furo"
html_title = f"pg_scheduler {release}"
html_show_sourcelink = False
html_copy_source = False

copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
