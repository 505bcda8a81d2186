"""Combine the other packages in `ShardListDataset`, and in what is made of it.

The input is a spec and the arguments of the constructor. The output is samples by index, views,
batches, streams, and shards that are fetched ahead of a sampler.

Read first: `shard_list` (`dataset[i]`), `prefetch` (shards ahead of their samples), and `collating`
(samples into a batch).
"""
