"""A dataset and fields with its keys, from anywhere → the reader of the joined dataset."""
