"""The large tensors of a worker's batches ↔ shared memory that is used again and again.

torch makes new shared memory for each tensor that a worker sends, and the system has to make its
pages, which can take a third of an epoch of pictures. Here a worker *lends* a buffer: it stacks a
batch into it and sends the number of the buffer. Once the main process has released the last tensor
over it, the worker stacks another batch there.

The first byte of a buffer says whether it is free. The worker marks it as lent before it writes
there, and the main process marks it as free after its last use, or never: a process that was forked
meanwhile may still read there. Nothing here knows what a batch is.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Bytes: TypeAlias = NDArray[np.uint8]

LARGE_NBYTES: Final = 64 << 10
"""Tensors beyond this length are worth a buffer."""

_HEAD_NBYTES: Final = 64
"""Before the tensor's bytes, so that these are aligned as those of any tensor."""
_FREE, _LENT, _KEPT = range(3)
_MAX_SLACK: Final = 2
"""A buffer is used for tensors of at least half of its length."""
_MAX_AGE: Final = 64
"""Tensors after which a buffer that none of them needed is released."""
_MAX_LOST: Final = 8
"""Tensors that were not sent as they were made, after which a worker leaves them to torch."""


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor whose bytes in the memory of a process are its values."""
    import torch

    return (
        type(value) is torch.Tensor
        and (value.layout, value.device.type) == (torch.strided, "cpu")
        and not (value.requires_grad or value.is_quantized)
        and not (value.is_conj() or value.is_neg())
    )


# In the worker.


class _Buffer:
    """Shared memory of a worker.

    Attributes:
        content: All of it, with its first byte.
        last_used: The number of the tensor that it was last used for.
        is_held: Whether a tensor of the worker is over it.
        is_kept: Whether a process that the worker has forked may read there.
        file: A descriptor to send, until that was done; the map has one of its own.
    """

    def __init__(self, number: int, capacity: int) -> None:
        self.number = number
        self.capacity = capacity
        self.last_used = 0
        self.is_held = False
        self.is_kept = False
        # Without a name: it is gone with the last process that has mapped it, however that ends.
        self.file: int | None = os.memfd_create("wids-batch")
        try:
            os.ftruncate(self.file, _HEAD_NBYTES + capacity)
            self.content: Bytes = np.frombuffer(mmap.mmap(self.file, 0), np.uint8)
        except BaseException:
            self.close_file()
            raise

    def close_file(self) -> None:
        """Close the descriptor that was to be sent; the memory stays mapped."""
        file, self.file = self.file, None
        if file is not None:
            os.close(file)


class Loan:
    """A tensor in a buffer, to be sent once."""

    def __init__(self, lender: Lender, buffer: _Buffer, address: int) -> None:
        self.lender = lender
        self.buffer = buffer
        self.address = address
        self.is_sent = False

    def end(self) -> None:
        """Have the buffer used again; called when no tensor of this process is over it."""
        if os.getpid() != self.lender.process:
            return
        # Another tensor may soon have this address.
        self.lender.loans.pop(self.address, None)
        self.buffer.is_held = False
        if not self.is_sent:
            self.lender.num_lost += 1
            self.buffer.content[0] = _FREE


class Lender:
    """The buffers of a worker.

    Attributes:
        process: The worker's number.
        name: Distinguishes it from all others.
        num_lost: Tensors that were not sent as they were made.
        loans: Tensors that are not sent yet, by their addresses.
        sender: The thread that sends to the process that knows the buffers.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.name = os.urandom(16)
        self.num_lost = 0
        self.loans: dict[int, Loan] = {}
        self.sender: threading.Thread | None = None
        self._lock = threading.Lock()
        self._buffers: dict[int, _Buffer] = {}
        self._num_made = 0
        self._released: deque[int] = deque()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Return a tensor in a buffer, with any values; None where torch should make it."""
        import torch

        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        # Users choose files with names, torch's other strategy, where descriptors are few.
        strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        if self.num_lost >= _MAX_LOST or strategy != "file_descriptor":
            return None
        try:
            with self._lock:  # a collate function may have threads
                buffer = self._free_buffer(nbytes)
                buffer.content[0] = _LENT
                buffer.is_held = True
        except OSError:  # no descriptor, no memory
            return None
        content = buffer.content[_HEAD_NBYTES : _HEAD_NBYTES + nbytes]
        loan = Loan(self, buffer, content.ctypes.data)
        self.loans[loan.address] = loan
        weakref.finalize(content, loan.end).atexit = False
        return _over(content).view(dtype).view(shape)

    def _free_buffer(self, nbytes: int) -> _Buffer:
        """Return a free buffer, of those that fit the latest one; made if there is none."""
        self._num_made += 1
        fitting = []
        for buffer in list(self._buffers.values()):
            state, age = buffer.content[0], self._num_made - buffer.last_used
            if state == _LENT or buffer.is_held:
                continue
            if state == _KEPT or buffer.is_kept or age > _MAX_AGE:
                self._release(buffer)
            elif nbytes <= buffer.capacity <= _MAX_SLACK * nbytes:
                fitting.append((buffer.last_used, buffer.number))
        if fitting:
            found = self._buffers[max(fitting)[1]]
        else:
            found = _Buffer(self._num_made, nbytes)
            self._buffers[found.number] = found
        found.last_used = self._num_made
        return found

    def _release(self, buffer: _Buffer) -> None:
        del self._buffers[buffer.number]
        buffer.close_file()
        self._released.append(buffer.number)

    def take_loan(self, tensor: torch.Tensor) -> Loan | None:
        """Return the loan of a tensor that is to be sent, once; None for any other tensor."""
        return self.loans.pop(tensor.untyped_storage().data_ptr(), None)

    def is_sender(self) -> bool:
        """Whether this thread is the one that sends tensors in buffers.

        Only one process may receive them. Each queue has a thread of its own that sends, and the
        first one is taken; a pipe sends in the thread that calls it.
        """
        thread = threading.current_thread()
        if os.getpid() != self.process or thread is threading.main_thread():
            return False
        if self.sender is None:
            self.sender = thread
        return self.sender is thread

    def take_released(self) -> list[int]:
        """Return the numbers of released buffers, each once."""
        return [self._released.popleft() for _ in range(len(self._released))]

    def keep_held(self) -> None:
        """Never use those buffers again that a tensor of this process is over now."""
        for buffer in list(self._buffers.values()):
            buffer.is_kept |= buffer.is_held


_lender: Lender | None = None


def lender() -> Lender | None:
    """Return the lender of this worker of a DataLoader; None in any other process."""
    global _lender  # noqa: PLW0603 - a worker has one
    from torch.utils.data import get_worker_info

    if get_worker_info() is None or not hasattr(os, "memfd_create"):
        return None
    if _lender is None or _lender.process != os.getpid():
        _lender = Lender()
        _watch_forks()
    return _lender


class LentTensor:
    """A tensor in a buffer, on its way to the main process; pickled only to be sent there."""

    def __init__(self, tensor: torch.Tensor, loan: Loan) -> None:
        self.tensor = tensor
        self.loan = loan

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        tensor, buffer, known = self.tensor, self.loan.buffer, self.loan.lender
        # The main process maps a buffer once, and knows it by its number from then on.
        handle = None if buffer.file is None else DupFd(buffer.file)
        buffer.close_file()
        self.loan.is_sent = True
        place = (known.name, known.process, buffer.number, handle, known.take_released())
        form = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        return _arrived, (*place, tensor.untyped_storage().nbytes(), *form)


def lent(tensor: torch.Tensor) -> LentTensor | None:
    """Return what to send in place of a tensor in a buffer; None for any other tensor."""
    loan = _lender.take_loan(tensor) if _lender is not None and _lender.is_sender() else None
    return None if loan is None else LentTensor(tensor, loan)


# In the main process.


class _Borrowed:
    """The buffers of a worker, in the process that its batches arrive in."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.buffers: dict[int, Bytes] = {}

    def has_ended(self) -> bool:
        """Whether the worker has ended."""
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


