"""The order of a sampler → the remote shards that it needs, fetched before they are read."""
