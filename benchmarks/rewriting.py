"""How long a global shuffle into new shards takes, beside ``cp``, ``tar`` and webdataset's loop.

    python benchmarks/rewriting.py [--sizes 100000 1000] [--nbytes 2e9] [--rounds 3]

The test writes shards of samples with a member of each size and a class, in memory if the system
has a folder there, or in ``--folder``. Each program is a process of its own, and they take turns:
``wids rewrite --shuffle`` with two processes; ``cp`` without reflinks; ``tar -cf`` of the shards;
and a loop that reads samples with webdataset, shuffles 1,000 of them at a time and passes them to
its ``ShardWriter``. This library shuffles all samples and writes digests, an index of each member
and the spec.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from pack_files import timed

import wids

_MAXSIZE = 250_000_000

_LOOP = """
import glob, sys
from webdataset import ShardWriter, WebDataset

pattern, output, maxsize = sys.argv[1:]
samples = WebDataset(sorted(glob.glob(pattern)), shardshuffle=100).shuffle(1000)
with ShardWriter(output, maxsize=int(maxsize), verbose=0, encoder=False) as writer:
    for sample in samples:
        writer.write(sample)
"""


def make_shards(folder: Path, size: int, nbytes: int) -> int:
    """Write shards of members of a size, about ``nbytes`` in all; return the number of samples."""
    content = os.urandom(size + 4096)
    count = max(nbytes // (size + 3 * 512), 10)
    folder.mkdir(parents=True)
    with wids.ShardWriter(f"{folder}/train-%06d.tar", maxsize=_MAXSIZE) as writer:
        for number in range(count):
            start = number % 4096
            picture = content[start : start + size]
            writer.write({"__key__": f"{number:08d}", "jpg": picture, "cls": number % 10})
    return count


def measure(folder: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each program in each round, by the clock and of the processor."""
    shards, output = folder / "in", folder / "out"
    wids_command = [sys.executable, "-m", "wids", "rewrite", f"{shards}/train.json"]
    commands = {
        "wids": [*wids_command, f"{output}/a", "--shuffle", "0", "--maxsize", "250MB", "-j", "2"],
        "cp": ["cp", "-r", "--reflink=never", str(shards), str(output)],
        "tar": ["tar", "-cf", f"{output}/a.tar", "-C", str(shards), "."],
        "webdataset": [
            *(sys.executable, "-W", "ignore", "-c", _LOOP),
            *(f"{shards}/*.tar", f"{output}/a-%06d.tar", str(_MAXSIZE)),
        ],
    }
    found: dict[str, list[tuple[float, float]]] = {program: [] for program in commands}
    for _ in range(rounds):
        for program, command in commands.items():
            output.mkdir()
            found[program].append(timed(command))
            shutil.rmtree(output)
    return found


def report(size: int, count: int, found: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    """Print what was measured and return it: ratios, and microseconds of a sample."""
    print(f"members of {size:,} bytes, {count:,} samples")
    for program, seconds in found.items():
        clock, cpu = map(statistics.median, zip(*seconds, strict=True))
        print(f"  {program:10} {clock:7.2f} s; time of the processor {cpu:7.2f} s")
    clock = [[seconds for seconds, _ in found[program]] for program in ("wids", "cp", "webdataset")]
    to_cp = statistics.median(a / b for a, b, _ in zip(*clock, strict=True))
    beyond = statistics.median((a - 2.5 * b) / count for a, b, _ in zip(*clock, strict=True)) * 1e6
    to_loop = statistics.median(a / c for a, _, c in zip(*clock, strict=True))
    print(
        f"  wids / cp {to_cp:.2f}; {beyond:.1f} µs a sample beyond 2.5 x cp; "
        f"wids / webdataset {to_loop:.2f}"
    )
    return {"cp": to_cp, "beyond_us": beyond, "webdataset": to_loop}


def main(arguments: list[str] | None = None) -> dict[int, dict[str, float]]:
    """Print a table for each size and return what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1000])
    parser.add_argument("--nbytes", type=float, default=2e9, help="of all shards, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to work (default: in memory)")
    options = parser.parse_args(arguments)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder is made there
    results = {}
    for size in options.sizes:
        folder = Path(tempfile.mkdtemp(dir=options.folder or memory))
        try:
            count = make_shards(folder / "in", size, int(options.nbytes))
            found = measure(folder, options.rounds)
        finally:
            shutil.rmtree(folder)
        results[size] = report(size, count, found)
    return results


if __name__ == "__main__":
    main()
