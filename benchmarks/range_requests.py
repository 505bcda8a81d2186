"""What random ranges by HTTP and HTTPS cost, beside other clients, in one run.

    python benchmarks/range_requests.py [--toy] [--rounds 5] [--nbytes 128000]

nginx serves one file on loopback, plain, by TLS, and by TLS with 50 ms for each request. Batches of
64 random ranges are read by wids, by obstore and aiohttp from asyncio, and by urllib3 in 64
threads, in turns. The time is that of this process, the processor's or by the clock, the best of
all rounds. The first batch of a client has no connection yet: each round has a server's port of its
own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from objects import new_certificate
from servers import free_port, running
from web_server import ECHO

from wids.storage.fetch import Fetcher
from wids.storage.ranges import read_all

FILE_NBYTES = 256 << 20
BATCH_SIZE = 64
DELAY_S = 0.05

Batch: TypeAlias = "Callable[[Sequence[int]], object]"
Client: TypeAlias = "Callable[[str, int, int], Iterator[Batch]]"
"""URL, length of the file, length of a range → what reads ranges by their starts, until it is
closed."""

_CONFIGURATION = """
load_module {echo};
daemon off; pid {folder}/nginx.pid; error_log stderr; worker_processes 1;
events {{ worker_connections 4096; }}
http {{
  access_log off; sendfile on; keepalive_requests 1000000; keepalive_timeout 600;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  ssl_certificate {certificate}; ssl_certificate_key {certificate};
  server {{
    {listen}
    root {folder};
    location /late/ {{ echo_sleep {delay_s}; echo_exec @file; }}
    location @file {{ rewrite ^/late(.*) $1 break; }}
  }}
}}
"""


@contextmanager
def serving(folder: Path, num_ports: int = 1) -> Iterator[tuple[list[str], list[str]]]:
    """Serve a folder with nginx; return its addresses, plain ones and those with TLS.

    What is below ``/late/`` waits for 50 ms.
    """
    certificate = new_certificate(folder)
    os.environ["SSL_CERT_FILE"] = str(folder / "only.pem")
    ports = [free_port() for _ in range(2 * num_ports)]
    plain, secure = ports[:num_ports], ports[num_ports:]
    listen = " ".join(
        [f"listen 127.0.0.1:{port} backlog=4096;" for port in plain]
        + [f"listen 127.0.0.1:{port} ssl backlog=4096;" for port in secure]
    )
    configuration = folder / "nginx.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            folder=folder, listen=listen, certificate=certificate, delay_s=DELAY_S, echo=ECHO
        )
    )
    with running(["nginx", "-c", str(configuration), "-p", str(folder)], ports[-1]):
        yield (
            [f"http://127.0.0.1:{port}" for port in plain],
            [f"https://127.0.0.1:{port}" for port in secure],
        )


def by_wids(url: str, total: int, nbytes: int) -> Iterator[Batch]:
    """Read by the loop of wids."""
    reader = Fetcher().range_reader(url, total)
    yield lambda starts: read_all(
        [(reader, start, start + nbytes) for start in starts], lambda _, data: data
    )


def by_obstore(url: str, _: int, nbytes: int) -> Iterator[Batch]:
    """Read by obstore's asynchronous methods."""
    import obstore
    from obstore.store import HTTPStore

    server, _, path = url.rpartition("/")
    options = {"allow_http": True, "allow_invalid_certificates": True}
    store, loop = HTTPStore(server, client_options=options), asyncio.new_event_loop()

    async def read(starts: Sequence[int]) -> object:
        parts = (obstore.get_range_async(store, path, start=s, length=nbytes) for s in starts)
        return await asyncio.gather(*parts)

    yield lambda starts: loop.run_until_complete(read(starts))
    loop.close()


def by_aiohttp(url: str, _: int, nbytes: int) -> Iterator[Batch]:
    """Read by aiohttp."""
    import aiohttp

    loop, trust = asyncio.new_event_loop(), ssl.create_default_context()

    async def opened() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=trust))

    session = loop.run_until_complete(opened())

    async def one(start: int) -> bytes:
        headers = {"Range": f"bytes={start}-{start + nbytes - 1}"}
        async with session.get(url, headers=headers) as response:
            return await response.read()

    async def read(starts: Sequence[int]) -> object:
        return await asyncio.gather(*map(one, starts))

    yield lambda starts: loop.run_until_complete(read(starts))
    loop.run_until_complete(session.close())
    loop.close()


def by_urllib3(url: str, _: int, nbytes: int) -> Iterator[Batch]:
    """Read by urllib3 in threads."""
    import urllib3

    trust = ssl.create_default_context()
    pool = urllib3.PoolManager(maxsize=BATCH_SIZE, ssl_context=trust)
    threads = ThreadPoolExecutor(BATCH_SIZE)

    def one(start: int) -> bytes:
        headers = {"Range": f"bytes={start}-{start + nbytes - 1}"}
        return pool.request("GET", url, headers=headers).data

    yield lambda starts: list(threads.map(one, starts))
    threads.shutdown()
    pool.clear()


CLIENTS: Mapping[str, Client] = {
    "wids": by_wids,
    "obstore": by_obstore,
    "aiohttp": by_aiohttp,
    "urllib3": by_urllib3,
}


def measure(
    rounds: int, num_reads: int, nbytes: int, total: int
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return what is read → client → the least seconds of a batch: processor and clock."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    draw = random.Random(1)

    def note(row: str, name: str, batch: Batch, num_batches: int) -> None:
        spent: list[tuple[float, float]] = []
        for _ in range(num_batches):
            starts = [draw.randrange(total - nbytes) for _ in range(BATCH_SIZE)]
            began = time.process_time(), time.perf_counter()
            batch(starts)
            spent.append((time.process_time() - began[0], time.perf_counter() - began[1]))
        mean = tuple(sum(each) / num_batches for each in zip(*spent, strict=True))
        known = found.setdefault(row, {}).get(name, mean)
        found[row][name] = min(mean[0], known[0]), min(mean[1], known[1])

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "a.bin").write_bytes(os.urandom(1 << 20) * (total >> 20))
        with serving(folder, 2 * rounds) as (plain, secure):
            for turn in range(rounds):
                for label, servers, path in (
                    ("plain", plain[:rounds], "a.bin"),
                    ("TLS", secure[:rounds], "a.bin"),
                    ("TLS, 50 ms", secure[rounds:], "late/a.bin"),
                ):
                    for client, new in CLIENTS.items():
                        for batch in new(f"{servers[turn]}/{path}", total, nbytes):
                            note(f"{label}, first batch", client, batch, 1)
                            note(label, client, batch, num_reads // BATCH_SIZE)
    return found


def main(arguments: list[str] | None = None) -> dict[str, dict[str, tuple[float, float]]]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nbytes", type=int, default=128_000)
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args(arguments)
    num_reads, total = (128, 8 << 20) if options.toy else (512, FILE_NBYTES)
    found = measure(options.rounds, num_reads, options.nbytes, total)
    print(f"{f'a batch of {BATCH_SIZE}, ms: processor, clock':42}", *(f"{n:>16}" for n in CLIENTS))
    for row, by_client in found.items():
        cells = (f"{1e3 * spent:7.1f} {1e3 * clock:8.1f}" for spent, clock in by_client.values())
        print(f"{row:42}", *(f"{cell:>16}" for cell in cells))
    return found


if __name__ == "__main__":
    main()
