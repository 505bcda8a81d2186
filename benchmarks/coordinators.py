"""Memory of the process that has many shards made by an executor, with shards that cost nothing.

    python benchmarks/coordinators.py [--shards 1e4 3e4] [--folder DIR] [--work create …]

The executor here answers at once with the description of a shard of one sample, which nobody
writes. All else is real: the plan, the journal, the dataset index, the spec and its table. Each run
is a process of its own, which states the peak of what Python and numpy have allocated
(tracemalloc), of which the bytes a shard are the slope between two numbers of shards.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
from large_dataset_indexes import PER_SHARD, create
from large_specs import write_spec

import wids
from wids.publish.describe import ShardRecord, record_of
from wids.publish.journal import JobPart
from wids.publish.rewriting.rewrite import prepare_rewrite
from wids.publish.spec_job import prepare_spec
from wids.shards.tars.index import ShardIndex

WORK = ("create", "create part", "rewrite", "rewrite part")


class Answering(Executor):
    """Answers each task at once with a description.

    Args:
        describe: Takes a task, returns its description.
    """

    def __init__(self, describe: Callable[[Any], ShardRecord]) -> None:
        self._describe = describe

    def submit(self, _: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future that has its result."""
        future: Future[Any] = Future()
        future.set_result(self._describe(*args, **kwargs))
        return future


def described(url: str, source: str = "") -> ShardRecord:
    """Return the description of a shard of one sample that does not exist."""
    text = b"\0" + os.path.basename(url).encode() + b"\0"
    index = ShardIndex(
        text=text,
        text_start=0,
        text_stop=len(text),
        key_starts=np.array([1, len(text)], np.uint32),
        member_starts=np.array([0, 1], np.uint16),
        blocks=np.ones(1, np.uint16),
        sizes=np.full(1, 700, np.uint16),
        field_ids=np.zeros(1, np.uint8),
        head_blocks=np.ones(1, np.uint8),
        head_crcs=np.ones(1, np.uint32),
        payload_crcs=np.ones(1, np.uint32),
        fields=(".txt",),
        key_split="first",
        num_files=1,
    )
    return record_of(url, index, 10240, hashlib.sha256(url.encode()).hexdigest(), None, source)


def run(work: str, folder: str) -> int:
    """Do the work; return the number of shards."""
    part = JobPart(1, 10) if work.endswith("part") else None
    if work.startswith("create"):
        executor = Answering(lambda task: described(task.path))
        job = prepare_spec(
            [f"{folder}/train.json"],
            f"{folder}/new.json",
            storage_options={},
            on_problem=lambda _: None,
        )
        if part is not None:
            job.run_part(part, executor)
            return len(job.tasks)
        return len(job.run(executor).shards)
    executor = Answering(lambda task: described(task.path, task.source))
    with wids.ShardListDataset(f"{folder}/train.json", transformations=[], raw="bytes") as dataset:
        rewriting = prepare_rewrite(
            *(dataset, f"{folder}/new-%08d.tar", 1, None, None, None, None),
            resume=True,
            storage_options=None,
        )
        if part is not None:
            rewriting.run_part(part, executor)
        else:
            rewriting.run(executor)
        return len(rewriting.tasks)


def worker(work: str, folder: str) -> None:
    """Print the number of shards, the seconds and the peak of memory."""
    wids.load_spec(f"{folder}/train.json")  # makes its table, once on a machine
    tracemalloc.start()
    start = time.perf_counter()
    num_shards = run(work, folder)
    peak = tracemalloc.get_traced_memory()[1]
    print(num_shards, time.perf_counter() - start, peak)


def make(work: str, folder: str, num_shards: int) -> None:
    """Write what the work starts from."""
    if work.startswith("create"):
        write_spec(Path(folder, "train.json"), num_shards)
        return
    # One sample for each new shard.
    create(folder, num_shards, repeated=False)
    for shard in wids.load_spec(f"{folder}/train.json").shards:
        Path(shard.url).touch()
        os.truncate(shard.url, shard.nbytes or 0)


def measure(work: str, num_shards: int, place: str | None) -> tuple[int, float, int]:
    """Return the number of shards, the seconds and the peak of memory of one run."""
    folder = tempfile.mkdtemp(dir=place)
    try:
        make(work, folder, num_shards)
        command = [sys.executable, __file__, "--worker", work, "--folder", folder]
        environment = {**os.environ, "WIDS_CACHE": f"{folder}/cache", "WIDS_PROGRESS": "0"}
        printed = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        ).stdout.split()
    finally:
        shutil.rmtree(folder)
    return int(printed[-3]), float(printed[-2]), int(printed[-1])


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Print a line for each kind of work, and return the bytes a shard of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=float, nargs=2, default=[1e4, 3e4])
    parser.add_argument("--work", choices=WORK, nargs="+", default=WORK)
    parser.add_argument("--folder", help="where to work (default: that of temporary files)")
    parser.add_argument("--worker", choices=WORK, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        worker(options.worker, options.folder)
        return {}
    sizes = [int(size) // PER_SHARD * PER_SHARD for size in options.shards]
    found = {}
    for work in options.work:
        rows = np.array([measure(work, size, options.folder) for size in sizes])
        (first, last), _, (first_nbytes, last_nbytes) = rows.T
        found[work] = float((last_nbytes - first_nbytes) / (last - first))
        text = ", ".join(f"{n:,.0f} shards {s:.0f} s, {p / 1e6:.0f} MB" for n, s, p in rows)
        constant = first_nbytes - found[work] * first
        at_most = (constant + found[work] * 1e7) / 1e6
        print(f"{work}: {text}; {found[work]:.0f} B a shard, 10^7: {at_most:,.0f} MB", flush=True)
    return found


if __name__ == "__main__":
    main()
