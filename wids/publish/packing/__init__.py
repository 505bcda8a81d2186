"""Pack a folder of files into published shards, with their spec and pack.

`folder_listing` finds the files, `metadata` and `classes` read what tables and names state about
them, `pack_plan` makes samples of all three, and `shard_tasks` cuts these into shards. Up to here
nothing is written and no picture is read. `shard_file` writes one shard, and `packed_folder` runs
all of it. Bytes are copied as they are.
"""
