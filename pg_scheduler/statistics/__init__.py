"""Counts of jobs by name and time."""
