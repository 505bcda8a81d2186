"""Index and read the samples of a tar: headers, member names, indexes and shards.

Remote bytes come from a callable that reads a range.
"""
