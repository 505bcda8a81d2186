"""Send the tensors of a worker's batch: large ones in shared memory, small ones by value.

torch calls the memory of a tensor its *storage*: several tensors may share one, and torch may move
a storage to other memory while it lives.

torch makes new shared memory for each tensor that a worker sends, and the system has to make its
pages, which can take a third of an epoch of pictures. Here a worker keeps buffers and *lends* them.
A lent tensor is one of torch's shared tensors, which torch sends, moves and releases as any other.

The system counts the readers. A loan opens the file of a buffer once more, and locks it. Such a
lock belongs to the open file: each descriptor and each mapping that is made of it, in any process,
holds the lock, and the last one that ends releases it, even when its process is killed. A buffer
that can be locked is free.

torch sends the memory of each tensor as a file descriptor, whatever its length. That takes 0.3 to
0.5 ms of processor time, so that a batch of 64 small samples takes longer to send than to read. The
memory of the smallest tensors that `collate` makes is sent as bytes instead. torch sends the rest
of a tensor, and any other memory.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from wids.storage.descriptors import num_descriptors

if TYPE_CHECKING:
    import torch


# torch keeps the Python object of a storage for as long as any tensor or array uses the storage,
# also while it moves, so that entries end with the memory.

_loans: WeakKeyDictionary[torch.UntypedStorage, bool] = WeakKeyDictionary()
"""Loans, in the process that sends them, and in one that receives them and may send them on."""

_small: WeakKeyDictionary[torch.UntypedStorage, int] = WeakKeyDictionary()
"""In a worker, the lengths of the storages that are to be sent by value."""

_received: WeakKeyDictionary[torch.UntypedStorage, bytearray] = WeakKeyDictionary()
"""The bytes behind each storage that arrived by value."""

Reduced: TypeAlias = str | tuple[Any, ...]
"""What pickle takes: a function and its arguments, with which the receiver makes the storage."""

_SENDER: Final = "QueueFeederThread"
"""The name of threads that send the items of a queue between processes, such as a loader's."""


@lru_cache(1)
def _change_sending() -> bool:
    """Make queues and pipes of this process send noted storages in these ways.

    Returns:
        Whether torch sends storages in a way that can be changed.
    """
    from multiprocessing.reduction import ForkingPickler

    import torch

    by_torch = ForkingPickler(io.BytesIO()).dispatch_table.get(torch.UntypedStorage)
    if by_torch is None:
        return False
    ForkingPickler.register(torch.UntypedStorage, lambda storage: _reduced(storage, by_torch))
    return True


def _reduced(storage: torch.UntypedStorage, by_torch: Callable[[Any], Reduced]) -> Reduced:
    import torch
    from torch.multiprocessing.reductions import rebuild_storage_fd

    # A thread that writes to another pipe has another name. A second queue finds no entry.
    nbytes = _small.pop(storage, None) if threading.current_thread().name == _SENDER else None
    # It may have been shared or resized since.
    if nbytes == storage.nbytes() and not storage.is_shared():
        values = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        return _small_arrived, (bytearray(values.numpy().tobytes()),)
    match by_torch(storage):
        case (rebuild, (_, file, length)) if rebuild is rebuild_storage_fd and storage in _loans:
            return _lent_arrived, (file, length)
        case reduced:
            return reduced


LARGE_NBYTES: Final = 64 << 10
"""Longer tensors are worth a buffer."""

_MAX_SLACK: Final = 2
"""A buffer is lent for tensors of at least half of its length."""
_MAX_AGE: Final = 128
"""Loans after which a buffer that none of them used is released; there are never more buffers."""


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor whose bytes in the memory of a process are its values."""
    import torch

    return (
        type(value) is torch.Tensor
        and (value.layout, value.device.type) == (torch.strided, "cpu")
        and not (value.requires_grad or value.is_quantized)
        and not (value.is_conj() or value.is_neg())
    )


def joined_shape(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    """Return the shape of tensors one after the other."""
    return (sum(map(len, tensors)), *tensors[0].shape[1:])


class _Buffer:
    """Memory of a worker, which other processes map while it is lent.

    Attributes:
        nbytes: Its length.
        memory: The worker's own map, for writing: its pages stay mapped between loans.
        file: A descriptor that is never sent, so that it does not hold the lock of a loan.
        last_loan: The number of the loan that it was last used for.
    """

    def __init__(self, nbytes: int) -> None:
        import torch

        self.nbytes = nbytes
        self.last_loan = 0
        # Without a name: it disappears with the last process that maps it, however that ends.
        self.file = os.memfd_create("wids-batch")
        try:
            os.ftruncate(self.file, nbytes)
            self.memory = torch.from_file(
                self._path(), shared=True, size=nbytes, dtype=torch.uint8, device="cpu"
            )
        except BaseException:
            self.close()
            raise

    def _path(self) -> str:
        return f"/proc/self/fd/{self.file}"

    def lend(self, nbytes: int) -> torch.UntypedStorage | None:
        """Return the first bytes as torch's shared memory; None while anything has them mapped."""
        import fcntl

        with open(self._path(), "r+b", buffering=0) as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            return _shared(opened.fileno(), nbytes)

    def close(self) -> None:
        """Close the descriptor; the memory stays with those that have it mapped."""
        os.close(self.file)


