"""Turn the order of an epoch into batches of one bucket each, equal on all ranks.

Knows nothing of files, and of samples only their number in each bucket.
"""
