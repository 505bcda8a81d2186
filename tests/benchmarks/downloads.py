"""How long it takes to download shards over HTTP, beside curl on the same server, in one run.

    python tests/benchmarks/downloads.py [--toy] [--rounds 5]

nginx serves the shards on loopback. In each round curl stores them, and then a new process of wids
fetches them into an empty cache, compares their digests, indexes them and reads every sample. The
last row is one shard from a server that sends 20 MB per second on each connection, in MB/s.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from table import write_tar

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))


@dataclass(frozen=True)
class Sizes:
    """How much of everything; the toy numbers are for tests."""

    shards: int = 8
    samples: int = 1000
    nbytes: int = 130_000  # of a sample
    limited_nbytes: int = 520_000_000
    rate_nbytes: int = 20_000_000


TOY = Sizes(shards=2, samples=10, nbytes=10_000, limited_nbytes=1_000_000, rate_nbytes=4_000_000)


@contextmanager
def serving(folder: Path, rate_nbytes: int = 0) -> Iterator[str]:
    """Serve a folder with nginx; each connection gets at most ``rate_nbytes`` per second."""
    from servers import free_port, running

    with tempfile.TemporaryDirectory() as home:
        port = free_port()
        Path(home, "nginx.conf").write_text(f"""
            daemon off; worker_processes 1; pid {home}/pid; error_log {home}/error.log;
            {"user root;" if os.geteuid() == 0 else ""}
            events {{ worker_connections 1024; }}
            http {{
                access_log off; sendfile on; tcp_nopush on;
                client_body_temp_path {home}/a; proxy_temp_path {home}/b;
                fastcgi_temp_path {home}/c; uwsgi_temp_path {home}/d; scgi_temp_path {home}/e;
                server {{
                    listen 127.0.0.1:{port}; root {folder};
                    limit_rate {rate_nbytes};
                }}
            }}
        """)
        with running(["nginx", "-p", home, "-c", f"{home}/nginx.conf"], port):
            yield f"http://127.0.0.1:{port}"


def write_shards(folder: Path, sizes: Sizes) -> None:
    """Write the shards, with a spec that has their digests, and the one for the limited server."""
    import wids

    folder.mkdir()
    for number in range(sizes.shards):
        write_tar(folder / f"{number}.tar", number * sizes.samples, sizes.samples, sizes.nbytes)
    write_tar(folder / "large.tar", 0, sizes.limited_nbytes // sizes.nbytes, sizes.nbytes)
    for name, paths in (("all", sorted(folder.glob("[0-9].tar"))), ("one", [folder / "large.tar"])):
        wids.build_spec(list(map(str, paths)), pack=None).save(folder / f"{name}.json")


def curl(url: str, names: list[str], folder: Path) -> float:
    """Store files with curl, all at once; return the seconds."""
    outputs = [part for name in names for part in ("-o", str(folder / name), f"{url}/{name}")]
    started_s = time.perf_counter()
    subprocess.run(["curl", "-sf", "--parallel", *outputs], check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started_s


def wids_worker(url: str, cache: str) -> None:
    """Fetch the shards of a spec and read their samples; print the seconds and the memory."""
    import wids
    from wids.shards.fetch_all import fetch_all

    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_s, cpu_s = time.perf_counter(), time.process_time()
    with wids.ShardListDataset(url, cache_dir=cache, transformations=()) as dataset:
        lengths = dict(enumerate(shard.nbytes for shard in dataset.spec.shards))
        fetch_all(dataset.reader.fetch, lengths, num_threads=len(lengths), progress=False)
        fetched_s = time.perf_counter() - started_s
        memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        assert sum(len(sample[".jpg"].getvalue()) for sample in dataset)
    seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    print(json.dumps([seconds, fetched_s, cpu_s, memory_kb]))


def wids(url: str, cache: Path) -> list[float]:
    """Run `wids_worker` in a process of its own."""
    command = [sys.executable, __file__, "--worker", url, str(cache)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    shutil.rmtree(cache)
    result: list[float] = json.loads(output)
    return result


def measure(sizes: Sizes, rounds: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, copies, cache = (Path(temporary, name) for name in ("www", "curl", "cache"))
        write_shards(folder, sizes)
        names = [path.name for path in sorted(folder.glob("[0-9].tar"))]
        nbytes = sum((folder / name).stat().st_size for name in names)
        ratios = []
        with serving(folder) as url:
            for number in range(rounds + 1):
                copies.mkdir()
                curl_s = curl(url, names, copies)
                shutil.rmtree(copies)
                total_s, fetched_s, cpu_s, *_ = wids(f"{url}/all.json", cache)
                if number:  # the first round is for warming up
                    ratios.append(total_s / curl_s)
                    print(f"{len(names)} shards, {nbytes / 1e6:.0f} MB: curl {curl_s:.2f} s, wids "
                          f"{total_s:.2f} s (fetched after {fetched_s:.2f} s, {cpu_s:.2f} s of the "
                          f"processor), {ratios[-1]:.2f} x curl", flush=True)  # fmt: skip
        print(f"median {statistics.median(ratios):.2f} x curl (must 1.45, aim 1.3)")
        with serving(folder, sizes.rate_nbytes) as url:
            for _ in range(max(1, rounds // 2)):
                total_s, fetched_s, cpu_s, memory_kb = wids(f"{url}/one.json", cache)
                nbytes = (folder / "large.tar").stat().st_size
                print(f"one shard of {nbytes / 1e6:.0f} MB, {sizes.rate_nbytes / 1e6:.0f} MB/s for "
                      f"each connection: {nbytes / fetched_s / 1e6:.0f} MB/s (must 160, aim 300), "
                      f"{memory_kb / 1000:.0f} MB of memory", flush=True)  # fmt: skip


def main() -> None:
    """Parse the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", nargs=2)
    arguments = parser.parse_args()
    if arguments.worker:
        wids_worker(*arguments.worker)
    else:
        measure(TOY if arguments.toy else Sizes(), arguments.rounds)


if __name__ == "__main__":
    main()
