"""Turn the orders of several datasets into one, in which each has its weight.

Knows nothing of files and samples.
"""
