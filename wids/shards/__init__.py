"""Turn tar shards into samples, by number and position.

The input is a spec and the bytes of tars. The output is the index of each shard, and the fields of
each sample, from a local file, a cached copy, or ranges of a remote file. `fields` decodes fields;
no transformations are applied here.

Read first: `tars.shard` (a local tar), `policy` (how a shard is read), and `reader` (how the
position of a sample becomes its bytes).
"""
