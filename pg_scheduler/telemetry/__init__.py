"""Metrics, traces, log fields and probes of a Scheduler."""
