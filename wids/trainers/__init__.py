"""wids' samplers in trainers that would deal samples out themselves, one module for each trainer.

A module imports its trainer, so none is imported with wids. Most trainers need none of this: they
take a DataLoader, or leave a ``DistributedSampler`` alone.
"""
