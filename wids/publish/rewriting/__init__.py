"""Samples of a dataset → new shards: concatenated, split, sorted, shuffled, filtered, mapped.

The order is that of the dataset or view. How samples are found and read is up to the dataset.
"""
