"""Keep the index of one shard in a file, and those of a whole dataset in a pack.

Knows nothing of URLs and caches: what reads a part of a pack from elsewhere is passed in.
"""
