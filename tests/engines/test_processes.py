"""Pools of processes end at once, in whatever state their workers are."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, struct, time
from wids.engines.processes import process_pool

with process_pool(2, 2) as executor:
    executor.submit(os.getpid).result()
    # What a worker leaves in the pipe that is ended while it sends a result: a part of it.
    os.write(executor._result_queue._writer.fileno(), struct.pack("!i", 1000) + b"part")
    time.sleep(0.3)
    raise KeyboardInterrupt
"""


def test_a_worker_that_ends_while_it_sends_a_result() -> None:
    """An interrupted pool does not wait for the rest of the result."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stderr.endswith("KeyboardInterrupt\n")


FORKED = """
import os, sys
from wids.engines.processes import process_pool, start_early

start_early(2, ["wids.tars.scan"])
with process_pool(2, 2) as executor:
    assert executor.submit(os.getppid).result() != os.getpid()
    assert executor.submit(eval, "'wids.tars.scan' in __import__('sys').modules").result()
assert "wids.tars.scan" not in sys.modules
"""


def test_workers_are_not_forks_of_the_program() -> None:
    """A driver of fsspec runs threads, and a fork of the program would wait for them for ever.

    They have the modules that were imported while the program did other work.
    """
    subprocess.run([sys.executable, "-c", FORKED], timeout=100, check=True)
