"""The table of speeds: this library beside wids 0.1.11, bagz and LMDB, in one run.

    python benchmarks/table.py --old OLD_PYTHON [--toy] [--rounds 7] [--readahead 128] [ROW …]

``OLD_PYTHON`` is the interpreter of a virtual environment with ``torch``, ``pillow`` and
``wids==0.1.11``. The libraries take turns in each round, and a cell is their ratio of times: median
(least to most). A machine that is busy changes both sides alike. Bounds are what a row must reach
and what it aims at. Where nothing is waited for, times are those of the processor.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import columns
import keys
from pictures import write_dataset, write_photographs

WORKER = Path(__file__).with_name("worker.py")
Request = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much of everything; the toy numbers are for tests."""

    samples: int = 1000
    shards: int = 20
    reads: int = 20_000
    members: int = 20_000
    many_shards: int = 40
    thrash_reads: int = 400
    cold_samples: int = 10_000
    indices: int = 10_000_000
    big_spec: int = 100_000
    memory_samples: int = 10_000
    photographs: int = 64
    pictures: int = 3000
    large_photographs: int = 4
    key_shards: int = 1500
    table_samples: int = 1_000_000
    join_keys: int = 1_000_000
    verified_samples: int = 500


TOY = Sizes(20, 3, 100, 200, 12, 20, 130, 10_000, 1000, 100, 2, 200, 1, 20, 200, 200, 130)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: What is done.
        request: Makes the request to the worker, from the files.
        must, aim: Bounds for the ratio to the old library; or for the seconds, where absolute.
        peers: Other libraries that can do it too.
        is_absolute: Whether the bounds are seconds of the new library.
        references: What the ratio is to: the fastest of these in each round.
        beside: Makes the request of the reference ``"beside"``, which is the new library too.
    """

    name: str
    request: Callable[[Files], Request]
    must: float
    aim: float
    peers: tuple[str, ...] = ()
    is_absolute: bool = False
    references: tuple[str, ...] = ("old",)
    beside: Callable[[Files], Request] | None = None


class Files:
    """The files that the rows read, made when they are first needed."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.folder = folder
        self.sizes = sizes
        self.random = random.Random(0)

    def spec(
        self, name: str, shards: int, samples: int, nbytes: int, large_nbytes: int | None = None
    ) -> str:
        """Return a spec of shards with samples of two members, of ``nbytes`` and of ten bytes.

        The first sample of each shard has ``large_nbytes``, if given.
        """
        path = self.folder / f"{name}.json"
        if not path.exists():
            shardlist = []
            for shard in range(shards):
                tar = self.folder / f"{name}-{shard:05d}.tar"
                write_tar(tar, shard * samples, samples, nbytes, large_nbytes)
                shardlist.append({"url": str(tar), "nsamples": samples})
            path.write_text(json.dumps({"wids_version": 1, "shardlist": shardlist}))
        return str(path)

    def small(self) -> str:
        spec = self.spec("small", self.sizes.shards, self.sizes.samples, 1000)
        if importlib.util.find_spec("bagz") and not Path(spec.replace(".json", ".bagz")).exists():
            write_peers(spec, self.sizes.shards * self.sizes.samples)
        return spec

    def tar(self, name: str, **settings: Any) -> str:
        path = self.folder / f"{name}.tar"
        if not path.exists():
            write_tar(path, 0, self.sizes.members // 2, 200, **settings)
        return str(path)

    def indices(self, count: int, size: int) -> list[int]:
        return [self.random.randrange(size) for _ in range(count)]

    def batches(self, count: int, width: int, size: int) -> list[list[int]]:
        return [self.indices(width, size) for _ in range(max(count, 2))]

    # Requests, a method for each row.

    def single(self) -> Request:
        size = self.sizes.shards * self.sizes.samples
        return {
            "work": "single",
            "spec": self.small(),
            "indices": self.indices(self.sizes.reads, size),
        }

    def batched(self) -> Request:
        size = self.sizes.shards * self.sizes.samples
        batches = self.batches(self.sizes.reads // 256, 256, size)
        return {"work": "batched", "spec": self.small(), "batches": batches}

    def first_index(self) -> Request:
        return {"work": "first_index", "path": self.tar("ustar", format=tarfile.USTAR_FORMAT)}

    def first_index_pax(self) -> Request:
        path = self.tar("pax", format=tarfile.PAX_FORMAT, mtime=1.5)
        return {"work": "first_index", "path": path}

    def reopen(self) -> Request:
        return {"work": "reopen", "path": self.tar("ustar", format=tarfile.USTAR_FORMAT)}

    def thrash(self) -> Request:
        shards = self.sizes.many_shards
        spec = self.spec("many", shards, self.sizes.samples, 100)
        indices = self.indices(self.sizes.thrash_reads, shards * self.sizes.samples)
        return {"work": "single", "spec": spec, "indices": indices, "lru_size": 10}

    def cold(self) -> Request:
        # A small part of a large file: to read all of it would pay for any readahead.
        count = self.sizes.cold_samples
        spec = self.spec("large", 1, count, 100_000)
        order = self.random.sample(range(count), min(count, 11 * 64))
        return {
            "work": "cold",
            "spec": spec,
            "files": [str(self.folder / "large-00000.tar")],
            "batches": [order[i : i + 64] for i in range(0, len(order) // 64 * 64, 64)],
        }

    def memory(self) -> Request:
        samples = self.sizes.memory_samples
        spec = self.spec("memory", 6, samples, 10)
        return {"work": "memory", "spec": spec, "indices": [i * samples for i in range(6)]}

    def whole_order(self) -> Request:
        return {"work": "whole_order", "size": self.sizes.indices, "chunksize": 2000}

    def sample_order(self) -> Request:
        size = self.sizes.indices
        return {"work": "sample_order", "size": size, "chunksize": size // 10, "count": 1}

    def loader_epoch(self) -> Request:
        return {"work": "loader_epoch", "spec": self.small(), "chunksize": 2000}

    def find_key(self) -> Request:
        folder = self.folder / "keys"
        folder.mkdir(exist_ok=True)
        spec = keys.write_shards(folder, self.sizes.key_shards, 20)["dataset index"]
        wanted = [f"{number:08d}" for number in self.indices(1000, self.sizes.key_shards * 20)]
        return {"work": "find_key", "spec": spec, "keys": wanted}

    def table_cls(self) -> Request:
        return self._table(".cls", columns.CLS)

    def table_json(self) -> Request:
        return self._table(".json", columns.JSON)

    def _table(self, field: str, wanted: dict[str, str]) -> Request:
        sizes = columns.Sizes(shards=10, samples=self.sizes.table_samples // 10)
        spec = columns.write_shards(self.folder, f"table{field[1:]}", sizes, field)
        return {"work": "table", "spec": spec, "columns": wanted}

    def join(self) -> Request:
        import joins  # which needs pandas

        names = [f"sample{number:08d}" for number in range(self.sizes.join_keys)]
        left = joins.write_tars(self.folder, "left", names, [".txt"], 1000)
        right = joins.write_tars(self.folder, "right", joins.shuffled(names), [".cap"], 1250)
        return {"work": "join", "specs": [left, right], "count": len(names)}

    # With a dataset index, whose headers and members have checksums, beside the same without one.

    def packed(self, spec: str) -> str:
        """Return a spec of the same shards, with a dataset index."""
        from wids import build_spec

        path = Path(spec).with_suffix(".packed.json")
        if not path.exists():
            shards = [shard["url"] for shard in json.loads(Path(spec).read_text())["shardlist"]]
            dataset_index = path.with_suffix(".index")
            document = build_spec(shards, dataset_index=dataset_index).document()
            path.write_text(json.dumps({**document, "index": str(dataset_index)}))
        return str(path)

    def mixed(self) -> str:
        """Return a spec of small samples, one of which in each shard has a large member."""
        shards, samples = self.sizes.shards, self.sizes.samples
        return self.spec("mixed", shards, samples, 1000, large_nbytes=20_000)

    def one_large(self) -> Request:
        return {**self.single(), "spec": self.mixed()}

    def one_large_batched(self) -> Request:
        return {**self.batched(), "spec": self.mixed()}

    def verified(self) -> Request:
        return {**self.unverified(), "verify": "always"}

    def unverified(self) -> Request:
        count = self.sizes.verified_samples
        spec = self.packed(self.spec("verified", 1, count, 100_000))
        batches = [self.random.sample(range(count), 64) for _ in range(20)]
        return {"work": "batched", "spec": spec, "batches": batches, "verify": "never"}

    def load_spec(self) -> Request:
        path = self.folder / "big.json"
        if not path.exists():
            shardlist = [
                {"url": f"/data/train-{i:06d}.tar", "nsamples": 1000 + i % 7, "filesize": 10**8 + i}
                for i in range(self.sizes.big_spec)
            ]
            path.write_text(json.dumps({"wids_version": 1, "shardlist": shardlist}))
        return {"work": "load_spec", "spec": str(path)}

    def import_library(self) -> Request:
        return {"work": "import_library"}

    def small_pictures(self) -> Request:
        paths = write_photographs(self.folder, 256, 256, 90, self.sizes.photographs)
        return {"work": "decode", "paths": paths, "repeats": 4}

    def large_pictures(self) -> Request:
        paths = write_photographs(self.folder, 1500, 2250, 85, self.sizes.large_photographs)
        return {"work": "decode", "paths": paths, "repeats": 4, "at_least": [512, 512]}

    def picture_epoch(self) -> Request:
        paths = write_photographs(self.folder, 256, 256, 90, self.sizes.photographs)
        spec = write_dataset(self.folder, paths, 4, self.sizes.pictures // 4)
        return {"work": "picture_epoch", "spec": spec, "workers": 2}


PILLOW = ("pillow",)
SECONDS: dict[str, Any] = {"is_absolute": True, "references": ()}
VERIFY: dict[str, Any] = {"references": ("beside",), "beside": Files.unverified}


def indexed_row(
    name: str,
    request: Callable[[Files], Request],
    must: float,
    aim: float,
    beside: Callable[[Files], Request] | None = None,
) -> Row:
    """Return a row of work with a dataset index, to the same work without one, or to other work."""

    def with_dataset_index(files: Files) -> Request:
        found = request(files)
        return {**found, "spec": files.packed(found["spec"])}

    return Row(
        name, with_dataset_index, must, aim, references=("beside",), beside=beside or request
    )


ROWS = [
    Row("dataset[i], random, shards open", Files.single, 0.25, 0.2, ("bagz", "lmdb")),
    Row("__getitems__, 256 at a time", Files.batched, 0.2, 0.15, ("bagz", "lmdb")),
    Row("first index of 20,000 members, ustar", Files.first_index, 0.3, 0.15),
    Row("first index of 20,000 members, PAX times", Files.first_index_pax, 0.35, 0.15),
    Row("opening a shard that was indexed before", Files.reopen, 0.006, 0.003),
    Row("random access, 40 shards, lru_size=10", Files.thrash, 0.01, 0.005),
    Row("cold random reads, 100 kB, batches of 64", Files.cold, 0.1, 0.05),
    Row("private memory of one more open shard", Files.memory, 0.1, 0.01),
    Row("ChunkedSampler, 10 million, chunks of 2000", Files.whole_order, 0.2, 0.1),
    Row("first index, chunks of a million", Files.sample_order, 0.15, 0.02),
    Row("DataLoader epoch, 2 workers", Files.loader_epoch, 0.45, 0.3),
    Row("find_key, of 1500 shards, seconds", Files.find_key, 5e-5, 1e-5, **SECONDS),
    Row("table of a million .cls, seconds", Files.table_cls, 2.0, 1.5, **SECONDS),
    Row("table of a million .json, seconds", Files.table_json, 6.0, 4.0, **SECONDS),
    Row("first join of a million keys, seconds", Files.join, 2.0, 1.0, **SECONDS),
    Row("100 kB, verify always to never", Files.verified, 1.3, 1.2, **VERIFY),
    indexed_row("dataset[i], dataset index to none", Files.single, 1.05, 1.0),
    indexed_row("__getitems__, dataset index to none", Files.batched, 1.05, 1.0),
    indexed_row(
        "dataset[i], dataset index, 20 kB to neither", Files.one_large, 1.05, 1.0, Files.single
    ),
    indexed_row("__getitems__, the same", Files.one_large_batched, 1.05, 1.0, beside=Files.batched),
    indexed_row("random access, lru_size=10, dataset index to none", Files.thrash, 1.5, 1.3),
    indexed_row(
        "DataLoader epoch, 2 workers, dataset index to none", Files.loader_epoch, 1.3, 1.15
    ),
    Row("opening 100,000 shards by a spec, seconds", Files.load_spec, 1.0, 0.3, is_absolute=True),
    Row("import wids, seconds", Files.import_library, 0.3, 0.15, is_absolute=True),
    Row(
        "JPEG 256² to a tensor, to Pillow + numpy",
        Files.small_pictures,
        0.7,
        0.55,
        references=PILLOW,
    ),
    Row(
        "JPEG 1500 by 2250 to 512² or more, the same",
        Files.large_pictures,
        0.33,
        0.27,
        references=PILLOW,
    ),
    Row(
        "epoch of pictures, 2 workers, to the best",
        *(Files.picture_epoch, round(1 / 1.2, 3), round(1 / 1.6, 3)),
        references=("old", "webdataset", "files"),
    ),
]


def write_tar(
    path: Path,
    start: int,
    count: int,
    nbytes: int,
    large_nbytes: int | None = None,
    **settings: Any,
) -> None:
    """Write samples of two members with the standard library."""
    mtime = settings.pop("mtime", 0)
    content, first = os.urandom(nbytes), os.urandom(large_nbytes or nbytes)
    with tarfile.open(path, "w", **settings) as archive:
        for number in range(start, start + count):
            payload = first if number == start else content
            for field, data in ((".jpg", payload), (".cls", b"%010d" % number)):
                info = tarfile.TarInfo(f"{number:09d}{field}")
                info.size, info.mtime = len(data), mtime
                archive.addfile(info, io.BytesIO(data))
    os.utime(path, (1e9, 1e9))  # old enough for its time to be believed


def write_peers(spec: str, count: int) -> None:
    """Write the samples of a spec into one bagz file and one LMDB, a record each."""
    import bagz
    import lmdb

    with (
        bagz.Writer(spec.replace(".json", ".bagz")) as records,
        lmdb.open(spec.replace(".json", ".lmdb"), map_size=1 << 34) as environment,
        environment.begin(write=True) as transaction,
    ):
        content = os.urandom(1000)
        for number in range(count):
            record = content + b"%010d" % number
            records.write(record)
            transaction.put(b"%d" % number, record)


@contextmanager
def worker(library: str, python: str, folder: Path) -> Iterator[Callable[[Request], float]]:
    """Start a library's process; give the function that sends it a request."""
    # At this niceness of numbers a second core would only add noise.
    environment = {**os.environ, "WIDS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    # This checkout, which the old library must not import in place of itself.
    environment["PYTHONPATH"] = "" if library == "old" else str(Path(__file__).parents[1])
    process = subprocess.Popen(
        [python, "-W", "ignore", str(WORKER), "new" if library == "beside" else library],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=environment,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(request: Request) -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{library}: the worker failed at {str(request)[:200]}")
        return float(json.loads(answer))

    try:
        yield ask
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


@contextmanager
def readahead(kilobytes: int | None) -> Iterator[None]:
    """Set the readahead of all disks that allow it, for the time of the block."""
    settings = Path("/sys/block").glob("*/queue/read_ahead_kb") if kilobytes is not None else ()
    before: dict[Path, str] = {}
    try:
        for setting in settings:
            value = setting.read_text()
            with suppress(OSError):
                setting.write_text(f"{kilobytes}\n")
                before[setting] = value
        if kilobytes is not None and not before:
            raise SystemExit("--readahead: no disk of this machine lets this user set it")
        yield
    finally:
        for setting, value in before.items():
            setting.write_text(value)


@dataclass(frozen=True)
class Result:
    """The seconds (or bytes) of each library in a row, a number for each round."""

    row: Row
    seconds: dict[str, list[float]]

    @property
    def ratios(self) -> list[float]:
        """New to the best of the references, or seconds where the row is absolute."""
        if self.row.is_absolute:
            return self.seconds["new"]
        references = [self.seconds[name] for name in self.row.references if name in self.seconds]
        rounds = zip(self.seconds["new"], *references, strict=True)
        return [new / min(others) for new, *others in rounds]

    def line(self) -> str:
        """Return the row as text."""
        ratios = self.ratios
        verdict = (
            "aim"
            if statistics.median(ratios) <= self.row.aim
            else ("must" if statistics.median(ratios) <= self.row.must else "MISSED")
        )
        peers = "  ".join(
            f"{peer} {statistics.median(self.seconds['new']) / statistics.median(times):.2f}"
            for peer, times in self.seconds.items()
            if peer not in ("new", "old") and self.row.references != (peer,)
        )
        spread = f"{statistics.median(ratios):8.4g} ({min(ratios):.4g} to {max(ratios):.4g})"
        absolute = f"{statistics.median(self.seconds['new']):.3g}"
        return (
            f"{self.row.name:43} {spread:32} {self.row.must:6} {self.row.aim:6}  {verdict:7}"
            f"{absolute:>10}  {peers}"
        )


def measure(
    folder: Path, sizes: Sizes, old_python: str | None, rounds: int, names: list[str]
) -> Iterator[Result]:
    """Measure rows, the libraries taking turns in each round."""
    files = Files(folder, sizes)
    has_peers = bool(importlib.util.find_spec("bagz") and importlib.util.find_spec("lmdb"))
    for row in ROWS:
        if names and not any(name in row.name for name in names):
            continue
        libraries = ["new", *row.references, *(row.peers if has_peers else ())]
        if not old_python and "old" in libraries:
            libraries.remove("old")
        requests = dict.fromkeys(libraries, row.request(files))
        if row.beside is not None:
            requests["beside"] = row.beside(files)
        seconds: dict[str, list[float]] = {library: [] for library in libraries}
        if requests["new"]["work"] in ("memory", "cold"):
            # Alone and once in a process: a page that two processes map is private to neither and
            # stays in the page cache, and memory that was freed is used again.
            for _ in range(rounds):
                for library, request in requests.items():
                    with worker(library, _python(library, old_python), folder) as ask:
                        seconds[library].append(ask(request))
        else:
            with ExitStack() as stack:
                asks = {
                    library: stack.enter_context(
                        worker(library, _python(library, old_python), folder)
                    )
                    for library in requests
                }
                for library, ask in asks.items():
                    ask(requests[library])  # warm up: imports, page cache, open shards
                for _ in range(rounds):
                    for library, ask in asks.items():
                        seconds[library].append(ask(requests[library]))
        yield Result(row, seconds)


def _python(library: str, old_python: str | None) -> str:
    return old_python if library == "old" and old_python else sys.executable


def main(arguments: list[str] | None = None) -> list[Result]:
    """Print the table; give its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", help="the interpreter that has wids 0.1.11")
    parser.add_argument("--toy", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--readahead", type=int, metavar="KB", help="of the disks, meanwhile")
    parser.add_argument("rows", nargs="*", help="parts of the names of rows; all if none")
    options = parser.parse_args(arguments)
    print(
        f"{'row':43} {'new / old: median (least to most)':32}   must    aim  reached  new, s  "
        "new / peer"
    )
    results = []
    with tempfile.TemporaryDirectory() as folder, readahead(options.readahead):
        sizes = TOY if options.toy else Sizes()
        for result in measure(Path(folder), sizes, options.old, options.rounds, options.rows):
            if len(result.seconds) > 1 or result.row.is_absolute:
                print(result.line(), flush=True)
            results.append(result)
    return results


if __name__ == "__main__":
    main()
