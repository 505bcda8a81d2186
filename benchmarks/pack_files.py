"""How long a folder of files takes to pack, beside GNU tar and webdataset's ``ShardWriter``.

    python benchmarks/pack_files.py [--toy] [--rounds 5] [--size 256] [--folder DIR]

The test makes 20,000 files, pictures and captions, in memory if the system has a folder there, or
in ``--folder``. Each program is a process of its own, and they take turns: ``wids pack`` with one
process, ``tar -cf``, and a loop over sorted stems that reads the files of each and passes them to
the other writer. This library writes more: digests, an index with checksums, the spec.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NUM_FILES = 20_000

_LOOP = """
import os, sys
from webdataset import ShardWriter

folder, pattern = sys.argv[1:]
stems = {}
for name in sorted(os.listdir(folder)):
    stem, _, field = name.partition(".")
    stems.setdefault(stem, []).append(field)
with ShardWriter(pattern, maxcount=10_000, verbose=0, encoder=False) as writer:
    for stem, fields in stems.items():
        sample = {"__key__": stem}
        for field in fields:
            with open(f"{folder}/{stem}.{field}", "rb") as file:
                sample[field] = file.read()
        writer.write(sample)
"""


def make_files(folder: Path, count: int, size: int) -> int:
    """Write pictures of ``size`` x ``size`` pixels and captions; return their total length."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(count // 2):
        pixels = rng.integers(0, 256, (size // 4, size // 4, 3), np.uint8)
        image = Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:06d}.jpg", quality=85)
        (folder / f"{number:06d}.txt").write_text(f"a caption of picture {number}")
    return sum(path.stat().st_size for path in folder.iterdir())


def timed(command: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds by the clock and of the processor."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} failed")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def measure(folder: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each program in each round."""
    found: dict[str, list[tuple[float, float]]] = {"wids": [], "tar": [], "webdataset": []}
    files, output = str(folder / "files"), folder / "out"
    commands = {
        "wids": [sys.executable, "-m", "wids", "pack", files, "-o", f"{output}/a", "-j", "1"],
        "tar": ["tar", "-cf", f"{output}/a.tar", "-C", files, "."],
        "webdataset": [sys.executable, "-W", "ignore", "-c", _LOOP, files, f"{output}/a-%06d.tar"],
    }
    for _ in range(rounds):
        for program, command in commands.items():
            output.mkdir()
            found[program].append(timed(command))
            shutil.rmtree(output)
    return found


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Print the table; return the median ratios of seconds by the clock."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="few files, to see that it works")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=256, help="of the pictures, in pixels")
    parser.add_argument("--folder", help="where to work (default: in memory)")
    options = parser.parse_args(arguments)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder is made there
    folder = Path(tempfile.mkdtemp(dir=options.folder or memory))
    try:
        count = 200 if options.toy else NUM_FILES
        nbytes = make_files(folder / "files", count, options.size)
        found = measure(folder, options.rounds)
    finally:
        shutil.rmtree(folder)
    print(f"{count:,} files, {nbytes / 1e6:.1f} MB")
    ratios = {}
    for program in ("tar", "webdataset"):
        clock, cpu = (
            [a[kind] / b[kind] for a, b in zip(found["wids"], found[program], strict=True)]
            for kind in (0, 1)
        )
        ratios[program] = statistics.median(clock)
        print(
            f"wids / {program:10} {ratios[program]:.2f} ({min(clock):.2f} to {max(clock):.2f}); "
            f"time of the processor {statistics.median(cpu):.2f}"
        )
    for program, seconds in found.items():
        print(f"{program:10} {statistics.median(clock for clock, _ in seconds):.3f} s")
    return ratios


if __name__ == "__main__":
    main()
