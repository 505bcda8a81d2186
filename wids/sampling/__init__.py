"""The order of an epoch: pure functions, the torch samplers on top of them, and what orders cost.

Nothing here opens a file.
"""