def _shared(file: int, nbytes: int) -> torch.UntypedStorage:
    """Return the first bytes of a file as torch's shared memory, with its own descriptor."""
    import torch

    # torch's function for it looks into a cache first, by the number of the file. That is the same
    # for all loans of a buffer, and torch may have moved an earlier one to memory with a name.
    return torch.UntypedStorage._new_shared_fd_cpu(file, nbytes)  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


class Lender:
    """The buffers of a worker, at most one for each of the latest loans."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: list[_Buffer] = []
        self._num_loans = 0
        self._max_age = num_descriptors(8, _MAX_AGE)

    def joined(self, tensors: list[torch.Tensor]) -> torch.Tensor | None:
        """Return plain tensors of one type, one after the other, in a buffer; None for torch's way.

        Their first dimensions may differ.
        """
        import torch

        first, nbytes = tensors[0], sum(tensor.nbytes for tensor in tensors)
        # Users choose files with names, torch's other strategy, where descriptors are few.
        strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        if strategy != "file_descriptor":
            return None
        try:
            with self._lock:  # a collate function may have threads
                loan = self._loan(nbytes)
        except (OSError, RuntimeError):  # no descriptor, no memory
            return None
        if loan is None:
            return None
        buffer, storage = loan
        _note_loan(storage)
        shape = joined_shape(tensors)
        torch.cat(tensors, out=buffer.memory[:nbytes].view(first.dtype).view(shape))
        # On the CPU, whatever device is torch's default.
        return torch.empty(0, dtype=first.dtype, device="cpu").set_(storage).view(shape)

    def _loan(self, nbytes: int) -> tuple[_Buffer, torch.UntypedStorage] | None:
        self._num_loans += 1
        self._release_old()
        for buffer in self._fitting(nbytes):
            storage = buffer.lend(nbytes)
            if storage is not None:
                buffer.last_loan = self._num_loans
                return buffer, storage
        return None

    def _fitting(self, nbytes: int) -> Iterator[_Buffer]:
        """Yield the buffers that fit, the latest first, and then a new one."""
        for buffer in sorted(self._buffers, key=lambda buffer: -buffer.last_loan):
            if nbytes <= buffer.nbytes <= _MAX_SLACK * nbytes:
                yield buffer
        self._buffers.append(_Buffer(nbytes))
        yield self._buffers[-1]

    def _release_old(self) -> None:
        for buffer in list(self._buffers):
            if self._num_loans - buffer.last_loan >= self._max_age:
                self._buffers.remove(buffer)
                buffer.close()


def _note_loan(storage: torch.UntypedStorage) -> None:
    _change_sending()
    _loans[storage] = True


def _lent_arrived(sent: Any, nbytes: int) -> torch.UntypedStorage:
    file = sent.detach()
    try:
        storage = _shared(file, nbytes)
    finally:
        os.close(file)
    _note_loan(storage)
    return storage


def lender() -> Lender | None:
    """Return the lender of this worker; None where the system or torch do not count readers."""
    return _lender(os.getpid())


@lru_cache(1)
def _lender(_process: int) -> Lender | None:
    return Lender() if _counts_readers() else None


def _counts_readers() -> bool:
    """Whether a buffer counts as lent exactly for as long as torch has it mapped."""
    try:
        buffer = _Buffer(1)
        try:
            storage = buffer.lend(1)
            was_lent = storage is not None and buffer.lend(1) is None
            del storage
            return was_lent and buffer.lend(1) is not None
        finally:
            buffer.close()
    # No such memory, no /proc, another torch.
    except (OSError, RuntimeError, AttributeError, ImportError, TypeError):
        return False


_MAX_NBYTES: Final = 8 << 10
"""Maximum number of bytes that wait to be sent by value. A pipe holds several such messages."""


def send_by_value(batch: Any) -> None:
    """Mark the small tensors of a worker's batch to be sent by value; elsewhere do nothing."""
    from torch.utils.data import get_worker_info

    if get_worker_info() is None or not _sends_small():
        return
    waiting = (reference() for reference in _small.keyrefs())  # another thread removes some
    left = _MAX_NBYTES - sum(_small.get(each, 0) for each in waiting if each is not None)
    for tensor in _tensors(batch):
        storage = tensor.untyped_storage()
        if 0 < storage.nbytes() <= left and not storage.is_shared():
            left -= storage.nbytes()
            _small[storage] = storage.nbytes()


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
def _sends_small() -> bool:
    from multiprocessing.util import Finalize

    # After queues were asked to end, and before they are waited for.
    Finalize(None, _leave_unread, (os.getpid(), _parent()), exitpriority=0)
    return _change_sending()


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


def _small_arrived(values: bytearray) -> torch.UntypedStorage:
    """Return a storage over bytes.

    `share_memory_()`, and a queue that sends the tensor on, make torch move the storage to other
    memory. Arrays that were made before still point to these bytes, so the bytes stay.
    """
    import torch

    storage = torch.frombuffer(values, dtype=torch.uint8).untyped_storage()
    _received[storage] = values
    return storage
