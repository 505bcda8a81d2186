"""A JSON document, or another way to name shards → a frozen `DatasetSpec`.

Nothing here opens a shard.
"""
