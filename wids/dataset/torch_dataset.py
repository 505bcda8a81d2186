"""Make a dataset one of torch's, without importing torch, and say what a loader cannot do with it.

Decision 0078 has the reason for the assignment to ``__bases__``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from wids.storage.shared_numbers import passes_to_process

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


def check_spawnable(steps: Iterable[Any], on_error: Any) -> None:
    """Raise TypeError for a function that a process which is being started cannot find by name.

    Args:
        steps: The transformations of a dataset.
        on_error: Its policy.
    """
    if not passes_to_process():
        return
    decoders = [each for step in steps for each in getattr(step, "table", {}).values()]
    places = {
        "map": steps,
        "Decoder: decoders": decoders,
        "on_error": [on_error],
        "collate_fn or worker_init_fn": filter(callable, _arguments_of_process()),
    }
    # A notebook and `python -c` have no file that a worker could import.
    has_file = hasattr(sys.modules["__main__"], "__file__")
    for place, functions in places.items():
        for each in functions:
            function = getattr(each, "func", getattr(each, "function", each))
            named = function if hasattr(function, "__qualname__") else type(function)
            is_of_main = getattr(named, "__module__", "") == "__main__"
            if "<" in named.__qualname__ or (is_of_main and not has_file):
                raise TypeError(
                    f"{place}: expected a function at the top level of a module that workers can "
                    f"import, as they are not forked, found {named.__qualname__} of "
                    f"{named.__module__}; define it in a file with `def`, or pass "
                    'multiprocessing_context="fork" to the DataLoader'
                )


def _arguments_of_process() -> Iterable[Any]:
    """Return the arguments of the process that is being started: the functions of its loader.

    They are pickled after the dataset, with an error of Python that names no place.
    """
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - documented, unlike any other way
    while frame is not None:
        if "process_obj" in frame.f_locals:  # multiprocessing's name for it (decision 0086)
            return getattr(frame.f_locals["process_obj"], "_args", ())
        frame = frame.f_back
    return ()


def join_torch(cls: type) -> None:
    """Make a class whose base is `TorchDataset` torch's ``Dataset``, if torch was imported.

    Programs check it with ``isinstance``, and torch may be imported before or after this module.
    Also have torch's ``default_collate`` say what to do (decision 0078).
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
