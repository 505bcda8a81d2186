"""The order of an epoch: pure functions, the torch samplers over them, and what an order costs.

Nothing here opens a file.
"""
