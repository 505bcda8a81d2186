"""The number of a shard → the open shard, local, copied or read by range; fetching ahead.

A `ShardReader` finds the shard of a position and keeps recent shards open; a `Prefetcher` fetches
the shards that a sampler will need. Views, decoding and transformations are the dataset's.
"""
