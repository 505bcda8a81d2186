"""How long joins take, beside pandas doing the same over extracted files.

    python benchmarks/joins.py [--toy] [--rounds 5]

The first table is a join by keys: of indexes, from the cache, and ``pandas.merge`` of two frames of
keys. Its last row lists extracted files first, as a program without shards has to. The second table
is batches of 256 samples in the order of a `wids.ChunkedSampler`: of one dataset, of a join whose
other side has the same order or another one, and of the same fields read from extracted files by
the rows of a merged frame. The limits are 2 s for a million keys (0.1 s from the cache), 40 bytes
of memory for a key, and 2.2 times the batches of one dataset.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

import wids
from wids.tables.join_keys import DatasetKeys, match_keys
from wids.tables.join_sides import KeyedSamples

JOIN_ROWS = ("first time", "from the cache", "pandas.merge", "list files, merge")
READ_ROWS = ("one dataset", "joined", "joined, other order", "files by a frame")


def write_tars(folder: Path, name: str, keys: list[str], names: Iterable[str], size: int) -> str:
    """Write shards of some fields, and return the path of their spec, which has a dataset index."""
    pictures = [io.BytesIO() for _ in range(8)]
    for number, picture in enumerate(pictures):
        Image.new("RGB", (32, 32), (number * 30, 40, 90)).save(picture, "JPEG")
    for start in range(0, len(keys), size):
        path = folder / f"{name}-{start // size:05d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, key in enumerate(keys[start : start + size], start):
                sample = {".jpg": pictures[number % 8].getvalue(), ".cls": b"7"}
                for field in names:
                    data = sample.get(field, b"")
                    info = tarfile.TarInfo(key + field)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    spec = wids.build_spec(
        sorted(folder.glob(f"{name}-*.tar")), dataset_index=folder / f"{name}.index"
    )
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**spec.document(), "index": str(folder / f"{name}.index")}))
    return str(path)


def seconds(work: Callable[[], Any]) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def shuffled(keys: list[str]) -> list[str]:
    """Return keys in another order, the same each time."""
    return random.Random(0).sample(keys, len(keys))


def measure_joins(folder: Path, num_keys: int, num_files: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of each row of the first table."""
    keys = [f"sample{number:08d}" for number in range(num_keys)]
    specs = [
        write_tars(folder, "left", keys, [".txt"], 1000),
        write_tars(folder, "right", shuffled(keys), [".cap"], 1250),
    ]
    for name, names in (("a", keys), ("b", shuffled(keys))):
        (folder / name).mkdir()
        for key in names[:num_files]:
            (folder / name / f"{key}.txt").touch()

    def listed(name: str) -> pd.DataFrame:
        paths = os.listdir(folder / name)
        return pd.DataFrame({"key": [path.partition(".")[0] for path in paths], name: paths})

    frames = [
        pd.DataFrame({"key": k, n: range(num_keys)})
        for k, n in ((keys, "a"), (shuffled(keys), "b"))
    ]
    found: dict[str, list[float]] = {row: [] for row in JOIN_ROWS}
    with wids.ShardListDataset(specs[0]) as left, wids.ShardListDataset(specs[1]) as right:
        for _ in range(rounds):
            for path in Path(left.reader.cache_folder).glob("indexes/*.join"):
                path.unlink()
            found["first time"].append(seconds(lambda: left.join(right)))
            found["from the cache"].append(seconds(lambda: left.join(right)))
            found["pandas.merge"].append(seconds(lambda: frames[0].merge(frames[1], on="key")))
            found["list files, merge"].append(
                seconds(lambda: listed("a").merge(listed("b"), on="key")) * num_keys / num_files
            )
        nbytes = peak_nbytes(left, right)
    print(f"{num_keys:,} keys; {nbytes / num_keys:.0f} bytes for a key")
    return {row: statistics.median(values) for row, values in found.items()}


def peak_nbytes(left: wids.ShardListDataset, right: wids.ShardListDataset) -> int:
    """Return the most memory that finding out what belongs together takes."""
    sides = [DatasetKeys(KeyedSamples(d), range(len(d)), "") for d in (left, right)]
    tracemalloc.start()
    try:
        match_keys(*sides)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def measure_reads(folder: Path, num_samples: int, rounds: int) -> dict[str, float]:
    """Return the median seconds for a sample of each row of the second table."""
    keys = [f"sample{number:08d}" for number in range(num_samples)]
    options: dict[str, Any] = {"transformations": "PIL"}
    left = wids.ShardListDataset(write_tars(folder, "l", keys, [".jpg", ".cls"], 1000), **options)
    other = write_tars(folder, "o", shuffled(keys), [".jpg", ".cls"], 1250)
    twin = wids.ShardListDataset(write_tars(folder, "t", keys, [".jpg", ".cls"], 1250), **options)
    (folder / "files").mkdir()
    for sample in wids.ShardListDataset(left.spec, transformations=None, raw="bytes"):
        for field in (".jpg", ".cls"):
            (folder / "files" / (sample["__key__"] + field)).write_bytes(sample[field])
    frame = pd.DataFrame({"key": keys}).merge(pd.DataFrame({"key": shuffled(keys)}), on="key")
    decoder = wids.Decoder("PIL")

    def one(key: str) -> dict[str, Any]:
        stem = str(folder / "files" / key)
        return decoder({field: Path(stem + field).read_bytes() for field in (".jpg", ".cls")})

    def read_files(batch: list[int]) -> list[Any]:
        names = frame["key"].take(batch).tolist()
        return [{**one(key), **{f".b{f}": v for f, v in one(key).items()}} for key in names]

    order = iter(wids.ChunkedSampler(left))
    batches = [list(islice(order, 256)) for _ in range(min(12, num_samples // 256 or 1))]
    readers = {
        "one dataset": left.__getitems__,
        "joined": left.join(twin, prefix="b").__getitems__,
        "joined, other order": left.join(wids.ShardListDataset(other), prefix="b").__getitems__,
        "files by a frame": read_files,
    }
    found: dict[str, list[float]] = {row: [] for row in READ_ROWS}
    for batch in batches * rounds:
        for row, read in readers.items():
            found[row].append(seconds(lambda: read(batch)) / len(batch))  # noqa: B023 - called at once
    return {row: statistics.median(values) for row, values in found.items()}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Print both tables, and return the seconds of each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    num_keys, num_files, num_samples = (200, 50, 60) if options.toy else (1_000_000, 50_000, 10_000)
    with tempfile.TemporaryDirectory() as folder:
        joins = measure_joins(Path(folder), num_keys, num_files, options.rounds)
    for row, value in joins.items():
        print(f"{row:20} {value:9.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        reads = measure_reads(Path(folder), num_samples, options.rounds)
    for row, value in reads.items():
        print(f"{row:20} {value * 1e6:9.1f} µs {value / reads['one dataset']:6.2f} x")
    return joins | reads


if __name__ == "__main__":
    main()
