"""A URL → a verified local copy, shared by all processes of a machine.

`names` says where things are, `store` finds and fetches them, and the other modules are what that
needs: turns, leases, space, eviction, sweeping, verified files. None of them parses a tar.
"""
