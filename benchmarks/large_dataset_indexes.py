"""Time and memory to write, check and extend a large dataset index, on shards of no bytes.

    python benchmarks/large_dataset_indexes.py [--samples 1e6 1e7 1e8] [--repeated] [--folder DIR]

The indexes are those that a worker returns for shards of 10,000 samples with two members; the
shards themselves are not there. Each step is a process of its own, which states its peak of memory:
`create` keeps the indexes in a journal, writes the dataset index, looks for
repeated keys and partial fields, and saves the spec, as `build_spec` and `rewrite` do; `append`
adds one shard. With ``--repeated`` each shard has the keys of the first one.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wids.publish.appending import publish_appended
from wids.publish.describe import ShardRecord
from wids.publish.journal import ShardTask, opened_journal
from wids.publish.new_spec import new_dataset_index
from wids.publish.problems import dataset_problems
from wids.shards.indexes.index_file import dump
from wids.shards.specs.model import DatasetSpec, ShardSpec
from wids.shards.tars.index import ShardIndex, TarIdentity

PER_SHARD = 10_000
_PEAK = "peak"
_KEY_LENGTH = 12
_TAR_NBYTES = 2 * PER_SHARD * 3 * 512 + 10240


class Step(NamedTuple):
    """What a step took.

    Attributes:
        seconds: By the clock.
        peak_nbytes: Most memory of the process at any time.
    """

    seconds: float
    peak_nbytes: int


def shard_index(first: int) -> ShardIndex:
    """Return the index of a shard whose keys are the numbers from ``first`` on."""
    num_members = 2 * PER_SHARD
    digits = np.arange(first, first + PER_SHARD)[:, None] // 10 ** np.arange(_KEY_LENGTH)[::-1]
    keys = np.zeros((PER_SHARD, _KEY_LENGTH + 1), np.uint8)
    keys[:, :-1] = digits % 10 + ord("0")
    text = b"\0" + keys.tobytes()
    return ShardIndex(
        text=text,
        text_start=0,
        text_stop=len(text),
        key_starts=np.arange(1, len(text) + 1, _KEY_LENGTH + 1).astype(np.uint32),
        member_starts=np.arange(0, num_members + 1, 2).astype(np.uint16),
        blocks=(3 * np.arange(num_members) + 1).astype(np.uint16),
        sizes=np.full(num_members, 700, np.uint16),
        field_ids=np.tile(np.array([0, 1], np.uint8), PER_SHARD),
        head_blocks=np.ones(num_members, np.uint8),
        head_crcs=np.arange(num_members, dtype=np.uint32),
        payload_crcs=np.arange(num_members, dtype=np.uint32),
        fields=(".jpg", ".cls"),
        key_split="first",
        num_files=num_members,
    )


def _shard(folder: str, number: int) -> ShardSpec:
    return ShardSpec(
        f"{folder}/train-{number:06d}.tar", PER_SHARD, _TAR_NBYTES, sha256=f"{number:064x}"
    )


def create(folder: str, num_samples: int, *, repeated: bool) -> None:
    """Write journal, dataset index and spec, and look at the dataset index."""
    shards = tuple(_shard(folder, number) for number in range(num_samples // PER_SHARD))
    with opened_journal(f"{folder}/train.partial") as log:
        for number, shard in enumerate(shards):
            index = shard_index(0 if repeated else number * PER_SHARD)
            blob = dump(index, TarIdentity(_TAR_NBYTES))
            log.add(
                ShardRecord(
                    *(shard.url, "first", None, PER_SHARD),
                    *(_TAR_NBYTES, shard.sha256, blob),
                )
            )
        tasks = [ShardTask(shard.url, None, None, "") for shard in shards]
        with new_dataset_index(f"{folder}/train.index", log.indexes(tasks)) as dataset_index:
            for problem in dataset_problems(dataset_index, shards, "train"):
                print(str(problem)[:200])
    DatasetSpec(shards, "train", f"{folder}/train.index").save(f"{folder}/train.json")


def append(folder: str, num_samples: int) -> None:
    """Add a shard to the dataset."""
    shard = _shard(folder, num_samples // PER_SHARD)
    index = shard_index(num_samples)
    with new_dataset_index(
        None, [(os.path.basename(shard.url), _TAR_NBYTES, index)]
    ) as dataset_index:
        assert dataset_index is not None
        publish_appended(f"{folder}/train.json", (shard,), dataset_index)


def run_step(name: str, folder: str, num_samples: int, *options: str) -> Step:
    """Run a step in a process of its own."""
    command = [sys.executable, __file__, "--step", name, "--folder", folder]
    start = time.perf_counter()
    subprocess.run([*command, "--samples", str(num_samples), *options], check=True)
    return Step(time.perf_counter() - start, int(Path(folder, _PEAK).read_text()))


def own_peak_nbytes() -> int:
    """Return the most memory that this process has had."""
    # Not `ru_maxrss` where this is there: that of a new process begins at the size of its parent.
    if sys.platform == "linux":
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        assert found
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(num_samples: int, folder: str, *options: str) -> dict[str, Step]:
    """Run all steps on a dataset of a size, print a line, and return what they took."""
    steps = {name: run_step(name, folder, num_samples, *options) for name in ("create", "append")}
    nbytes = {path.name: path.stat().st_size for path in Path(folder).iterdir() if path.is_file()}
    print(
        f"{num_samples:13,} samples: "
        + "; ".join(
            f"{n} {s.seconds:.1f} s, {s.peak_nbytes / 1e6:.0f} MB" for n, s in steps.items()
        )
        + f"; dataset index {nbytes['train.index'] / num_samples:.1f} B a sample"
        + f", spec {nbytes['train.json'] / (num_samples // PER_SHARD):.0f} B a shard"
    )
    return steps


def main(arguments: list[str] | None = None) -> list[dict[str, Step]]:
    """Print a line for each size and return what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--repeated", action="store_true", help="the same keys in each shard")
    parser.add_argument("--folder", help="where to work (default: that of temporary files)")
    parser.add_argument("--step", choices=("create", "append"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sizes = [int(size) // PER_SHARD * PER_SHARD for size in options.samples]
    if options.step:
        if options.step == "create":
            create(options.folder, sizes[0], repeated=options.repeated)
        else:
            append(options.folder, sizes[0])
        Path(options.folder, _PEAK).write_text(str(own_peak_nbytes()))
        return []
    found = []
    for size in sizes:
        folder = tempfile.mkdtemp(dir=options.folder)
        try:
            found.append(measure(size, folder, *(["--repeated"] if options.repeated else [])))
        finally:
            shutil.rmtree(folder)
    return found


if __name__ == "__main__":
    main()
