"""Triggers: when a schedule fires. Pure arithmetic on instants, without I/O."""
