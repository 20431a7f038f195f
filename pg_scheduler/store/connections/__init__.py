"""Database connections by role."""
