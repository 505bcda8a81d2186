"""A URL → a verified local copy, shared by all processes of a machine.

Nothing here parses a tar.
"""
