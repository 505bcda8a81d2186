"""Tables of fields: `dataset.table` beside pandas over the same files, extracted.

    python benchmarks/columns.py [--toy] [--rounds 3] [ROW …]

Each measurement is a process of its own, on one core, with the shards indexed before and in the
page cache. Seconds are those of the processor, in the program and in the system for it. Peak memory
is that beyond what the imports take. pandas reads a tenth of the samples, and its seconds are
multiplied: a million files fill a disk with inodes.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CLS = {"label": ".cls"}
JSON = {"height": ".json/height", "caption": ".json/caption"}

WORK = """
import json, os, resource, sys, time
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
work, target, columns = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
import pandas, pyarrow.compute, wids

def peak():
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes * (1 if sys.platform == "darwin" else 1024)

if work == "wids":
    dataset = wids.ShardListDataset(target)
    dataset[:10].table(columns)
    before, start_s = peak(), time.process_time()
    rows = len(dataset.table(columns))
else:
    before, start_s = peak(), time.process_time()
    names = sorted(os.listdir(target))
    def read(name):
        with open(os.path.join(target, name), "rb") as file:
            return file.read()
    if work == "pandas cls":
        frame = pandas.DataFrame({"label": [int(read(name)) for name in names]})
    else:
        values = [json.loads(read(name)) for name in names]
        frame = pandas.DataFrame({k: [v[k] for v in values] for k in ("height", "caption")})
    rows = len(frame)
print(json.dumps([time.process_time() - start_s, peak() - before, rows]))
"""


@dataclass(frozen=True)
class Sizes:
    """How much of everything; the toy numbers are for tests."""

    shards: int = 100
    samples: int = 10_000
    payload_nbytes: int = 50_000
    payload_samples: int = 20_000


TOY = Sizes(2, 50, 20_000, 60)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: What is read.
        must_s, aim_s: Most seconds for a million samples.
        seconds, nbytes: Of each round: seconds for a million samples, and peak memory.
        pandas_s: Seconds of pandas for as many.
    """

    name: str
    must_s: float
    aim_s: float
    seconds: list[float]
    nbytes: list[int]
    pandas_s: list[float]

    def line(self) -> str:
        """Return the row as text."""
        median = statistics.median(self.seconds)
        reached = (
            ""
            if math.isinf(self.must_s)
            else "aim"
            if median <= self.aim_s
            else "must"
            if median <= self.must_s
            else "MISSED"
        )
        pandas_s = f"{statistics.median(self.pandas_s):8.1f}" if self.pandas_s else ""
        return (
            f"{self.name:32} {median:6.2f} {min(self.seconds):6.2f} {max(self.seconds):6.2f} "
            f"{self.must_s:5} {self.aim_s:5}  {reached:7} "
            f"{statistics.median(self.nbytes) / 1e6:9.0f} {pandas_s}"
        )


def document(number: int) -> bytes:
    """Return a JSON document of 200 bytes."""
    value = {
        "width": number % 4096,
        "height": number % 3072,
        "url": f"https://example.com/images/{number:012d}.jpg",
        "caption": f"a picture of thing number {number}",
        "score": number / 7,
        "tags": ["one", "two"],
    }
    return json.dumps(value).encode().ljust(200)


def content(field: str, number: int) -> bytes:
    """Return the bytes of a field."""
    return b"%d" % (number % 1000) if field == ".cls" else document(number)


def write_shards(folder: Path, name: str, sizes: Sizes, field: str, payload: int = 0) -> str:
    """Write shards of one small field, and one of other bytes, with the standard library."""
    samples = sizes.payload_samples // sizes.shards if payload else sizes.samples
    shardlist = []
    for shard in range(sizes.shards):
        path = folder / f"{name}-{shard:05d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for number in range(shard * samples, (shard + 1) * samples):
                for extension, data in ((".jpg", bytes(payload)), (field, content(field, number))):
                    if data:
                        info = tarfile.TarInfo(f"{number:09d}{extension}")
                        info.size = len(data)
                        archive.addfile(info, io.BytesIO(data))
        os.utime(path, (1e9, 1e9))  # old enough for its time to be believed
        shardlist.append({"url": str(path), "nsamples": samples})
    spec = folder / f"{name}.json"
    spec.write_text(json.dumps({"wids_version": 1, "shardlist": shardlist}))
    return str(spec)


def write_files(folder: Path, field: str, count: int) -> str:
    """Write the fields as files, as if shards had been extracted."""
    target = folder / f"files{field}"
    target.mkdir()
    for number in range(count):
        (target / f"{number:09d}{field}").write_bytes(content(field, number))
    return str(target)


def measured(folder: Path, work: str, target: str, columns: dict[str, str]) -> tuple[float, int]:
    """Return seconds for a million samples, and peak memory in bytes."""
    environment = {**os.environ, "WIDS_CACHE": str(folder / "cache")}
    environment.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WORK, work, target, json.dumps(columns)],
        check=True,
        capture_output=True,
        env=environment,
    )
    seconds, nbytes, rows = json.loads(done.stdout)
    return seconds / rows * 1e6, nbytes


def rows_of(folder: Path, sizes: Sizes, rounds: int, names: list[str]) -> Iterator[Row]:
    """Measure rows, wids and pandas taking turns."""
    for name, field, columns, must_s, aim_s, payload in (
        ("a million .cls", ".cls", CLS, 2.0, 1.5, 0),
        ("a million .json, two paths", ".json", JSON, 6.0, 4.0, 0),
        # For its memory: few samples in many shards, so that opening shards is half of its time.
        (".cls beside payload, memory", ".cls", CLS, math.inf, math.inf, sizes.payload_nbytes),
    ):
        if names and not any(part in name for part in names):
            continue
        spec = write_shards(folder, f"row{field[1:]}{payload}", sizes, field, payload)
        files = "" if payload else write_files(folder, field, sizes.shards * sizes.samples // 10)
        row = Row(name, must_s, aim_s, [], [], [])
        measured(folder, "wids", spec, columns)  # indexes the shards
        for _ in range(rounds):
            seconds, nbytes = measured(folder, "wids", spec, columns)
            row.seconds.append(seconds)
            row.nbytes.append(nbytes)
            if files:
                row.pandas_s.append(measured(folder, f"pandas {field[1:]}", files, columns)[0])
        yield row


def main(arguments: list[str] | None = None) -> list[Row]:
    """Print the table; return its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("rows", nargs="*", help="parts of the names of rows; all if none")
    options = parser.parse_args(arguments)
    print(f"{'row':32} median  least   most  must   aim  reached  peak, MB  pandas, s")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sizes = TOY if options.toy else Sizes()
        for row in rows_of(Path(folder), sizes, options.rounds, options.rows):
            print(row.line(), flush=True)
            rows.append(row)
    return rows


if __name__ == "__main__":
    main()
