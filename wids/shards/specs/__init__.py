"""A JSON document, or any other form in which shards are named → a frozen `DatasetSpec`.

`loader` resolves the forms of ``shards`` and nested documents, `parsing` and `braces` limit what a
document or a pattern can take, `entries` checks single values, `model` has `ShardSpec` and
`DatasetSpec` and writes them, and `edit` changes a document on disk. This package opens no shard.
"""
