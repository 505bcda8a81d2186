"""The base of `wids.ShardListDataset`, which becomes torch's ``Dataset`` without importing torch.

Decision 0078 gives the reason for the assignment to ``__bases__``.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    TorchDataset = Dataset[Any]
else:

    class TorchDataset(Generic[TypeVar("T")]):  # Python replaces only a base of the same layout
        """Stands in for torch's ``Dataset`` until the program has imported torch.

        A DataLoader needs no such base, and browsing should not import torch.
        """


def join_torch(cls: type) -> None:
    """Make a class whose base is `TorchDataset` torch's ``Dataset``, if torch was imported.

    Programs check it with ``isinstance``, and torch may be imported before or after this module.
    """
    base = getattr(sys.modules.get("torch.utils.data"), "Dataset", None)
    if base is not None and not issubclass(cls, base):
        with suppress(TypeError):  # a subclass names torch's class before this one
            cls.__bases__ = (base,)


def overrides(cls: type, name: str, other: str) -> bool:
    """Return whether a class inherits a method from a nearer class than another method."""
    # A class that overrides both methods keeps its own batches, and one that inherits from such a
    # class does too.
    nearest = next(vars(base) for base in cls.__mro__ if {name, other} & vars(base).keys())
    return other not in nearest
