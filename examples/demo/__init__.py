"""The main job of the library on one screen: ``python -m examples.demo``."""
