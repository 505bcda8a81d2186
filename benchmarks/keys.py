"""How long a key takes to find in many shards, with a dataset index and without one.

    python benchmarks/keys.py [--toy] [--rounds 5]

Before the shards were looked at once for each dataset and not at each key (INDEX-7), a key among
3,000 shards took 10.8 ms with a dataset index, on the machine where it takes 0.02 ms now, and 190
ms without one. The limits are 0.05 ms with a dataset index, and 1 ms without one after the first
key.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tarfile
import tempfile
import time
from pathlib import Path

import wids

ROWS = (
    "dataset index, first key",
    "dataset index",
    "dataset index, no such key",
    "table, first key",
    "table",
    "get_by_key",
)


def write_shards(folder: Path, num_shards: int, num_samples: int) -> dict[str, str]:
    """Write shards of empty members, their specs and a dataset index; return the specs' paths."""
    for number in range(num_shards):
        with tarfile.open(folder / f"{number:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample in range(num_samples):
                tar.addfile(tarfile.TarInfo(f"{number * num_samples + sample:08d}.txt"))
    paths = sorted(folder.glob("*.tar"))
    document = wids.build_spec(paths, dataset_index=folder / "p.index").document()
    (folder / "dataset index.json").write_text(
        json.dumps({**document, "index": str(folder / "p.index")})
    )
    document.pop("index", None)
    (folder / "table.json").write_text(json.dumps(document))
    return {name: str(folder / f"{name}.json") for name in ("dataset index", "table")}


def measure(specs: dict[str, str], keys: list[str]) -> dict[str, float]:
    """Return the seconds for a key of each row."""
    found: dict[str, float] = {}

    def timed(name: str, wanted: list[str], look_up: str) -> None:
        start = time.perf_counter()
        for key in wanted:
            try:
                getattr(dataset, look_up)(key)
            except KeyError:
                assert key.startswith("no")
        found[name] = (time.perf_counter() - start) / len(wanted)

    for name, spec in specs.items():
        with wids.ShardListDataset(spec, transformations=None) as dataset:
            timed(f"{name}, first key", keys[:1], "find_key")
            timed(name, keys, "find_key")
            if name == "dataset index":
                timed("dataset index, no such key", [f"no {key}" for key in keys], "find_key")
                timed("get_by_key", keys, "get_by_key")
    return found


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Print the table, and return the median seconds of each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    num_shards, num_samples = (20, 5) if options.toy else (3000, 20)
    total = num_shards * num_samples
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        specs = write_shards(Path(folder), num_shards, num_samples)
        keys = [f"{chance.randrange(total):08d}" for _ in range(min(total, 1000))]
        rounds = [measure(specs, keys) for _ in range(options.rounds)]
    medians = {row: statistics.median(seconds[row] for seconds in rounds) for row in ROWS}
    print(f"{total:,} keys in {num_shards:,} shards")
    for row, seconds in medians.items():
        print(f"{row:20} {seconds * 1e3:9.3f} ms")
    return medians


if __name__ == "__main__":
    main()
