"""The migrations of the tables, one for each pair of SQL files."""
