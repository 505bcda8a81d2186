"""How long samplers take over very many samples, beside wids 0.1.11 and torch's own, in one run.

    python benchmarks/samplers.py --old OLD_PYTHON [--toy] [--rounds 3]

One billion samples in 100,000 shards, chunks of 2000. Each cell is a fresh process, so that its
peak of memory is its own; what the imports took is subtracted. torch's ``DistributedSampler`` makes
a list of all indices before the first: it gets a hundredth of the samples, and its rate is that of
the finished list. Neither it nor wids 0.1.11 can resume: what is shown is the time to come to the
middle by throwing away what comes before, at the rate that was measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

clock = time.process_time  # seconds of one core, whatever else the machine does
CELLS = (
    *("new", "new, rank 3 of 8", "new, redeal", "new, 1024 runs, redeal"),
    *("mixed", "mixed, rank 3 of 8", "old", "torch"),
)


@dataclass(frozen=True)
class Figures:
    """What one sampler needed."""

    num_samples: int
    make_s: float
    first_s: float
    per_index_s: float
    resume_s: float
    peak_nbytes: int


class Data:
    """As much of a dataset as samplers look at."""

    def __init__(self, num_samples: int, num_shards: int) -> None:
        length = num_samples // num_shards
        self.lengths = [length] * num_shards
        # Three sources, for samplers that mix: half, three tenths and a fifth of the shards.
        cuts = [0, num_shards // 2, num_shards * 4 // 5, num_shards]
        self.sources = {
            name: [[n * length, (n + 1) * length] for n in range(start, stop)]
            for name, start, stop in zip("abc", cuts, cuts[1:], strict=False)
        }

    def __len__(self) -> int:
        return sum(self.lengths)


def peak_nbytes() -> int:
    """Return the most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def figures(cell: str, num_samples: int, num_shards: int) -> Figures:
    """Measure one sampler, in this process."""
    options: dict[str, Any] = {"chunksize": 2000}
    if cell == "torch":
        from torch.utils.data import DistributedSampler as Sampler

        num_samples //= 100
        options = {"num_replicas": 1, "rank": 0}
    elif cell == "old":
        from wids import ChunkedSampler as Sampler

        options["shufflefirst"] = True
    elif "mixed" in cell:
        from wids import MixedSampler as Sampler

        options["weights"] = [0.7, 0.2, 0.1]
    else:
        from wids import DistributedChunkedSampler as Sampler

        options["redeal"] = "redeal" in cell
    if cell not in ("old", "torch"):
        options |= {"num_replicas": 8, "rank": 3} if "8" in cell else {"num_replicas": 1, "rank": 0}
        options |= {"num_canonical": 1024} if "1024" in cell else {}
    data = Data(num_samples, num_shards)
    list(islice(Sampler(Data(num_shards, num_shards), **options), 10))  # imports, first calls
    before = peak_nbytes()

    start = clock()
    sampler = Sampler(data, **options)
    made = clock()
    indices = iter(sampler)
    next(indices)
    first = clock()
    count = min(2_000_000, len(sampler) // 2)
    deque(islice(indices, count), 0)
    read = clock()
    peak = peak_nbytes() - before
    per_index_s = (read - first) / count

    if cell in ("old", "torch"):
        resume_s = first - made + num_samples // 2 * per_index_s
    else:
        state = {**sampler.state_dict(), "position": num_samples // 2 // 1024 * 1024}
        restored = Sampler(data, **options)
        begin = clock()
        restored.load_state_dict(state)
        next(iter(restored))
        resume_s = clock() - begin
    return Figures(num_samples, made - start, first - made, per_index_s, resume_s, peak)


def measure(
    old_python: str, num_samples: int, num_shards: int, rounds: int
) -> Iterator[tuple[str, list[Figures]]]:
    """Measure every sampler in turn, ``rounds`` times."""
    found: dict[str, list[Figures]] = {cell: [] for cell in CELLS}
    for _ in range(rounds):
        for cell in CELLS:
            python = old_python if cell == "old" else sys.executable
            command = [python, "-W", "ignore", str(Path(__file__).resolve()), "--cell", cell]
            command += ["--samples", str(num_samples), "--shards", str(num_shards)]
            answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found[cell].append(Figures(**json.loads(answer.splitlines()[-1])))
    yield from found.items()


def main(arguments: list[str] | None = None) -> dict[str, list[Figures]]:
    """Print the table; give its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", help="the interpreter that has wids 0.1.11")
    parser.add_argument("--toy", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cell", choices=CELLS, help="measure this one, in this process")
    parser.add_argument("--samples", type=int, default=1_000_000_000)
    parser.add_argument("--shards", type=int, default=100_000)
    options = parser.parse_args(arguments)
    if options.cell:
        print(json.dumps(asdict(figures(options.cell, options.samples, options.shards))))
        return {}
    if options.toy:
        options.samples, options.shards = 10_000_000, 1000
    print(f"{'sampler':24} samples   make it  first index  million indices/s  resume   peak MB")
    rows = {}
    for cell, found in measure(options.old, options.samples, options.shards, options.rounds):
        rows[cell] = found
        medians = {
            name: statistics.median(getattr(figures, name) for figures in found)
            for name in asdict(found[0])
        }
        print(
            f"{cell:24} {medians['num_samples']:7.0e} {medians['make_s']:7.3f} s "
            f"{medians['first_s']:10.3f} s {1e-6 / medians['per_index_s']:18.1f} "
            f"{medians['resume_s']:7.3f} s {medians['peak_nbytes'] / 1e6:8.0f}",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    main()
