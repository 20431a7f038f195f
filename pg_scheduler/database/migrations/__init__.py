"""The schema migrations: which ones a database has, and how they are applied and reverted."""
