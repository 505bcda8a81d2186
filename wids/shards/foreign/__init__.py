"""What other programs write beside shards: counts and splits.

Read `foreign_counts` first: it finds these files, and states in the specs of shards what they say.
"""
