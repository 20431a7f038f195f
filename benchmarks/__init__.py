"""Measure the library against its goals and its peers: ``python -m benchmarks --help``."""
