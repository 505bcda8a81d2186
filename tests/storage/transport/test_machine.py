"""What a range loop uses of the machine: memory, and sockets that have bytes."""

from __future__ import annotations

import os
import platform
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from wids.storage.transport.machine import HERE, Machine, Memory, Poller, _Selector

_BATCHES = """
import resource
from wids.storage.transport.machine import HERE

received = bytes(8 << 20)

def batch():
    blocks = [HERE.memory(len(received)) for _ in range(4)]
    for block in blocks:
        block[:] = received

for _ in range(3):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_a_batch_has_the_pages_of_the_one_before() -> None:
    """The system does not have to clear them again: 32 MB have 8192 pages."""
    environment = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"}  # which are few, if there are any
    ran = subprocess.run(
        [sys.executable, "-c", _BATCHES],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ran.stdout) < 500


def test_memory_that_is_used_again_is_about_as_long() -> None:
    """A short range keeps no long memory, and a view of any kind keeps all of it."""
    memory, made = Memory(HERE.memory), []

    def use(nbytes: int, keep: Callable[[memoryview], object] = lambda _: None) -> bool:
        """Use memory; return whether it was used before."""
        received = memory.get(nbytes)
        made.append((np.frombuffer(received, np.uint8).ctypes.data, keep(received)))
        memory.put(received)
        return made[-1][0] == made[-2][0] if len(made) > 1 else False

    assert [use(nbytes) for nbytes in (1000, 1000, 250, 1000)] == [False, True, True, True]
    assert not use(1001)
    assert not use(250)
    for keep in (lambda view: view[3:5], lambda view: np.frombuffer(view, np.uint8)[9:]):
        assert use(250, keep)
        assert not use(250)
    assert memory.get(0).nbytes == 0


@pytest.mark.parametrize("machine", [HERE, Machine(poller=_Selector)])
def test_a_poller_finds_the_sockets_that_have_bytes(machine: Machine) -> None:
    """As long as they are watched, also where there is no epoll."""
    near, far = socket.socketpair()
    poller: Poller = machine.poller()
    with near, far:
        poller.register(near.fileno(), selectors.EVENT_READ)
        assert poller.poll(0) == []
        far.send(b"x")
        assert [number for number, _ in poller.poll(10)] == [near.fileno()]
        poller.unregister(near.fileno())
        assert poller.poll(0) == []
    poller.close()
