"""Samples → published shards, their spec and their pack, and the check of both."""
