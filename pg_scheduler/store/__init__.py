"""Statements, connections and results of the database."""
