"""How fast remote shards are read, beside curl and other clients, over networks that are limited.

    python benchmarks/network.py [--rows ROW …] [--rounds 3] [--source CHECKOUT] [--toy]
    python benchmarks/network.py --rows peers [--environments DIR]

A server on loopback serves shards of 130 MB (`web_server.py`): it delays requests, limits each
connection and all of them together, refuses what is beyond a number of requests at a time, and
fails. ``--source`` measures another checkout too, in turns with this one. Each measurement has a
process and a cache of its own. Bytes and requests are those of the server's log. What the server
can do is measured by curl in the same run.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from network_site import (
    FULL_DATA,
    TOY_DATA,
    Client,
    Metrics,
    Site,
    WorkError,
    curl_files,
    curl_parts,
    is_there,
)
from reporting.environments import CONTESTANTS, interpreters
from reporting.runs import FULL, MissingError, Run
from web_server import Network, WebServer, web_server

OWN, BESIDE = "wids", "beside"
"""Names of clients: this checkout, and other programs."""


@dataclass(frozen=True)
class Bound:
    """What a number of a row must be, and what it aims at; both None where it is only shown."""

    metric: str
    must: float | None = None
    aim: float | None = None
    is_least: bool = False

    @property
    def must_text(self) -> str:
        """What must be."""
        return "" if self.must is None else f"{'≥' if self.is_least else '≤'} {self.must:g}"

    @property
    def aim_text(self) -> str:
        """What would be better."""
        return "" if self.aim is None else f"{self.aim:g}"


Results: TypeAlias = dict[str, dict[str, dict[str, list[float]]]]
"""Row → metric → client → a number for each round."""

Measure: TypeAlias = Callable[[Client, WebServer, Metrics], Metrics]
"""A client, the server, and what was found beside it in this round → metrics."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: Short, for the command line.
        title: What is done.
        network: Over what.
        measure: Measures one client.
        bounds: What is shown, in this order.
        beside: Other programs with the same work; measured first in each round.
    """

    name: str
    title: str
    network: Network
    measure: Measure
    bounds: tuple[Bound, ...]
    beside: Mapping[str, Callable[[Site, WebServer], float]] = field(default_factory=dict)


# What is measured.


def fetch(spec: str) -> Measure:
    """Return the work that fetches, compares, indexes and reads the shards of a spec."""

    def measure(client: Client, server: WebServer, beside: Metrics) -> Metrics:
        site = client.site
        with site.cache() as cache:
            found = client.ask("fetched", spec=f"{server.url}/bucket/{spec}.json", cache=cache)
        num_shards = 1 if spec == "one" else site.data.num_shards
        expected = num_shards * site.data.length * (site.data.nbytes or 0)
        assert found["payload_nbytes"] == expected, found
        nbytes = site.nbytes * num_shards / site.data.num_shards
        return {
            "s": found["s"],
            "MB/s": nbytes / found["fetch_s"] / 1e6,
            "x curl": found["s"] / beside.get("curl, s", math.nan),
            "bytes / dataset": server.counted().nbytes / nbytes,
        }

    return measure


def epoch(work: str = "epoch", **about: Any) -> Measure:
    """Return the work that reads an epoch."""

    def measure(client: Client, server: WebServer, beside: Metrics) -> Metrics:
        site = client.site
        spec = f"{server.url}/bucket/train.json"
        with site.cache() as cache:
            found = client.ask(work, spec=spec, cache=cache, **about)
        counted = server.counted()
        rate_nbytes = site.nbytes / found["s"]
        known_nbytes = beside["curl, MB/s"] * 1e6 if "curl, MB/s" in beside else rate_nbytes
        return {
            "MB/s": rate_nbytes / 1e6,
            "of the server's rate": rate_nbytes / known_nbytes,
            "first batch, s": found["first_s"],
            "longest wait, s": found.get("longest_s", math.nan),
            "bytes / dataset": counted.nbytes / site.nbytes,
            "refused": counted.num_refused / counted.num_requests,
            "requests": counted.num_requests,
            "memory, MB": found["memory_nbytes"] / 1e6,
        }

    return measure


def batches(width: int, count: int, *, is_s3: bool = False) -> Measure:
    """Return the work that reads random batches by range."""

    def measure(client: Client, server: WebServer, beside: Metrics) -> Metrics:  # noqa: ARG001
        site = client.site
        width_here = min(width, site.data.num_samples // 2)
        wanted = [site.indices(width_here) for _ in range(count + 1)]
        spec = "s3://bucket/train.json" if is_s3 else f"{server.url}/bucket/train.json"
        about = {"endpoint": server.url} if is_s3 else {}
        with site.cache() as cache:
            found = client.ask("batches", spec=spec, cache=cache, batches=wanted, **about)
        payload = width_here * len(wanted) * (site.data.nbytes or 0)
        return {
            "ms": found["s"] * 1e3,
            "p95, ms": found["p95_s"] * 1e3,
            "longest, ms": found["longest_s"] * 1e3,
            "processor, ms a sample": found["cpu_s"] * 1e3,
            "bytes / samples": server.counted().nbytes / payload,
        }

    return measure


def uneven_batches(client: Client, server: WebServer, beside: Metrics) -> Metrics:
    """Read random batches of 32 by range, and compare them with those of obstore."""
    found = batches(32, 150)(client, server, beside)
    for metric, name in (("ms", "p50"), ("p95, ms", "p95")):
        found[f"x obstore, {name}"] = found[metric] / beside.get(f"obstore, {name}, ms", math.nan)
    return found


def first_batch(client: Client, server: WebServer, beside: Metrics) -> Metrics:  # noqa: ARG001
    """Read one random batch of 64 without any option."""
    site = client.site
    spec = f"{server.url}/bucket/train.json"
    with site.cache() as cache:
        found = client.ask("first_batch", spec=spec, cache=cache, batch=site.indices(64))
    counted = server.counted()
    return {"s": found["s"], "MB": counted.nbytes / 1e6, "requests": counted.num_requests}


def ranges_by(
    work: str, width: int, count: int, metric: str, **about: Any
) -> Callable[[Site, WebServer], float]:
    """Return the same batches by another client."""

    def measure(site: Site, server: WebServer) -> float:
        width_here = min(width, site.data.num_samples // 2)
        wanted = [site.ranges(site.indices(width_here)) for _ in range(count + 1)]
        client = Client(work, site)
        found = client.ask(work, ranges=wanted, url=f"{server.url}/bucket", **about)
        return found[metric] * 1e3

    return measure


def files_by(work: str, **about: Any) -> Callable[[Site, WebServer], float]:
    """Return the download of all shards by another client."""

    def measure(site: Site, server: WebServer) -> float:
        client = Client(work, site)
        with site.cache() as folder:
            url = f"{server.url}/bucket"
            return client.ask(work, paths=site.paths, url=url, folder=folder, **about)["s"]

    return measure


def server_rate(site: Site, server: WebServer, network: Network) -> float:
    """Return the megabytes a second that curl gets, with as many connections as are allowed."""
    parallel = min(64, network.max_requests or 64)
    if network.cut_nbytes:
        return math.nan
    return site.nbytes / curl_parts(site, server.url, parallel) / 1e6


CONNECTION = Network(connection_nbytes=20e6)
DELAY = Network(delay_s=0.05)
UNEVEN = Network(delay_s=0.045, delay_sigma=0.5, slow_share=0.01, error_share=0.005)
MEMORY = Bound("memory, MB", 256)
BYTES = Bound("bytes / dataset", 1.1)
REFUSED = Bound("refused", 0.1)


def _epochs(name: str, title: str, network: Network, *bounds: Bound, **about: Any) -> Row:
    """Return a row of epochs, beside what the server gives to curl."""
    beside = {"curl, MB/s": lambda site, server: server_rate(site, server, network)}
    own = {bound.metric for bound in bounds}
    shown = [Bound("MB/s"), Bound("of the server's rate"), Bound("first batch, s"), BYTES]
    others = [bound for bound in (*shown, REFUSED, MEMORY) if bound.metric not in own]
    return Row(name, title, network, epoch(**about), (*bounds, *others), beside)


def _least(metric: str, must: float, aim: float) -> Bound:
    return Bound(metric, must, aim, is_least=True)


ROWS = (
    Row(
        "fetch",
        "all shards fetched, digests compared, indexed, read",
        Network(),
        fetch("plain"),
        (Bound("x curl", 1.45, 1.3), Bound("s"), Bound("bytes / dataset", 1.1)),
        {
            "curl, s": lambda site, server: curl_files(site, server.url),
            "obstore, s": files_by("obstore_fetched", is_s3=False),
            "obstore s3, s": files_by("obstore_fetched", is_s3=True),
            "boto3, s": files_by("boto3_fetched"),
        },
    ),
    Row(
        "shard",
        "one shard, 20 MB/s a connection",
        CONNECTION,
        fetch("one"),
        (_least("MB/s", 160, 300), Bound("s"), BYTES),
    ),
    _epochs(
        "epoch",
        "an epoch with Prefetcher, 20 MB/s a connection",
        CONNECTION,
        _least("MB/s", 240, 400),
        Bound("first batch, s", 1.5, 0.3),
    ),
    _epochs(
        "refuse",
        "the same, 503 beyond 20 requests at a time",
        replace(CONNECTION, max_requests=20),
        _least("MB/s", 240, 360),
    ),
    Row(
        "range-64",
        "a random batch of 64 by range, 50 ms a request",
        DELAY,
        batches(64, 8),
        (Bound("ms", 150, 100), Bound("bytes / samples", 2)),
        {
            "obstore, ms": ranges_by("obstore_batches", 64, 8, "s", is_s3=False),
            "urllib3, ms": ranges_by("urllib3_batches", 64, 8, "s"),
        },
    ),
    Row(
        "range-256",
        "a random batch of 256 by range, 50 ms a request",
        DELAY,
        batches(256, 4),
        (Bound("ms", 300, 200), Bound("bytes / samples", 2)),
        {
            "obstore, ms": ranges_by("obstore_batches", 256, 4, "s", is_s3=False),
            "urllib3, ms": ranges_by("urllib3_batches", 256, 4, "s"),
        },
    ),
    Row(
        "uneven",
        "random batches of 32 by range, 45 ms a request, 1 % take ten times as long, 0.5 % fail",
        UNEVEN,
        uneven_batches,
        (
            Bound("x obstore, p50", 1.3),
            Bound("x obstore, p95", 1.3),
            *(Bound(metric) for metric in ("ms", "p95, ms", "longest, ms")),
            Bound("bytes / samples", 2),
        ),
        {
            "obstore, p50, ms": ranges_by("obstore_batches", 32, 150, "s", is_s3=False),
            "obstore, p95, ms": ranges_by("obstore_batches", 32, 150, "p95_s", is_s3=False),
        },
    ),
    *(
        Row(
            name,
            f"an epoch with 0.1 s of work a batch, 20 MB/s a connection, the 100th request {what}",
            replace(CONNECTION, **fault),
            epoch(work_s=0.1),
            (Bound("longest wait, s", 1.5, 1), Bound("first batch, s"), Bound("MB/s"), BYTES),
        )
        for name, what, fault in (
            ("silent", "is never answered", {"silent_at": 100}),
            ("stalled", "stops in its body", {"stalled_at": 100}),
        )
    ),
    Row(
        "processor",
        "the processor's part of a sample of 128 kB by range",
        Network(),
        batches(256, 8),
        (Bound("processor, ms a sample", 0.5, 0.25),),
        {
            "obstore, ms": ranges_by("obstore_batches", 256, 8, "cpu_s", is_s3=False),
            "urllib3, ms": ranges_by("urllib3_batches", 256, 8, "cpu_s"),
        },
    ),
    Row(
        "processor-s3",
        "the same by S3",
        Network(),
        batches(256, 8, is_s3=True),
        (Bound("processor, ms a sample", 0.25, 0.18),),
        {"obstore, ms": ranges_by("obstore_batches", 256, 8, "cpu_s", is_s3=True)},
    ),
    Row(
        "auto",
        "the first random batch of 64, 20 MB/s a connection",
        CONNECTION,
        first_batch,
        (Bound("MB", 16, 10), Bound("s", 0.5), Bound("requests")),
    ),
    _epochs(
        "workers",
        "an epoch by two workers without Prefetcher, 20 MB/s a connection",
        CONNECTION,
        is_ahead=False,
        num_workers=2,
    ),
    _epochs(
        "connection-5",
        "an epoch, 5 MB/s a connection",
        Network(connection_nbytes=5e6),
        _least("MB/s", 120, 240),
    ),
    _epochs(
        "connection-60",
        "an epoch, 60 MB/s a connection",
        Network(connection_nbytes=60e6),
        _least("MB/s", 240, 400),
    ),
    _epochs(
        "requests-6",
        "an epoch, 20 MB/s a connection, 503 beyond 6 requests at a time",
        replace(CONNECTION, max_requests=6),
        _least("of the server's rate", 0.6, 0.9),
    ),
    _epochs(
        "requests-60",
        "an epoch, 20 MB/s a connection, 503 beyond 60 requests at a time",
        replace(CONNECTION, max_requests=60),
        _least("MB/s", 240, 400),
    ),
    _epochs(
        "card",
        "an epoch by 4 processes of a node, 200 MB/s for all connections together",
        Network(card_nbytes=200e6),
        _least("of the server's rate", 0.8, 0.95),
        work="node",
        num_processes=4,
    ),
    *(
        _epochs(
            f"total-{rate}-{ranks}",
            f"an epoch, {rate} MB/s for all connections of {ranks} ranks with one cache",
            Network(card_nbytes=rate * 1e6),
            _least("of the server's rate", 0.85, 0.95),
            work="node",
            num_processes=ranks,
        )
        for rate, ranks in ((30, 1), (30, 2), (30, 4), (5, 1))
    ),
    Row(
        "cut",
        "all shards, connections cut after 40 MB",
        Network(cut_nbytes=40_000_000),
        fetch("plain"),
        (Bound("MB/s"), Bound("s"), BYTES),
    ),
)


BY_PEERS = ("epoch", "connection-60", "total-30-1")
"""Rows whose networks other libraries read over, too."""


# The run.


def rounds_of(row: Row, clients: list[Client], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return metric → client → a number for each round."""
    found: dict[str, dict[str, list[float]]] = {}

    def note(name: str, metrics: Metrics) -> None:
        for metric, value in metrics.items():
            found.setdefault(metric, {}).setdefault(name, []).append(value)

    site = clients[0].site
    for _ in range(rounds):
        with web_server(site.root, row.network) as server:
            beside = {}
            for metric, measure in row.beside.items():
                if not is_there(metric):
                    continue
                try:
                    beside[metric] = measure(site, server)
                except WorkError as reason:  # of another program, which does not stop this one
                    print(f"  {reason}", flush=True)
            note(BESIDE, beside)
            for client in clients:
                server.counted()
                note(client.name, row.measure(client, server, beside))
    return found


