"""A pack and its shards → what is wrong with a dataset as a whole, and remarks on its fields."""
