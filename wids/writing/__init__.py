"""Samples → published shards with their spec and pack.

`tar_writer` writes one shard, `shard_writer` many, and `task_run` has them written on any executor.
A shard, spec or pack appears under its name only when it is complete. Nothing here knows datasets,
samplers or the cache.
"""
