"""Cause each shipped alert under a real Prometheus, and follow its page of the runbook to the cure."""
