"""What other programs load by entry points, wherever pg_scheduler is installed.

These modules are outside of the package `pg_scheduler`, so that they do not import it before it is used.
"""
