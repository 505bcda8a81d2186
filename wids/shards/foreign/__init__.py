"""What other programs write beside shards: counts and splits.

Read `written_beside` first: it finds these files, and states in the specs of shards what they say.
"""
