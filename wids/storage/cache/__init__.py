"""Keep verified local copies of remote files, shared by all processes of a machine.

`store` finds, fetches and opens copies, and `cache_names` says where they are. `leases` has the
locks, `eviction` keeps the folder within its limit, and `verified` remembers which files have their
digests. No module here parses a tar.
"""
