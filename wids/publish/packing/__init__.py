"""A folder of files → published shards, with their spec and pack.

`listing` finds the files, `metadata` and `classes` read what names and tables say of them, `plan`
makes samples of all three, and `shard_tasks` cuts these into shards. Up to here nothing is written
and no picture is read. `shard_file` writes one shard, and `folder` runs it all. Bytes are copied as
they are.
"""
