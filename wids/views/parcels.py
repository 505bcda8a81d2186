"""A collated batch → one that crosses from a worker to the main process in few pieces.

torch sends each tensor as new shared memory, whatever its size, for which both processes exchange a
file descriptor. That takes 0.3 to 0.5 ms of processor time for each tensor, so that a batch of 64
small samples takes longer to send than to read. When the dict or list that `collate` returns in a
worker is sent, its small tensors go as bytes and its large ones in buffers that are lent; where it
arrives it is a plain dict or list of tensors. Nothing here knows what a field is.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from wids.views.lending import LARGE_NBYTES, is_plain, lent

if TYPE_CHECKING:
    import torch


class ParcelDict(dict[Any, Any]):
    """A batch of a worker that is a dict."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class ParcelList(list[Any]):
    """A batch of a worker that is a list."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class _Small:
    """A small tensor as its bytes, which are copied through the pipe: 0.05 ms for the largest."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.array = tensor.contiguous().numpy()

    def __reduce__(self) -> tuple[Any, ...]:
        # A bytearray, since tensors of bytes could not be written to.
        return _tensor, (bytearray(self.array.tobytes()), self.array.dtype.str, self.array.shape)


def _reduce_dict(parcel: ParcelDict) -> tuple[Any, ...]:
    return _arrived_dict, (list(parcel), _packed(parcel.values()))


def _reduce_list(parcel: ParcelList) -> tuple[Any, ...]:
    return _arrived_list, (_packed(parcel),)


@lru_cache(None)
def _register() -> None:
    """Have queues between processes send parcels in their own way; all other pickles are plain."""
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler.register(ParcelDict, _reduce_dict)
    ForkingPickler.register(ParcelList, _reduce_list)


def parcel(batch: Any) -> Any:
    """Return a batch of a worker as one that is sent in few pieces; elsewhere as it is."""
    from torch.utils.data import get_worker_info

    if get_worker_info() is None:
        return batch
    _register()
    return _parcel(batch)


def _parcel(value: Any) -> Any:
    """Return a dict or list with tensors in it, at any depth, as a parcel; others as they are."""
    if type(value) is dict:
        return ParcelDict(value)
    # A list of texts is none.
    is_nested = type(value) is list and value and not isinstance(value[0], str | bytes)
    return ParcelList(value) if is_nested else value


def _packed(values: Iterable[Any]) -> list[Any]:
    return [_packed_tensor(value) if is_plain(value) else _parcel(value) for value in values]


def _packed_tensor(tensor: torch.Tensor) -> Any:
    """Return what to send in place of a plain tensor; itself if that is torch's way."""
    return _Small(tensor) if _is_small(tensor) else lent(tensor) or tensor


def _is_small(value: torch.Tensor) -> bool:
    """Whether a tensor is small, and one that numpy can hold."""
    if value.nbytes > LARGE_NBYTES:
        return False
    try:
        value.numpy()
    except (TypeError, RuntimeError):  # bfloat16, and what is computed lazily
        return False
    return True


# Where it arrives.


def _arrived_dict(names: list[Any], values: list[Any]) -> dict[Any, Any]:
    return dict(zip(names, values, strict=True))


def _arrived_list(values: list[Any]) -> list[Any]:
    return values


def _tensor(data: bytearray, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.frombuffer(data, dtype).reshape(shape))
