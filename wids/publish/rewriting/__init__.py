"""Write samples of a dataset to new shards: concatenate, split, sort, shuffle, filter or map them.

The order is that of the dataset or view, which also finds and reads the samples.
"""
