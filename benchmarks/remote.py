"""How long remote shards take, beside what the network allows and beside wids 0.1.11, in one run.

    python benchmarks/remote.py --old OLD_PYTHON [--toy] [--rounds 3]

A server on loopback, in a process of its own, gives a fixed number of bytes per second to all
together. The first rows are cold epochs with steps of training, as ratios to bytes / rate, which no
program can beat; the last ones a sample by byte range beside one plain request for the same bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from table import worker, write_tar

import wids

Asked: TypeAlias = Callable[[], list[tuple[str, int]]]
LOOPBACK = Path(__file__).parents[1] / "tests" / "loopback.py"


@dataclass(frozen=True)
class Sizes:
    """How much of everything; the toy numbers are for tests."""

    shards: int = 40
    samples: int = 100
    nbytes: int = 20_000  # of a sample
    rate_nbytes: float = 8e6
    large_samples: int = 10_000
    large_nbytes: int = 100_000


TOY = Sizes(shards=6, samples=20, rate_nbytes=4e6, large_samples=20, large_nbytes=1000)


@contextmanager
def serving(
    folder: Path, rate_nbytes: float | None = None
) -> Iterator[tuple[str, Callable[[], list[tuple[str, int]]]]]:
    """Serve a folder; give the address, and a function for the requests since it was called."""
    rate = [] if rate_nbytes is None else [str(rate_nbytes)]
    process = subprocess.Popen(
        [sys.executable, str(LOOPBACK), str(folder), *rate],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def asked() -> list[tuple[str, int]]:
        stdin.write("\n")
        stdin.flush()
        requests: list[tuple[str, int]] = json.loads(stdout.readline())
        return requests

    try:
        yield stdout.readline().strip(), asked
    finally:
        stdin.close()
        process.wait()
        stdout.close()


def epochs(
    folder: Path, sizes: Sizes, old_python: str | None, rounds: int
) -> dict[str, list[float]]:
    """Measure cold epochs; give ratios to bytes / rate."""
    (folder / "shards").mkdir()
    shards = []
    for number in range(sizes.shards):
        path = folder / "shards" / f"{number}.tar"
        write_tar(path, number * sizes.samples, sizes.samples, sizes.nbytes)
        shards.append({"nsamples": sizes.samples, "filesize": path.stat().st_size})
    total = sum(shard["filesize"] for shard in shards)
    best_s = total / sizes.rate_nbytes
    # Training takes 0.6 of the time that the bytes take.
    num_batches = -(-sizes.shards * sizes.samples // 32)
    step_s = 0.6 * best_s / num_batches
    rows = {"new, with Prefetcher": ("new", True), "new, without": ("new", False)}
    if old_python:
        rows["old"] = ("old", False)
    ratios: dict[str, list[float]] = {name: [] for name in rows}
    for round_ in range(rounds):
        for name, (library, is_ahead) in rows.items():
            with serving(folder / "shards", sizes.rate_nbytes) as (address, asked):
                listed = [{"url": f"{address}/{n}.tar", **s} for n, s in enumerate(shards)]
                request = {
                    "work": "remote_epoch",
                    "shards": listed,
                    "cache": str(folder / f"cache-{name}-{round_}"),
                    "step_s": step_s,
                    **({"is_ahead": True} if is_ahead else {}),
                }
                python = old_python if library == "old" and old_python else sys.executable
                with worker(library, python, folder) as ask:
                    ratios[name].append(ask(request) / best_s)
                assert sum(sent for _, sent in asked()) >= total
    return ratios


def sample(folder: Path, sizes: Sizes, rounds: int) -> dict[str, list[float]]:
    """Measure one sample of a large remote shard, and one request for the same bytes."""
    www = folder / "large"
    www.mkdir()
    write_tar(www / "large.tar", 0, sizes.large_samples, sizes.large_nbytes)
    wids.build_spec(str(www / "large.tar"), dataset_index=www / "large.index")
    shard = {"url": "large.tar", "nsamples": sizes.large_samples}
    (www / "large.json").write_text(json.dumps({"index": "large.index", "shardlist": [shard]}))
    found: dict[str, list[float]] = {"seconds": [], "plain": [], "bytes": []}
    with serving(www) as (address, asked), worker("new", sys.executable, folder) as ask:
        for round_ in range(rounds + 1):
            index = sizes.large_samples * (round_ + 1) // (rounds + 3)
            spec, cache = f"{address}/large.json", str(folder / "cache-large")
            seconds = ask({"work": "remote_sample", "spec": spec, "cache": cache, "index": index})
            sent = asked()[-1][1]
            start = sizes.large_nbytes * index // 2
            plain = {"url": f"{address}/large.tar", "start": start, "stop": start + sent}
            plain_seconds = ask({"work": "plain_range", **plain})
            if round_:  # the first one warms up
                found["seconds"].append(seconds)
                found["plain"].append(plain_seconds)
                found["bytes"].append(sent)
    return found


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    """Print the rows; give the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", help="the interpreter that has wids 0.1.11")
    parser.add_argument("--toy", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    sizes = TOY if options.toy else Sizes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ratios = epochs(folder, sizes, options.old, options.rounds)
        print("cold epoch / (bytes / rate), must 1.15, aim 1.05 with Prefetcher")
        for row, values in ratios.items():
            spread = f"({min(values):.3f} to {max(values):.3f})"
            print(f"  {row:22} {statistics.median(values):6.3f} {spread}")
        found = sample(folder, sizes, options.rounds)
    ratios["by range"] = [a / b for a, b in zip(found["seconds"], found["plain"], strict=True)]
    print(
        f"one sample by range: {statistics.median(found['seconds']) * 1e3:.2f} ms, "
        f"{statistics.median(ratios['by range']):.2f} x one plain request, "
        f"{statistics.median(found['bytes']):.0f} bytes for members of {sizes.large_nbytes} and 10"
    )
    return ratios


if __name__ == "__main__":
    main()
