"""The bytes of a tar → indexed samples: headers, member names, indexes, packs, shards.

Nothing here knows URLs, caches, specs or datasets; remote bytes come from a callable that reads a
range.
"""
