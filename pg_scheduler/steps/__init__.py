"""Durable steps of a job: their rows, signals and children."""
