"""The base of `wids.ShardListDataset`, which becomes torch's ``Dataset`` without importing torch.

Decision 0078 gives the reason for the assignment to ``__bases__``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from wids.storage.shared_number import passes_to_process

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    TorchDataset = Dataset[Any]
else:

    class TorchDataset(Generic[TypeVar("T")]):  # Python replaces only a base of the same layout
        """Stands in for torch's ``Dataset`` until the program has imported torch.

        A DataLoader needs no such base, and browsing should not import torch.
        """


class _Unbatched(type):
    def __instancecheck__(cls, value: object) -> bool:
        return value is None or type(value).__module__.startswith("PIL.")


class _Value(metaclass=_Unbatched):
    """Any value of which torch makes no batch, and for which there is advice."""


def _refuse(batch: Sequence[Any], **_: Any) -> NoReturn:
    """Raise the error for a batch of such values, in place of torch's, which has their type."""
    if batch[0] is None:
        raise TypeError(
            "expected samples to batch, found None; does a function that was passed to map() end "
            "without `return sample`?"
        )
    raise TypeError(
        'expected arrays or tensors to batch, found pictures of PIL; use transformations="torch" '
        'or "numpy", turn them into tensors in map(), or pass collate_fn=list to the DataLoader'
    )


def check_spawnable(transformations: Iterable[Any]) -> None:
    """Raise TypeError for a function that a process which is being spawned cannot find by name."""
    for step in transformations:
        function = getattr(step, "func", getattr(step, "function", step))
        name = getattr(function, "__qualname__", "")
        if "<" in name and passes_to_process():
            raise TypeError(
                f"map: expected a function at the top level of a module, as workers are spawned, "
                f"found {name} of {function.__module__}; define it there with `def`, or pass "
                'multiprocessing_context="fork" to the DataLoader'
            )


def join_torch(cls: type) -> None:
    """Make a class whose base is `TorchDataset` torch's ``Dataset``, if torch was imported.

    Programs check it with ``isinstance``, and torch may be imported before or after this module.
    Also have torch's ``default_collate`` say what to do (decision 0167).
    """
    if "torch.utils.data" in sys.modules:
        from torch.utils.data._utils.collate import default_collate_fn_map

        default_collate_fn_map.setdefault(_Value, _refuse)
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
