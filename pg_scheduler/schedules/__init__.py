"""Periodic schedules: values and decisions without I/O."""
