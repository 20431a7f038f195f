"""Validate jobs and write them to the database."""
