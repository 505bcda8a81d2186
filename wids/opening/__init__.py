"""The number of a shard → the open shard: a local file, a cached copy, or a tar read by range.

`opener` chooses, `pool` keeps recent shards open, `packs` have their indexes. `glimpse` shows the
beginning of a remote tar that has no index. Positions, views and fields are unknown here.
"""
