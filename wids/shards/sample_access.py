"""Provide access to the samples of a dataset, without adding methods for users.

`access_of` returns a `wids.dataset.access.Access`; `SampleAccess` is the part of it in use here.
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
        """The label of samples whose shard names no dataset."""

    @property
    def transformations(self) -> list[Any]:
        """The transformations that a sample passes through."""

    @property
    def is_overridden(self) -> bool:
        """Whether a subclass of the dataset decides what a sample is."""

    def shard_number(self, index: int) -> int:
        """Return the number of the shard that has a sample; the index must not be negative."""

    def transformed_together(self, samples: list[Any]) -> list[Any]:
        """Apply the transformations to labelled samples."""


def access_of(dataset: Any) -> SampleAccess | None:
    """Return how the samples of a dataset are read; None for a dataset of another library."""
    # By a public name, which wrappers around a dataset pass on; checked, since other classes may
    # have an attribute of that name.
    found = getattr(dataset, "sample_access", None)
    return found if hasattr(found, "shard_number") else None


def required_access(dataset: Any) -> SampleAccess:
    """Return how the samples of a dataset are read.

    Raises:
        TypeError: It is a dataset of another library.
    """
    access = access_of(dataset)
    if access is None:
        raise TypeError(
            f"dataset: expected a wids.ShardListDataset or a view of one, found "
            f"{type(dataset).__name__}; pass the dataset inside it"
        )
    return access
