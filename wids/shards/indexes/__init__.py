"""Store the index of one shard in a file, and those of a whole dataset in a dataset index.

A callable that is passed in reads parts of remote dataset indexes.
"""
