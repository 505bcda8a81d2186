"""Inspect the call stack of a sampler for what the calling loader does with its indices.

A trainer can wrap a sampler so that its indices are sharded among the ranks again, and a loader's
workers run ahead of training. The sampler receives no sign of it: only its callers differ. Their
frames are inspected when a pass begins and when a state is saved. No trainer is imported (decision
0044). An object in a frame may be of any kind, and half built, so looking at one never raises.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypeVar
from weakref import ref

from torch.utils.data import DistributedSampler

T = TypeVar("T")

_NUM_FRAMES: Final = 200
"""Callers to inspect. A trainer is tens of calls above its loader."""

_LEAVE: Final = (
    "leave the loader out of accelerator.prepare(), and use "
    "wids.SamplerTrainer instead of transformers' Trainer"
)


def second_dealing(num_replicas: int, *, shuffle: bool) -> str | None:
    """Return a remark on a caller that deals indices out among ranks, or None if none does harm.

    Args:
        num_replicas: Number of ranks that the sampler itself deals to.
        shuffle: Whether its order is shuffled.
    """
    for frame in _callers():
        dealer = _looked_at(_dealer, frame)
        if dealer is None:
            continue
        name, num_dealt = dealer
        if num_replicas > 1:
            cure = _LEAVE if _module(frame).startswith("accelerate.") else "pass it unwrapped"
            return (
                f"each of {num_replicas} ranks has its share already, and {name} shards it again "
                f"among {num_dealt} processes, so that most of the dataset is never read; {cure}"
            )
        if shuffle and not _module(frame).startswith("accelerate."):
            return (
                f"{name} lists the whole epoch on each of {num_dealt} ranks and picks samples from "
                "all over it, so that batches no longer follow shards, and a state is not that of "
                "the rank; use DistributedChunkedSampler, which trainers leave as it is"
            )
        return None  # accelerate deals the batches of one order: each is read once
    return None


@dataclass(frozen=True)
class Reader:
    """What reads a pass.

    Attributes:
        loader: The iterator of a loader whose workers run ahead of training; None without workers.
    """

    loader: ref[Any] | None = None

    def is_ahead(self, *, has_ended: bool) -> bool:
        """Return whether workers have been sent batches that the loader has not returned.

        Args:
            has_ended: Whether the pass was read to its end.
        """
        if self.loader is None:
            return False
        if (loader := self.loader()) is None:
            # The loop was left before the end, or it is over.
            return not has_ended
        # Not `_tasks_outstanding`: a batch that arrives before its turn is none of these.
        sent, returned = (vars(loader).get(name) for name in ("_send_idx", "_rcvd_idx"))
        return isinstance(sent, int) and isinstance(returned, int) and sent > returned

    def __reduce__(self) -> tuple[type[Reader], tuple[()]]:
        return Reader, ()  # in another process nobody reads yet


def calling_reader() -> Reader:
    """Return what begins a pass, by its frames."""
    loaders = (_looked_at(_loader_with_workers, frame.f_locals.get("self")) for frame in _callers())
    return Reader(next(filter(None, loaders), None))


def _loader_with_workers(caller: Any) -> ref[Any] | None:
    # torch's, and torchdata's, which is not a subclass of it.
    is_loader = type(caller).__name__.endswith("MultiProcessingDataLoaderIter")
    return ref(caller) if is_loader else None


def is_torchdata() -> bool:
    """Return whether torchdata's loader takes a state, and counts what it has returned itself."""
    return any(_module(frame).startswith("torchdata.") for frame in _callers())


def _looked_at(look: Callable[[Any], T | None], value: Any) -> T | None:
    # Others' attributes may be missing while their object is made, or compute and fail.
    try:
        return look(value)
    except Exception:  # noqa: BLE001 - a remark is not worth a job
        return None


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - documented, unlike any other way
    for _ in range(_NUM_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _dealer(frame: FrameType) -> tuple[str, int] | None:
    """Return the name of a loader or sampler that deals to several ranks, and their number."""
    module, method = _module(frame), frame.f_code.co_name
    if module == "accelerate.data_loader":
        kind, number = _of_accelerate(frame.f_locals.get("self"))
        name = f"accelerate's {kind}"
    elif method == "__iter__" and not module.startswith("wids."):
        # Those of Lightning, ignite and catalyst are torch samplers around the user's.
        dealer = frame.f_locals.get("self")
        number = dealer.num_replicas if isinstance(dealer, DistributedSampler) else 1
        name = f"{type(dealer).__name__} ({module.partition('.')[0]})"
    else:
        return None
    return (name, number) if number > 1 else None


def _of_accelerate(caller: Any) -> tuple[str, int]:
    kind = type(caller).__name__
    if kind in ("BatchSamplerShard", "IterableDatasetShard"):
        return kind, int(caller.num_processes)
    if kind == "DataLoaderDispatcher":  # process 0 reads for all
        return kind, int(caller.state.num_processes)
    return kind, 1
