"""The methods of `Scheduler`, by subject."""
