"""The number of a shard → the open shard: a local file, a cached copy, or a tar read by range.

`opener` chooses, `pool` keeps recent shards open, `packs` have their indexes. `glimpse` looks at
shards that may have no index. Positions, views and fields are unknown here.
"""
