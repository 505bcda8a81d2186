"""Load a frozen `DatasetSpec` from a JSON document or any other form in which shards are named.

`loader` resolves the forms of ``shards``, `documents` JSON documents and those inside them,
`parsing` and `naming` limit the size of documents and patterns, `entries` checks single values,
`model` has `ShardSpec` and `DatasetSpec` and writes them, and `saving` changes a document on disk.
This package opens no shard.
"""
