"""Job values and decisions without I/O."""
