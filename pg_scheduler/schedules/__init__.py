"""Periodic schedules: pure values and decisions, without I/O."""
