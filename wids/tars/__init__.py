"""The bytes of a tar → indexed samples: member names, tar headers, indexes, packs, shards.

Nothing here knows URLs, caches or datasets.
"""
