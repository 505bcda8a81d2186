"""Turn tar shards into samples, by number and position.

In go a spec and the bytes of tars. Out come indexes of the samples, and the fields of each sample:
from a local file, a cached copy, or ranges of a remote file. Decoding a field is `fields`; what
transformations make of a sample is unknown here.

Read first: `tars.shard` (a local tar), `opener` (how a shard is opened), and `reader` (from the
position of a sample to its bytes).
"""
