"""What torch, and subclasses, expect of a map-style dataset, without importing torch.

`MapStyleDataset` becomes a torch ``Dataset`` once the program has imported torch, and has batches
and iteration go through the ``__getitem__`` of a subclass. Nothing here knows shards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy.typing as npt

if TYPE_CHECKING:
    from torch.utils.data import ConcatDataset, Dataset

    _Dataset = Dataset[Any]
else:

    class _Dataset(Generic[TypeVar("T")]):  # Python replaces a base only by one of the same layout
        """Stands in for torch's ``Dataset`` until the program has imported torch.

        A DataLoader needs no such base, and browsing should not import torch.
        """


class MapStyleDataset(_Dataset):
    """The base of `wids.ShardListDataset`; a subclass has ``__len__`` and ``__getitem__``."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have batches and iteration call the ``__getitem__`` of a subclass that has its own."""
        super().__init_subclass__(**kwargs)
        # Here, once for each class: a question for each sample would cost everyone.
        if _overrides(cls, "__getitem__", "__getitems__"):
            cls.__getitems__ = _getitems_one_by_one  # type: ignore[attr-defined]
        if _overrides(cls, "__getitem__", "__iter__"):
            cls.__iter__ = _iter_one_by_one  # type: ignore[attr-defined]

    def __class_getitem__(cls, item: Any) -> GenericAlias:
        """Return the class with an annotation, as old programs write it; it changes nothing."""
        return GenericAlias(cls, item)

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        """Return torch's ``ConcatDataset`` of this dataset and another.

        Its samplers cannot follow shards; ``ShardListDataset`` of both lists of shards can.
        """
        from torch.utils.data import ConcatDataset

        return ConcatDataset([self, other])

    def _each(self, indices: Iterable[int]) -> Iterator[Any]:
        """Yield ``self[i]`` for each index; without the samples that are to be left out."""
        return map(self.__getitem__, indices)

    def _reading_batch(self) -> AbstractContextManager[None]:
        """Return the block in which the samples of a batch are read one by one."""
        return nullcontext()

    def _reading_pass(self) -> AbstractContextManager[None]:
        """Return the block in which one sample of a pass is read."""
        return nullcontext()


# What a subclass with a ``__getitem__`` of its own has instead. One index after the other, because
# the subclass decides what an index means, and how many there are.


def _getitems_one_by_one(self: Any, indices: Sequence[int] | npt.NDArray[Any]) -> list[Any]:
    """Return ``[dataset[i] for i in indices]``."""
    with self._reading_batch():
        return list(self._each(indices))


def _iter_one_by_one(self: Any) -> Iterator[Any]:
    for index in range(len(self)):
        with self._reading_pass():  # not around `yield`: others read in between
            samples = list(self._each((index,)))
        yield from samples


def _overrides(cls: type, name: str, other: str) -> bool:
    """Return whether a class inherits a method from a nearer class than another method."""
    order = cls.__mro__
    nearest = [
        next((at for at, base in enumerate(order) if method in vars(base)), len(order))
        for method in (name, other)
    ]
    # Nearer in the order of inheritance wins: a class that overrides both methods keeps its own
    # batches, and one that inherits from such a class does too.
    return nearest[0] < nearest[1]


def join_torch() -> None:
    """Make `MapStyleDataset` a torch ``Dataset``, if the program has imported torch.

    Programs check it with ``isinstance``, and torch may be imported before or after this module.
    """
    base = getattr(sys.modules.get("torch.utils.data"), "Dataset", None)
    if base is not None and not issubclass(MapStyleDataset, base):
        with suppress(TypeError):  # a subclass names torch's class before this one
            MapStyleDataset.__bases__ = (base,)