def lines(row: Row, found: dict[str, dict[str, list[float]]], clients: list[Client]) -> list[str]:
    """Return the text of a row."""
    beside = ", ".join(
        f"{metric.partition(',')[0]} {text(values[BESIDE])}{metric.partition(',')[2]}"
        for metric, values in found.items()
        if BESIDE in values
    )
    shown = [f"{row.name}: {row.title}" + (f"; beside it: {beside}" if beside else "")]
    for bound in row.bounds:
        cells = [
            f"{text(found[bound.metric][client.name]):>26}"
            for client in clients
            if client.name in found.get(bound.metric, {})
        ]
        own = statistics.median(found[bound.metric][clients[-1].name])
        shown.append(
            f"  {bound.metric:24}{bound.must_text:>9}{bound.aim_text:>7}{''.join(cells)} "
            + verdict(bound, own)
        )
    return shown


def verdict(bound: Bound, value: float) -> str:
    """Return what a number means."""
    if bound.must is None:
        return ""

    def has(limit: float | None) -> bool:
        if limit is None:
            return False
        return value >= limit if bound.is_least else value <= limit

    return "aim" if has(bound.aim) else "must" if has(bound.must) else "NOT YET"


def text(values: list[float]) -> str:
    """Return the median, and least to most."""
    if len(values) == 1:
        return f"{values[0]:.4g}"
    return f"{statistics.median(values):.4g} ({min(values):.3g} to {max(values):.3g})"


