"""Metrics and health of a Scheduler."""
