"""What a view does to the samples that it reads: transformations, tuples, failures; and splits.

Nothing here reads a shard. `wids.dataset` reads samples and passes them through.
"""
