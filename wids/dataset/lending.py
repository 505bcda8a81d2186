"""Lend shared memory to the large tensors of a worker, and reuse it once nothing reads it.

torch makes new shared memory for each tensor that a worker sends, and the system has to make its
pages, which can take a third of an epoch of pictures. Here a worker keeps buffers and *lends* them.
A lent tensor is one of torch's shared tensors, which torch sends, moves and releases as any other.

The system counts the readers. A loan opens the file of a buffer once more, and locks it. Such a
lock belongs to the open file: each descriptor and each mapping that is made of it, in any process,
holds the lock, and the last one that ends releases it, even when its process is killed. A buffer
that can be locked is free.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from wids.dataset.storages import Reduced, StorageTable, send_storages_by

if TYPE_CHECKING:
    import torch

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

    def stack(self, tensors: list[torch.Tensor]) -> torch.Tensor | None:
        """Return plain tensors of one shape and type stacked in a buffer; None for torch's way."""
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
        shape = (len(tensors), *first.shape)
        torch.stack(tensors, out=buffer.memory[:nbytes].view(first.dtype).view(shape))
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
    _register()
    _loans[storage] = True


@lru_cache(1)
def _register() -> bool:
    return send_storages_by(_reduced)


def _reduced(storage: torch.UntypedStorage, before: Callable[[Any], Reduced]) -> Reduced:
    from torch.multiprocessing.reductions import rebuild_storage_fd

    match before(storage):
        case (rebuild, (_, file, nbytes)) if rebuild is rebuild_storage_fd and storage in _loans:
            return _arrived, (file, nbytes)
        case reduced:
            return reduced


def _arrived(sent: Any, nbytes: int) -> torch.UntypedStorage:
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
