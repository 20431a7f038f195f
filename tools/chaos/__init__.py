"""Faults on purpose, under load, and the proof that nothing is lost, doubled or forgotten."""
