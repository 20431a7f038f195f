"""The rules of the scheduler, pure: no I/O, no clock, no database."""
