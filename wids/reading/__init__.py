"""The number of a shard → the open shard, local, copied or read by byte range; fetching ahead.

Nothing here decodes a field.
"""