_borrowed: dict[bytes, _Borrowed] = {}


def _arrived(
    name: bytes,
    process: int,
    number: int,
    handle: Any,
    released: list[int],
    nbytes: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    """Return a tensor of the worker ``name``, in its buffer ``number``."""
    import torch

    _watch_forks()
    known = _borrowed.setdefault(name, _Borrowed(process))
    for gone in released:
        known.buffers.pop(gone, None)
    if handle is not None:
        _forget_ended()
        file = handle.detach()
        try:
            known.buffers[number] = np.frombuffer(mmap.mmap(file, 0), np.uint8)
        finally:
            os.close(file)
    buffer = known.buffers.get(number)
    if buffer is None:
        raise RuntimeError(
            f"worker {process}: expected the memory of its batch in this process, found none; the "
            "worker has ended, or sends batches to a second process, where it has to send "
            "dict(batch)"
        )
    content = buffer[_HEAD_NBYTES : _HEAD_NBYTES + nbytes]
    weakref.finalize(content, _returned, buffer, os.getpid()).atexit = False
    storage = _over(content).untyped_storage()
    # Its length need not be a multiple of the type's.
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)


def _returned(buffer: Bytes, process: int) -> None:
    """Mark a buffer as free; called when nothing in this process is over its bytes."""
    if os.getpid() != process:
        return
    if buffer[0] == _LENT:
        buffer[0] = _FREE
    _forget_ended()


def _forget_ended() -> None:
    for name, known in list(_borrowed.items()):
        if known.has_ended():
            _borrowed.pop(name, None)


# In both.


def _over(content: Bytes) -> torch.Tensor:
    """Return a tensor over bytes, which last as long as any tensor or array over them."""
    import torch

    tensor = torch.from_numpy(content)
    # `share_memory_()`, and another queue, have torch move the tensor to other memory. Arrays that
    # were made of it before are not moved, but hold its storage.
    tensor.untyped_storage().wids_content = content  # type: ignore[attr-defined]
    return tensor


# A process that is forked has the same tensors, and reads them for as long as it likes.


@lru_cache(None)
def _watch_forks() -> None:
    # Once more afterwards: another thread may have received a batch in between.
    os.register_at_fork(before=_keep_all, after_in_parent=_keep_all, after_in_child=_borrowed.clear)


def _keep_all() -> None:
    if _lender is not None:
        _lender.keep_held()
    for known in list(_borrowed.values()):
        for buffer in list(known.buffers.values()):
            if buffer[0] == _LENT:
                buffer[0] = _KEPT
