"""Turn the lengths of shards into the order of an epoch, on any number of ranks.

The input is numbers: the length of each shard, a seed, an epoch, a rank. The output is indices, or
batches of them, as torch samplers that can be saved and resumed. The order is a pure function,
specified in specs/sampler-order.md; no file is opened and no sample is read.

Read first: `epoch_order` (the pure function, which shuffles), `passes` (which makes a torch sampler
of it), and `samplers` (the sampler that users start with).
"""
