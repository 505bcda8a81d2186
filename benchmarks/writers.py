"""How long shards take to write, beside webdataset's ``ShardWriter``, in one run.

    python benchmarks/writers.py [--toy] [--rounds 5]

Each of the two writes the same samples, to memory if the system has a folder there, in turn and in
a process of its own. This library writes more: digests, an index of each shard, the spec.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Sample = dict[str, Any]


def small(count: int) -> Iterator[Sample]:
    """Yield samples of a text, a class and a little JSON."""
    for number in range(count):
        yield {
            "__key__": f"{number:08d}",
            "txt": f"a caption of sample {number}",
            "cls": number % 10,
            "json": {"number": number, "tags": ["a", "b"]},
        }


def jpegs(count: int) -> Iterator[Sample]:
    """Yield samples of an image of 100 kB that is encoded already, and a class."""
    content = b"\xff\xd8" + bytes(range(256)) * 400
    for number in range(count):
        yield {"__key__": f"{number:08d}", "jpg": content, "cls": number % 10}


def arrays(count: int) -> Iterator[Sample]:
    """Yield samples of a picture that the writer has to encode, and a class."""
    import numpy as np

    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    for number in range(count):
        yield {"__key__": f"{number:08d}", "png": pixels, "cls": number % 10}


ROWS: dict[str, tuple[Callable[[int], Iterator[Sample]], int]] = {
    "small samples": (small, 10_000),
    "image samples, encoded already": (jpegs, 1000),
    "image samples, as arrays": (arrays, 1000),
}


def write(library: str, row: str, count: int, folder: str) -> float:
    """Write the samples of a row with a library; give the seconds."""
    pattern = f"{folder}/{library}-%06d.tar"
    if library == "wids":
        from wids import ShardWriter

        writer: Any = ShardWriter(pattern, maxcount=5000, if_exists="replace")
    else:
        from webdataset import ShardWriter as Theirs

        writer = Theirs(pattern, maxcount=5000, verbose=0)
    samples = list(ROWS[row][0](count))
    start = time.perf_counter()
    with writer:
        for sample in samples:
            writer.write(sample)
    return time.perf_counter() - start


def measure(rounds: int, shrink: int) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield each row with the seconds of this library and of webdataset."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder is made there
    for row, (_, count) in ROWS.items():
        seconds: dict[str, list[float]] = {"wids": [], "webdataset": []}
        for _ in range(rounds):
            for library, times in seconds.items():
                folder = tempfile.mkdtemp(dir=memory)
                command = [sys.executable, "-W", "ignore", __file__, "--write", library, row]
                command += [str(max(count // shrink, 10)), folder]
                answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                times.append(json.loads(answer))
                shutil.rmtree(folder)
        yield row, seconds["wids"], seconds["webdataset"]


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Print the table; give the median ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="few samples, to see that it works")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", nargs=4, metavar=("LIBRARY", "ROW", "COUNT", "FOLDER"))
    options = parser.parse_args(arguments)
    if options.write:
        library, row, count, folder = options.write
        print(json.dumps(write(library, row, int(count), folder)))
        return {}
    ratios = {}
    for row, ours, theirs in measure(options.rounds, 100 if options.toy else 1):
        found = [a / b for a, b in zip(ours, theirs, strict=True)]
        ratios[row] = statistics.median(found)
        print(
            f"{row:32} wids / webdataset {ratios[row]:.2f} ({min(found):.2f} to {max(found):.2f}), "
            f"{statistics.median(ours):.3f} s",
            flush=True,
        )
    return ratios


if __name__ == "__main__":
    main()
