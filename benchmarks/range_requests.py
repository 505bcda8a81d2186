"""The processor time of a ranged read by HTTP, beside urllib3 alone, in one run.

    python benchmarks/range_requests.py [--toy] [--rounds 5] [--nbytes 128000]

nginx serves one file on loopback. Random ranges of it are read one by one, and 64 at a time,
by urllib3 in threads; the time is that of this process, in milliseconds a read, the best of all
rounds.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import urllib3
from servers import free_port, running

from wids.storage.fetch import Fetcher
from wids.storage.ranges import RangeReader, read_all

FILE_NBYTES = 256 << 20
NUM_THREADS = 64
Read: TypeAlias = "Callable[[int], bytes | memoryview]"

_CONFIGURATION = """
daemon off; pid {folder}/nginx.pid; error_log stderr; worker_processes 1;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; keepalive_requests 1000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder with nginx; return its address."""
    port = free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(_CONFIGURATION.format(folder=folder, port=port))
    with running(["nginx", "-c", str(configuration), "-p", str(folder)], port):
        yield f"http://127.0.0.1:{port}"


def readers(reader: RangeReader, url: str, nbytes: int) -> dict[str, Read]:
    """Return functions that read ``nbytes`` from a position: of wids, and of urllib3 alone."""
    pool = urllib3.PoolManager(maxsize=256)

    def by_urllib3(start: int) -> bytes:
        headers = {"Range": f"bytes={start}-{start + nbytes - 1}"}
        response = pool.request("GET", url, headers=headers)
        assert response.status == 206
        return response.data

    return {"wids": lambda start: reader.view(start, start + nbytes), "urllib3": by_urllib3}


def one_by_one(read: Read, starts: Sequence[int]) -> None:
    """Read all ranges in this thread."""
    for start in starts:
        read(start)


def by_pool(read: Read, starts: Sequence[int]) -> None:
    """Read in threads of the standard library, in batches as for training."""
    for number in range(0, len(starts), NUM_THREADS):
        with ThreadPoolExecutor(NUM_THREADS) as threads:
            list(threads.map(read, starts[number : number + NUM_THREADS]))


def by_loop(reader: RangeReader, nbytes: int, starts: Sequence[int]) -> None:
    """Read by the loop of wids, in batches as for training."""
    for number in range(0, len(starts), NUM_THREADS):
        part = starts[number : number + NUM_THREADS]
        read_all([(reader, start, start + nbytes) for start in part], lambda _, data: data)


def measure(rounds: int, num_reads: int, nbytes: int, total_nbytes: int) -> dict[str, float]:
    """Return processor seconds a read, for each way of reading."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "a.bin").write_bytes(os.urandom(1 << 20) * (total_nbytes >> 20))
        draw = random.Random(1)
        starts = [draw.randrange(total_nbytes - nbytes) for _ in range(num_reads)]
        with serving(folder) as address:
            reader = Fetcher().range_reader(f"{address}/a.bin", total_nbytes)
            reads = readers(reader, f"{address}/a.bin", nbytes)
            ways = {
                "wids, one by one": partial(one_by_one, reads["wids"]),
                "urllib3, one by one": partial(one_by_one, reads["urllib3"]),
                "wids, 64 together": partial(by_loop, reader, nbytes),
                "urllib3, 64 together": partial(by_pool, reads["urllib3"]),
            }
            for way in ways.values():
                way(starts[:NUM_THREADS])  # connections and imports
            for _ in range(rounds):
                for label, way in ways.items():
                    began_s = time.process_time()
                    way(starts)
                    spent_s = (time.process_time() - began_s) / num_reads
                    seconds[label] = min(spent_s, seconds.get(label, spent_s))
    return seconds


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nbytes", type=int, default=128_000)
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args(arguments)
    num_reads, total = (128, 8 << 20) if options.toy else (1024, FILE_NBYTES)
    seconds = measure(options.rounds, num_reads, options.nbytes, total)
    for label, spent_s in seconds.items():
        other = seconds["urllib3" + label[label.index(",") :]]
        print(f"{label:22} {1e3 * spent_s:6.3f} ms of the processor, {spent_s / other:.2f} times")
    return seconds


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    main()
