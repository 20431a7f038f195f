"""The search language of the Inspector: parsing a text, and the conditions that it means.

Everything here is pure: a text, an instant and a time zone lead to values, without a database.
"""
