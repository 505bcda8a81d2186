"""Time and memory to plan the rewriting of a large dataset, on shards without bytes.

    python benchmarks/large_rewrites.py [--samples 1e6 1e7 1e8] [--folder DIR]

The dataset is that of `large_dataset_indexes.py`: shards of 10,000 samples, here sparse files of
their length, with a dataset index. Each plan is a process of its own, which states its peak of
memory, and how far the peak is above that of a process that has opened the dataset: for the
dataset's own order, and for a random one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from large_dataset_indexes import PER_SHARD, create, own_peak_nbytes

import wids
from wids.publish.rewriting.rewrite import prepare_rewrite

_ORDERS = ("open", "own", "random")


def make(folder: str, num_samples: int) -> None:
    """Write the dataset index, the spec and the shards."""
    create(folder, num_samples, repeated=False)
    spec = wids.load_spec(f"{folder}/train.json")
    for shard in spec.shards:
        Path(shard.url).touch()
        os.truncate(shard.url, shard.nbytes or 0)


def plan(folder: str, order: str) -> None:
    """Plan new shards, and print seconds and peak of memory."""
    start = time.perf_counter()
    with wids.ShardListDataset(f"{folder}/train.json", transformations=[], raw="bytes") as dataset:
        if order != "open":
            options: Any = {"resume": True, "storage_options": None}
            options["shuffle"] = 0 if order == "random" else None
            job = prepare_rewrite(
                dataset, f"{folder}/new-%06d.tar", None, "250MB", None, None, None, **options
            )
            assert len(job.tasks) >= len(dataset) * 2 * 3 * 512 // 250_000_000
    print(time.perf_counter() - start, own_peak_nbytes())


def measure(folder: str, num_samples: int) -> dict[str, tuple[float, int]]:
    """Run all plans, print a line, and return their seconds and bytes."""
    found = {}
    for order in _ORDERS:
        command = [sys.executable, __file__, "--order", order, "--folder", folder]
        printed = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.split()
        found[order] = float(printed[0]), int(printed[1])
    opened = found["open"][1]
    print(
        f"{num_samples:13,} samples: "
        + "; ".join(f"{o} {s:.1f} s, {n / 1e6:.0f} MB" for o, (s, n) in found.items())
        + f"; own order {(found['own'][1] - opened) / num_samples:.2f} B a sample, "
        + f"random {(found['random'][1] - opened) / num_samples:.2f}",
        flush=True,
    )
    return found


def main(arguments: list[str] | None = None) -> list[dict[str, tuple[float, int]]]:
    """Print a line for each size and return what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--folder", help="where to work (default: that of temporary files)")
    parser.add_argument("--order", choices=_ORDERS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.order:
        plan(options.folder, options.order)
        return []
    found = []
    for size in options.samples:
        folder = tempfile.mkdtemp(dir=options.folder)
        try:
            num_samples = int(size) // PER_SHARD * PER_SHARD
            make(folder, num_samples)
            found.append(measure(folder, num_samples))
        finally:
            shutil.rmtree(folder)
    return found


if __name__ == "__main__":
    main()
