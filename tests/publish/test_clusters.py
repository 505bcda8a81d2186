"""Dask and Ray: the same bytes as one process writes, also if a worker is killed in the middle."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import need


@pytest.mark.long
@pytest.mark.timeout(500)
def test_dask(tmp_path: Path) -> None:
    """On Dask every shard, spec, dataset index and table has the bytes of one process.

    In a process of its own, since tasks that were cancelled keep their arguments in Dask's loop.
    """
    need(importlib.util.find_spec("distributed"), "pip install 'dask[distributed]'")
    run_on("dask", tmp_path)


@pytest.mark.long
@pytest.mark.timeout(500)  # Ray takes 40 s on two free processors
def test_ray(tmp_path: Path) -> None:
    """On Ray too, by the recipe of the documentation.

    In a process of its own, since Ray leaves the interpreter with processes that it started.
    """
    need(importlib.util.find_spec("ray"), "pip install ray")
    run_on(
        "ray",
        tmp_path,
        RAY_AUTH_MODE="disabled",  # on loopback, and for this test
        RAY_raylet_start_wait_time_s="120",  # where other work is done too
    )


def run_on(engine: str, folder: Path, **settings: str) -> None:
    """Run the program of an engine in a folder."""
    path = os.pathsep.join(path for path in sys.path if path)  # for its workers
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(f"on_{engine}.py"), folder],
        env={**os.environ, **settings, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
