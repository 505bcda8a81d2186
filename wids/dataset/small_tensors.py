"""Send the small tensors of a worker's batch by value.

torch sends the memory of each tensor as a file descriptor, whatever its length. That takes 0.3 to
0.5 ms of processor time, so that a batch of 64 small samples takes longer to send than to read. The
memory of the smallest tensors that `collate` makes is sent as bytes instead. torch sends the rest
of a tensor, and any other memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from wids.dataset.lending import is_plain
from wids.dataset.storages import Reduced, StorageTable, send_storages_by

if TYPE_CHECKING:
    import torch

_MAX_NBYTES: Final = 8 << 10
"""Maximum number of bytes that wait to be sent by value. A pipe holds several such messages."""
_SENDER: Final = "QueueFeederThread"
"""The name of threads that send the items of a queue between processes, such as a loader's."""


# In the worker.

_waiting: StorageTable[int] = StorageTable()
"""The lengths of the storages that are to be sent by value."""


def send_by_value(batch: Any) -> None:
    """Mark the small tensors of a worker's batch to be sent by value; elsewhere do nothing."""
    from torch.utils.data import get_worker_info

    if get_worker_info() is None or not _register():
        return
    left = _MAX_NBYTES - sum(_waiting.present())
    for tensor in _tensors(batch):
        storage = tensor.untyped_storage()
        if 0 < storage.nbytes() <= left and not storage.is_shared():
            left -= storage.nbytes()
            _waiting[storage] = storage.nbytes()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the plain tensors of a batch; a list of texts has none."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple) and not isinstance(next(iter(value), ""), str):
        for item in value:
            yield from _tensors(item)
    elif is_plain(value):
        yield value


@lru_cache(1)
def _register() -> bool:
    from multiprocessing.util import Finalize

    # After queues were asked to end, and before they are waited for.
    Finalize(None, _leave_unread, (os.getpid(), _parent()), exitpriority=0)
    return send_storages_by(_reduced)


def _parent() -> int:
    """Return the process that stays this worker's parent as long as the main process lives.

    That is the main process itself, which may be gone already, since a first batch can take
    minutes. Where a fork server has started the worker, it is that server.
    """
    from multiprocessing import context, current_process, parent_process

    served: Any = getattr(context, "ForkServerProcess", ())  # which Windows lacks
    main = parent_process()
    is_served = isinstance(current_process(), served)
    return os.getppid() if is_served or main is None or main.pid is None else main.pid


def _leave_unread(worker: int, parent: int) -> None:
    """End a worker whose main process was killed, if it waits for a full pipe that is never read.

    Its siblings hold the reading end of the pipe as well, so that it would wait forever.
    """
    if os.getpid() != worker or os.getppid() == parent:
        return
    for thread in threading.enumerate():
        if thread.name == _SENDER:
            thread.join(1)
            if thread.is_alive():
                os._exit(1)


def _reduced(storage: torch.UntypedStorage, before: Callable[[Any], Reduced]) -> Reduced:
    import torch

    # A thread that writes to another pipe has another name. A second queue finds no entry.
    if threading.current_thread().name != _SENDER:
        return before(storage)
    nbytes = _waiting.pop(storage)
    # It may have been shared or resized since.
    if nbytes != storage.nbytes() or storage.is_shared():
        return before(storage)
    values = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    return _arrived, (bytearray(values.numpy().tobytes()),)


# In the process where it arrives.

_received: StorageTable[bytearray] = StorageTable()
"""The bytes behind each storage."""


def _arrived(values: bytearray) -> torch.UntypedStorage:
    """Return a storage over bytes.

    `share_memory_()`, and a queue that sends the tensor on, make torch move the storage to other
    memory. Arrays that were made before still point to these bytes, so the bytes stay.
    """
    import torch

    storage = torch.frombuffer(values, dtype=torch.uint8).untyped_storage()
    _received[storage] = values
    return storage