def measure_rows(clients: list[Client], names: Collection[str], rounds: int) -> Results:
    """Measure and print rows; return row → metric → client → a number for each round."""
    results: Results = {}
    for row in ROWS:
        if row.name not in names:
            continue
        load = os.getloadavg()[0]
        results[row.name] = rounds_of(row, clients, rounds)
        for line in lines(row, results[row.name], clients):
            print(line)
        print(f"  (load {load:.1f} to {os.getloadavg()[0]:.1f})", flush=True)
    return results


def by_peers(
    site: Site, environments: Path | None, rounds: int, rows: Collection[str] = BY_PEERS
) -> Results:
    """Print what other libraries reach in an epoch over the networks of some rows.

    webdataset reads by HTTP, mosaicml-streaming and litdata by S3.
    """
    pythons, _ = interpreters(environments, None, ("wids", "webdataset", "streaming", "litdata"))
    chosen = [contestant for contestant in CONTESTANTS if contestant.environment in pythons]
    chosen = [contestant for contestant in chosen if not contestant.is_limit]
    run = Run(chosen, pythons, site.folder / "peers", replace(FULL, fast=site.data))
    run.tars.mkdir(parents=True)
    for path in site.paths:
        (run.tars / path).hardlink_to(site.bucket / path)
    results: Results = {}
    for row in (row for row in ROWS if row.name in rows):
        found = results[f"peers, {row.name}"] = {"MB/s": {}, "first batch, s": {}}
        for contestant in chosen * rounds:
            try:
                rate_nbytes, first_s = run.epoch_over(row.network, contestant)
            except MissingError as reason:
                print(f"  {contestant.name}: {reason}")
                continue
            found["MB/s"].setdefault(contestant.name, []).append(rate_nbytes / 1e6)
            found["first batch, s"].setdefault(contestant.name, []).append(first_s)
        print(f"peers: {row.title}, with one worker")
        for name, values in found["MB/s"].items():
            firsts = text(found["first batch, s"][name])
            print(f"  {name:24} {text(values):>26} MB/s, first batch {firsts} s", flush=True)
    return results


def main(arguments: list[str] | None = None) -> Results:
    """Print the rows; return row → metric → client → numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [row.name for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=[*names, "peers"], default=names)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--source", type=Path, help="another checkout to measure in turns")
    parser.add_argument("--environments", type=Path, help="as for report.py, for the row peers")
    parser.add_argument("--data", type=Path, help="folder for the shards and the caches")
    parser.add_argument("--toy", action="store_true", help="tiny sizes, to see that it works")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.data) as name:
        site = Site(Path(name), TOY_DATA if options.toy else FULL_DATA)
        site.write()
        clients = [Client(OWN, site)]
        if options.source:
            clients.insert(0, Client("before", site, options.source.absolute()))
        print(f"{'':26}{'must':>9}{'aim':>7}" + "".join(f"{c.name:>26}" for c in clients))
        results = measure_rows(clients, options.rows, options.rounds)
        if "peers" in options.rows:
            results |= by_peers(site, options.environments, options.rounds)
    return results


if __name__ == "__main__":
    main()
