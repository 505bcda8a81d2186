"""A position in a dataset → the sample there; and what else is asked about its shards.

A `ShardReader` finds the shard of a position and reads from it, and counts shards of unknown
length. `positions` are what views are made of. Decoding and transformations are the dataset's.
"""
