"""Turn samples, or files, into published shards with a spec and a dataset index.

The input is samples, a folder of files, existing shards, or a view of a dataset. The output is
shards, the dataset index, and the spec that names them; or a list of what is wrong with
existing ones. Every file appears complete or not at all, and an interrupted run can be resumed.

Read first: `tar_writer` (one shard), `job` (many shards, on any executor, with a journal),
and `new_spec` (the spec and dataset index of existing shards).
"""
