"""Dask and Ray: the same bytes as one process writes, also if a worker is killed in the middle."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import doomed
import pytest
from conftest import need, raises

from wids import RayExecutor


@contextmanager
def dask_cluster() -> Iterator[tuple[Any, Executor]]:
    """Yield the scheduler and the executor of a Dask cluster of two processes."""
    need(importlib.util.find_spec("distributed"), "pip install 'dask[distributed]'")
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            host="127.0.0.1",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
        client.get_executor() as executor,
    ):
        yield cluster.scheduler, executor


@pytest.mark.long
def test_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Dask every shard, spec, pack and table has the bytes of one process (REWRITE-20)."""
    with dask_cluster() as (scheduler, executor):
        doomed.check_works(executor, tmp_path)
        scheduler.allowed_failures = 0  # it gives up at the first kill
        doomed.check_lost_task(executor, tmp_path)
        monkeypatch.chdir(tmp_path)
        doomed.run_block("Client", {"tcp://scheduler:8786": scheduler.address})


@pytest.mark.long
def test_ray(tmp_path: Path) -> None:
    """On Ray too, by the documented adapter, which behaves as executors do (REWRITE-20).

    In a process of its own, since Ray leaves the interpreter with processes that it started.
    """
    need(importlib.util.find_spec("ray"), "pip install ray")
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",  # on loopback, and for this test
        "RAY_raylet_start_wait_time_s": "120",  # where other work is done too
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),  # for its workers
    }
    program = Path(__file__).with_name("on_ray.py")
    done = subprocess.run(
        [sys.executable, program, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with raises(ModuleNotFoundError, "pip install ray"):
        RayExecutor()
