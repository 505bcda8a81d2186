"""Decode and encode the fields of samples, with one table of codecs."""
