"""The reference pages: Markdown written from the signatures and docstrings of the package."""
