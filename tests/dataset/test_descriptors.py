"""File descriptors of a loader with many large fields: with `wids.collate` as with torch's."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")

PROGRAM = """
import os, resource, sys, torch, wids
from torch.utils.data import DataLoader, default_collate

class Samples:
    def __len__(self): return 4 * num_batches
    def __getitem__(self, index):
        field = torch.full((20_000,), index % 251, dtype=torch.uint8)
        return {f"field {number}": field for number in range(24)}

def count(process):
    try:
        return len(os.listdir(f"/proc/{process}/fd"))
    except OSError:
        return 0

name, num_workers, num_batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
collate = {"torch": default_collate, "wids": wids.collate}[name]
loader = iter(DataLoader(Samples(), 4, num_workers=num_workers, collate_fn=collate))
here, there, others = 0, 0, count("self")
for number, batch in enumerate(loader):
    first = number * 4 % 251
    assert batch["field 5"][0, 7] == first, number
    # Those that arrived before their turn, which depends on the processors, and this one.
    num_batches_here = sum(len(info) == 2 for info in loader._task_info.values()) + 1
    here = max(here, count("self") - others - 24 * num_batches_here)
    there = max(there, *(count(worker.pid) for worker in loader._workers))
assert number == num_batches - 1
print(here, there)
"""


def descriptors(collate: str, num_workers: int, num_batches: int) -> tuple[int, int]:
    """Return how many descriptors processes need at most, of 1,024 allowed.

    Returns:
        Those of the main process beyond one for each field of each batch that it has, and those of
        a worker.
    """
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, collate]
    numbers = [str(num_workers), str(num_batches)]
    done = subprocess.run(
        [*command, *numbers], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    here, there = map(int, done.stdout.split())
    return here, there


@pytest.mark.alone
@pytest.mark.parametrize(("num_workers", "num_batches"), [(1, 12), (16, 100)])
def test_the_main_process_needs_those_of_torch(num_workers: int, num_batches: int) -> None:
    """A worker has at most an eighth of its limit more than with torch."""
    torch_here, torch_there = descriptors("torch", num_workers, num_batches)
    here, there = descriptors("wids", num_workers, num_batches)
    assert max(here, torch_here) < 24  # no batch is kept longer than by the loader
    assert there <= torch_there + 24 + 1024 // 8
