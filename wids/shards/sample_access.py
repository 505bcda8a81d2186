"""`access_of`: what other packages ask of a dataset, instead of methods among those for its users.

`wids.dataset.access.Access` is what they get; `SampleAccess` are the parts of it that they use.
"""

from __future__ import annotations

from typing import Any, Protocol

from wids.shards.reader import ShardReader


class SampleAccess(Protocol):
    """How the samples of a dataset are read; see `wids.dataset.access.Access`."""

    @property
    def reader(self) -> ShardReader:
        """The shards."""

    @property
    def dataset_name(self) -> str:
        """The label of samples whose shard belongs to no dataset of its own."""

    @property
    def transformations(self) -> list[Any]:
        """What a sample passes through."""

    @property
    def is_overridden(self) -> bool:
        """Whether a subclass of the dataset decides what a sample is."""

    def shard_number(self, index: int) -> int:
        """Return the number of the shard that a sample is in; the index must not be negative."""

    def transformed(self, sample: Any) -> Any:
        """Return what the transformations make of a labelled sample."""


def access_of(dataset: Any) -> Any:
    """Return how the samples of a dataset are read; None for a dataset that is not wids' own."""
    # The attribute is private because programs have subclasses, with attributes of their own.
    return getattr(dataset, "_access", None)
