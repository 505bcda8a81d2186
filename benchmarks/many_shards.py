"""Time and memory of the commands over many shards: ``create``, ``verify``, ``info --json``, open.

    python benchmarks/many_shards.py [--shards 1000] [--samples 100 4000] [--open 100000]

The shards are hard links to one tar, so that millions of samples need no space; their keys are
therefore in several shards, which `create` and `verify` find. Each command is a process of its own,
with one worker, whose peak of memory is that of the system. A spec of ``--open`` shards is only
opened, again and again in one process, beside the time that ``json`` takes to parse it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import wids


def make_shards(folder: Path, num_shards: int, num_samples: int) -> None:
    """Write one tar and link to it under many names."""
    first = folder / "train-000000.tar"
    with wids.TarWriter(first) as writer:
        for number in range(num_samples):
            writer.write({"__key__": f"{number:08d}", "txt": f"text {number}", "cls": number % 10})
    for number in range(1, num_shards):
        os.link(first, folder / f"train-{number:06d}.tar")


def run(folder: Path, *arguments: str) -> tuple[float, int]:
    """Run a command in a folder; return its seconds and the most memory it had, in bytes."""
    command = [sys.executable, "-m", "wids", *arguments]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # 1: problems were found
        raise RuntimeError(f"{command} failed")
    return time.perf_counter() - start, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def commands(num_shards: int, num_samples: int, folder: str | None) -> dict[str, tuple[float, int]]:
    """Run all commands on shards of a size, print a line, and return what they took."""
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        make_shards(place, num_shards, num_samples)
        pattern = f"train-{{000000..{num_shards - 1:06d}}}.tar"
        taken = {
            "create": run(place, "create", pattern, "-o", "train.json", "-j", "1"),
            "verify": run(place, "verify", "train.json", "-j", "1"),
            "info --json": run(place, "info", "--json", "train.json"),
        }
    finally:
        shutil.rmtree(place)
    texts = (f"{name} {s:.1f} s, {nbytes / 1e6:.0f} MB" for name, (s, nbytes) in taken.items())
    print(f"{num_shards:,} shards of {num_samples:,} samples: {'; '.join(texts)}")
    return taken


def opening(num_shards: int, folder: str | None) -> tuple[float, float]:
    """Return the seconds of the processor to open a spec, and to parse its JSON."""
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        path = place / "train.json"
        entries = (
            {
                "url": f"train-{n:06d}.tar",
                "nsamples": 1000,
                "filesize": 10**8,
                "sha256": f"{n:064x}",
            }
            for n in range(num_shards)
        )
        document = {"wids_version": 1, "name": "train", "shardlist": list(entries)}
        path.write_text(json.dumps(document))
        opened = best(lambda: wids.ShardListDataset(path, cache_dir=place))
        parsed = best(lambda: json.loads(path.read_bytes()))
        print(
            f"{num_shards:,} shards by a spec: {opened:.3f} s of the processor, {parsed:.3f} s of "
            f"which json takes ({opened / parsed:.1f} x)"
        )
    finally:
        shutil.rmtree(place)
    return opened, parsed


def best(function: Callable[[], Any]) -> float:
    """Return the least seconds of the processor that five calls took."""
    seconds = []
    for _ in range(5):
        start = time.process_time()
        result = function()
        seconds.append(time.process_time() - start)
        del result
    return min(seconds)


def main(arguments: list[str] | None = None) -> list[dict[str, tuple[float, int]]]:
    """Print what was measured and return it, for each number of samples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--samples", type=int, nargs="+", default=[100, 4000], help="of a shard")
    parser.add_argument("--open", type=int, default=100_000, help="shards of a spec that is opened")
    parser.add_argument("--folder", help="where to work (default: that of temporary files)")
    options = parser.parse_args(arguments)
    # First, since the system counts the memory of this process for those that it starts.
    found = [commands(options.shards, count, options.folder) for count in options.samples]
    if options.open:
        opening(options.open, options.folder)
    return found


if __name__ == "__main__":
    main()
