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
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    import torch


Value = TypeVar("Value")
_MIN_SWEEP: Final = 128


class StorageTable(Generic[Value]):
    """Values of storages, kept at least as long as any tensor or array uses them.

    Values of storages that are gone are removed when the size of the table has doubled.
    """

    def __init__(self) -> None:
        self._values: dict[Any, Value] = {}
        self._sweep_at = _MIN_SWEEP

    def __len__(self) -> int:
        return len(self._values)

    def __setitem__(self, storage: torch.UntypedStorage, value: Value) -> None:
        if len(self._values) >= self._sweep_at:
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self.present()))
        self._values[_reference(storage)] = value

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return _reference(storage) in self._values

    def pop(self, storage: torch.UntypedStorage) -> Value | None:
        """Return the value of a storage and forget it; None if it has none."""
        return self._values.pop(_reference(storage), None)

    def present(self) -> list[Value]:
        """Forget the values of storages that are gone, and return the others."""
        # Other threads may change the table meanwhile.
        for reference in list(self._values):
            if reference.expired():
                self._values.pop(reference, None)
        return list(self._values.values())


def _reference(storage: torch.UntypedStorage) -> Any:
    """Return a key that is equal for the same storage, but not for a later one at its address."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


Reduced: TypeAlias = str | tuple[Any, ...]
"""What pickle takes: a function and its arguments, with which the receiver makes the storage."""


def send_storages_by(
    reduce: Callable[[torch.UntypedStorage, Callable[[torch.UntypedStorage], Reduced]], Reduced],
) -> bool:
    """Make queues and pipes of this process call a function to send a storage.

    Args:
        reduce: Takes the storage, and the function that was called before.

    Returns:
        Whether torch sends storages in a way that can be changed.
    """
    from multiprocessing.reduction import ForkingPickler

    import torch

    before = ForkingPickler(io.BytesIO()).dispatch_table.get(torch.UntypedStorage)
    if before is None:
        return False
    ForkingPickler.register(torch.UntypedStorage, lambda storage: reduce(storage, before))
    return True


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


def joined_shape(tensors: list[torch.Tensor], *, stacks: bool) -> tuple[int, ...]:
    """Return the shape of tensors that are stacked, or concatenated."""
    shape = tensors[0].shape
    return (len(tensors), *shape) if stacks else (sum(map(len, tensors)), *shape[1:])


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
        import resource

        self._lock = threading.Lock()
        self._buffers: list[_Buffer] = []
        self._num_loans = 0
        num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_age = min(_MAX_AGE, num_files // 8) if num_files > 0 else _MAX_AGE

    def joined(self, tensors: list[torch.Tensor], *, stacks: bool) -> torch.Tensor | None:
        """Return plain tensors of one type joined in a buffer; None for torch's way.

        Args:
            tensors: The tensors.
            stacks: Whether to stack them, of one shape; else they are concatenated, and their
                first dimensions may differ.
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
        _send_loan(storage)
        shape = joined_shape(tensors, stacks=stacks)
        join: Any = torch.stack if stacks else torch.cat
        join(tensors, out=buffer.memory[:nbytes].view(first.dtype).view(shape))
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


# In the process that sends a loan, and in one that receives it and may send it on.

_loans: StorageTable[bool] = StorageTable()


def _send_loan(storage: torch.UntypedStorage) -> None:
    """Make this process send a storage as a loan."""
    _send_lent()
    _loans[storage] = True


@lru_cache(1)
def _send_lent() -> bool:
    return send_storages_by(_lent)


def _lent(storage: torch.UntypedStorage, before: Callable[[Any], Reduced]) -> Reduced:
    from torch.multiprocessing.reductions import rebuild_storage_fd

    match before(storage):
        case (rebuild, (_, file, nbytes)) if rebuild is rebuild_storage_fd and storage in _loans:
            return _lent_arrived, (file, nbytes)
        case reduced:
            return reduced


def _lent_arrived(sent: Any, nbytes: int) -> torch.UntypedStorage:
    file = sent.detach()
    try:
        storage = _shared(file, nbytes)
    finally:
        os.close(file)
    _send_loan(storage)
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
_SENDER: Final = "QueueFeederThread"
"""The name of threads that send the items of a queue between processes, such as a loader's."""


# In the worker.

_waiting: StorageTable[int] = StorageTable()
"""The lengths of the storages that are to be sent by value."""


def send_by_value(batch: Any) -> None:
    """Mark the small tensors of a worker's batch to be sent by value; elsewhere do nothing."""
    from torch.utils.data import get_worker_info

    if get_worker_info() is None or not _send_small():
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
def _send_small() -> bool:
    from multiprocessing.util import Finalize

    # After queues were asked to end, and before they are waited for.
    Finalize(None, _leave_unread, (os.getpid(), _parent()), exitpriority=0)
    return send_storages_by(_small)


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


def _small(storage: torch.UntypedStorage, before: Callable[[Any], Reduced]) -> Reduced:
    import torch

    # A thread that writes to another pipe has another name. A second queue finds no entry.
    if threading.current_thread().name != _SENDER:
        return before(storage)
    nbytes = _waiting.pop(storage)
    # It may have been shared or resized since.
    if nbytes != storage.nbytes() or storage.is_shared():
        return before(storage)
    values = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    return _small_arrived, (bytearray(values.numpy().tobytes()),)


# In the process where it arrives.

_received: StorageTable[bytearray] = StorageTable()
"""The bytes behind each storage."""


def _small_arrived(values: bytearray) -> torch.UntypedStorage:
    """Return a storage over bytes.

    `share_memory_()`, and a queue that sends the tensor on, make torch move the storage to other
    memory. Arrays that were made before still point to these bytes, so the bytes stay.
    """
    import torch

    storage = torch.frombuffer(values, dtype=torch.uint8).untyped_storage()
    _received[storage] = values
    return storage
