"""Simulate an epoch of a cluster that reads one bucket: bytes, requests, waits and failures.

    python examples/simulate_cluster.py --card-gbits 25,100 --num-prefixes 1,4,16

The order is that of `DistributedChunkedSampler`, and shards are fetched ahead as by `Prefetcher`:
each rank in its order, up to some bytes, in parts of one request each. All ranks take equal steps,
so that the job waits for the slowest one. A node that fails is replaced by one with an empty cache,
and the job resumes from its latest checkpoint. The bucket serves so many requests a second for each
prefix; others wait. `docs/clusters.md` explains the model and what follows from it.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby, product
from operator import itemgetter

import numpy as np

import wids
from wids.dataset.prefetch import DEFAULT_NBYTES
from wids.storage.download import Download
from wids.storage.transport.request_limit import MOST


@dataclass(frozen=True)
class Cluster:
    """What is simulated; rates are those of one second."""

    num_nodes: int = 128
    ranks_per_node: int = 8
    num_shards: int = 100_000
    samples_per_shard: int = 10_000
    shard_nbytes: int = 1_000_000_000
    samples_per_s: float = 1000  # that a rank trains on
    card_gbits: float = 25
    connection_nbytes: float = 80e6  # that a connection to the bucket yields
    latency_s: float = 0.1
    num_prefixes: int = 1
    requests_per_s: float = 5500  # that the bucket answers for a prefix
    ahead_nbytes: int = DEFAULT_NBYTES  # of `Prefetcher`; 0 for a job without it
    redeal: bool = False
    num_failures: int = 0
    checkpoint_s: float = 300
    restart_s: float = 60
    seed: int = 0

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the job."""
        return self.num_nodes * self.ranks_per_node


@dataclass(frozen=True)
class Chunk:
    """A chunk of a rank: its shards, and the samples of the rank that come before and with it."""

    shards: range
    start: int
    stop: int


@dataclass
class Result:
    """What happened; each entry of ``first_waits_s`` is a wait for the first step after a start."""

    seconds: float = 0.0
    waited_s: float = 0.0
    lost_s: float = 0.0
    nbytes: float = 0.0
    num_requests: int = 0
    most_requests_per_s: float = 0.0
    first_waits_s: list[float] = field(default_factory=list)


class Lengths:
    """A dataset of which only the lengths of its shards are known."""

    def __init__(self, cluster: Cluster) -> None:
        self.lengths = [cluster.samples_per_shard] * cluster.num_shards

    def __len__(self) -> int:
        return sum(self.lengths)


