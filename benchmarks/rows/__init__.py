"""The rows of the table of goals, each a module with ``TITLE``, ``GOALS`` and ``measure``."""
