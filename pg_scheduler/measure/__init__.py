"""What a process counts, measures and reports of itself, with the standard library only."""