def chunks_of_ranks(cluster: Cluster, epoch: int = 0) -> list[list[Chunk]]:
    """Return the chunks of each rank, in the order of the epoch."""
    sampler = wids.DistributedChunkedSampler(
        Lengths(cluster),
        num_replicas=cluster.num_ranks,
        rank=0,
        chunksize=cluster.samples_per_shard,
        redeal=cluster.redeal,
        seed=cluster.seed,
    )
    settings = sampler.settings
    found = []
    runs = settings.of_epoch(sampler.seed, epoch)
    for run in map(runs.run, range(settings.num_runs)):
        own = []
        for chunks, begin, end in run.indices.pieces(run.start, run.stop):
            first, last = np.searchsorted(chunks.ends, (begin, end - 1), side="right")
            for number in range(first, last + 1):
                low, high = chunks.start(number), int(chunks.ends[number])
                edge, width = int(chunks.starts[number]), cluster.samples_per_shard
                shards = range(edge // width, -(-(edge + high - low) // width))
                start, stop = max(low, begin), min(high, end)
                own.append(Chunk(shards, start - begin, stop - begin))  # a run is one piece
        found.append(own)
    return found


class Network:
    """The cards of the nodes, the prefixes of the bucket, and the copies that nodes have."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.copies: list[dict[int, float]] = [{} for _ in range(cluster.num_nodes)]
        self.card_free_s = np.zeros(cluster.num_nodes)
        self.prefix_free_s = np.zeros(cluster.num_prefixes)
        self.nbytes = 0.0
        self.num_requests = 0
        self.wanted: list[dict[int, int]] = [{} for _ in range(cluster.num_prefixes)]

    def fetch(self, node: int, shard: int, now_s: float) -> float:
        """Return when a node has a shard that it wants now."""
        cluster, copies = self.cluster, self.copies[node]
        if shard in copies:
            return max(now_s, copies[shard])
        nbytes, prefix = cluster.shard_nbytes, shard % cluster.num_prefixes
        num_parts = -(-nbytes // Download.part_nbytes)
        # Card and prefix serve all requests in sequence.
        self.card_free_s[node] = (
            max(self.card_free_s[node], now_s) + nbytes * 8e-9 / cluster.card_gbits
        )
        free_s = max(self.prefix_free_s[prefix], now_s) + num_parts / cluster.requests_per_s
        self.prefix_free_s[prefix] = free_s
        connections_s = nbytes / (cluster.connection_nbytes * min(num_parts, MOST))
        copies[shard] = max(
            self.card_free_s[node], free_s, now_s + cluster.latency_s + connections_s
        )
        self.nbytes += nbytes
        self.num_requests += num_parts
        # As the card would send them, if the prefix took any number.
        second = int(self.card_free_s[node])
        self.wanted[prefix][second] = self.wanted[prefix].get(second, 0) + num_parts
        return copies[shard]

    def restart(self, now_s: float) -> None:
        """End all downloads of the job; those that are not complete by now are lost."""
        for copies in self.copies:
            for shard in [shard for shard, ready_s in copies.items() if ready_s > now_s]:
                del copies[shard]
        self.card_free_s[:] = np.minimum(self.card_free_s, now_s)
        self.prefix_free_s[:] = np.minimum(self.prefix_free_s, now_s)


class Rank:
    """The chunks that a rank has not begun, and those that are fetched ahead."""

    def __init__(self, node: int, chunks: Iterable[Chunk]) -> None:
        self.node = node
        self.later = deque(chunks)
        self.ready_s: deque[float] = deque()

    def order(self, network: Network, now_s: float, num_most: int) -> None:
        """Order chunks until so many are ordered and not begun."""
        while self.later and len(self.ready_s) < num_most:
            shards = self.later.popleft().shards
            self.ready_s.append(max(network.fetch(self.node, s, now_s) for s in shards))


def simulate(cluster: Cluster) -> Result:
    """Simulate an epoch."""
    all_chunks = chunks_of_ranks(cluster)
    network, result = Network(cluster), Result()
    random = np.random.default_rng(cluster.seed)
    total = max(chunks[-1].stop for chunks in all_chunks)
    # Failures at points of the epoch, so that they are as likely in each part of it.
    failures = np.sort(random.integers(0, total, cluster.num_failures)).tolist()
    saved = max(1, int(cluster.checkpoint_s * cluster.samples_per_s))
    done = 0
    for fails_at in failures:
        train(cluster, all_chunks, network, result, done, fails_at)
        network.copies[int(random.integers(cluster.num_nodes))] = {}
        done = fails_at // saved * saved
        result.lost_s += cluster.restart_s + (fails_at - done) / cluster.samples_per_s
        result.seconds += cluster.restart_s
        network.restart(result.seconds)
    train(cluster, all_chunks, network, result, done, total)
    result.nbytes, result.num_requests = network.nbytes, network.num_requests
    result.most_requests_per_s = max(max(wanted.values(), default=0) for wanted in network.wanted)
    return result


def train(
    cluster: Cluster,
    all_chunks: list[list[Chunk]],
    network: Network,
    result: Result,
    start: int,
    stop: int,
) -> None:
    """Train from a sample of each rank's order to another; `result` has the time."""
    now_s, done, first_wait_s = result.seconds, start, 0.0
    left = [[chunk for chunk in chunks if chunk.stop > start] for chunks in all_chunks]
    ranks = [Rank(number // cluster.ranks_per_node, own) for number, own in enumerate(left)]
    num_ahead = cluster.ahead_nbytes // cluster.shard_nbytes
    for num_ordered in range(1, num_ahead + 1):  # all ranks at once
        for rank in ranks:
            rank.order(network, now_s, num_ordered)
    # When each rank begins its next chunk: the events of the simulation.
    begins = sorted((max(c.start, start), n) for n, own in enumerate(left) for c in own)
    for begin, group in groupby(begins, key=itemgetter(0)):
        if begin >= stop:
            break
        now_s += (begin - done) / cluster.samples_per_s
        done, begun = begin, [ranks[number] for _, number in group]
        for rank in begun:
            rank.order(network, now_s, 1)
        ready_s = max(rank.ready_s.popleft() for rank in begun)
        for rank in begun:
            rank.order(network, now_s, num_ahead)
        wait_s = max(0.0, ready_s - now_s)
        now_s += wait_s
        result.waited_s += wait_s
        first_wait_s += wait_s * (begin == start)
    result.first_waits_s.append(first_wait_s)
    result.seconds = now_s + (stop - done) / cluster.samples_per_s


def row(cluster: Cluster, result: Result) -> str:
    """Return a row of the table that is printed."""
    share = result.waited_s / result.seconds
    first = " ".join(f"{wait_s:.0f}" for wait_s in result.first_waits_s)
    most, ahead = result.most_requests_per_s, f"{cluster.ahead_nbytes / 1e9:.0f} GB"
    return (
        f"| {cluster.card_gbits:g} | {cluster.num_prefixes} | {ahead} | {cluster.num_failures} "
        f"| {result.nbytes / 1e12:.1f} TB | {most:,.0f} | {first} | {share:.0%} "
        f"| {result.lost_s:.0f} | {result.seconds:.0f} |"
    )


def numbers(text: str) -> list[float]:
    """Return numbers that are separated by commas."""
    return [float(part) for part in text.split(",")]


def main() -> None:
    """Print a row for each combination of the settings that have several values."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, value in vars(Cluster()).items():
        kind = int if isinstance(value, int) else float
        if name not in ("num_prefixes", "card_gbits", "ahead_nbytes", "num_failures", "redeal"):
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=value)
    parser.add_argument("--redeal", action="store_true")
    for name, default in (
        ("card-gbits", "25,100"),
        ("num-prefixes", "1,4,16"),
        ("ahead-nbytes", str(DEFAULT_NBYTES)),
        ("num-failures", "0"),
    ):
        parser.add_argument(f"--{name}", type=numbers, default=default)
    options = vars(parser.parse_args())
    print(
        "| card, Gbit/s | prefixes | ahead | failures | bytes | most requests/s of a prefix | ",
        end="",
    )
    print("first waits, s | waiting | lost, s | epoch, s |")
    print("|---" * 10 + "|")
    several = ("card_gbits", "num_prefixes", "ahead_nbytes", "num_failures")
    for card, prefixes, ahead, failures in product(*(options.pop(name) for name in several)):
        cluster = Cluster(
            **options,
            card_gbits=card,
            num_prefixes=int(prefixes),
            ahead_nbytes=int(ahead),
            num_failures=int(failures),
        )
        print(row(cluster, simulate(cluster)), flush=True)


if __name__ == "__main__":
    main()
