"""The command line, in the extra ``[cli]``: one module per group of commands.

Every command is a front end over the public API and adds no SQL of its own.
"""
