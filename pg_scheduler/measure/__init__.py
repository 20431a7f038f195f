"""The counters, measurements and reports of a process about itself, with the standard library only."""
