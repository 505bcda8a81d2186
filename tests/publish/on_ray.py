"""A program that works on a local Ray of two processes, whose workers are killed; for a test."""

from __future__ import annotations

import doctest
import logging
import os
import sys
import time
from concurrent.futures import Executor
from pathlib import Path

import doomed
import ray
from conftest import raises

import wids.publish.executors
from wids import RayExecutor


def interrupted(path: str) -> None:
    """Say that it began, and whether it was interrupted."""
    Path(path, "began").touch()
    try:
        for _ in range(6000):  # an interrupt comes between two steps
            time.sleep(0.01)
    except KeyboardInterrupt:
        Path(path, "interrupted").touch()
        raise


def main(folder: Path) -> None:
    """Run all checks in a folder."""
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
        _node_ip_address="127.0.0.1",
    )
    with RayExecutor() as executor:
        doomed.check_works(executor, folder)
    with RayExecutor(max_retries=0) as executor:
        doomed.check_lost_task(executor, folder)
        check_protocol(executor, folder)
    os.chdir(folder)
    doomed.run_block("RayExecutor", {})
    assert doctest.testmod(wids.publish.executors) == (0, 5)
    ray.shutdown()


def check_protocol(executor: Executor, folder: Path) -> None:
    """Check what callers expect of any executor."""
    with raises(ZeroDivisionError, "division"):
        executor.submit(divmod, 1, 0).result()
    running = executor.submit(interrupted, str(folder))
    until_s = time.monotonic() + 120
    while not (folder / "began").exists():
        assert time.monotonic() < until_s, "the task did not begin"
        time.sleep(0.01)
    assert running.cancel()
    executor.shutdown()
    assert (folder / "interrupted").exists()
    with raises(RuntimeError, "after shutdown()"):
        executor.submit(divmod, 1, 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
