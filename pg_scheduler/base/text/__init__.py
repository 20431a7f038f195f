"""Texts that people type and read, in one way wherever they do: lengths of time, instants and values."""
