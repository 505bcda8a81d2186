"""Existing shards → what is published beside them: their descriptions, the pack and the spec.

`build` describes shards on any executor, `appending` adds shards to a published dataset, and
`verify` compares shards with their spec. Nothing here knows datasets, samplers or the cache.
"""
