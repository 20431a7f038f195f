"""A demonstration on one screen: ``python -m examples.demo``."""
