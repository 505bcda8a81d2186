"""Keep verified local copies of remote files, shared by all processes of a machine.

`cache_names` says where things are, `store` finds and fetches them, and the other modules are what
that needs: turns, leases, space, eviction, sweeping, verified and small files. No module here
parses a tar.
"""
