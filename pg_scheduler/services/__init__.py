"""The background parts: each a Service with one bounded pass."""
