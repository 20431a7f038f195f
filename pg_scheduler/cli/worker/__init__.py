"""The command ``worker``: run workers in this process, or in several."""
