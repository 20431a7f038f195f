"""Claim due jobs, execute them and settle their results."""
