"""Samples → published shards with their spec and pack; published shards → what is wrong with them.

`tar_writer` writes one shard and `shard_writer` many. `build` describes shards that exist already,
on any executor, and `verify` compares shards with their spec. A shard, spec or pack appears under
its name only when it is complete. Nothing here knows datasets, samplers or the cache.
"""
