"""The simulation of a cluster: what must hold of any, and the numbers of its page."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from jobs import EXAMPLES

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """Return the module of the example."""
    name = "simulate_cluster"
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_a_small_cluster_is_simulated(example: ModuleType) -> None:
    """Each shard is fetched once by a node that needs it; less of anything makes nothing faster."""
    cluster = example.Cluster(num_nodes=2, ranks_per_node=2, num_shards=60, checkpoint_s=20)
    whole = example.simulate(cluster)
    assert whole.nbytes == 60e9
    assert whole.num_requests == 60 * 120
    assert whole.lost_s == 0
    assert whole.seconds == pytest.approx(150 + whole.waited_s)
    assert 0 < whole.first_waits_s[0] <= whole.waited_s
    for changed in (
        {"card_gbits": 1},
        {"requests_per_s": 20},
        {"ahead_nbytes": 0},
        {"num_failures": 3},
    ):
        worse = example.simulate(replace(cluster, **changed))
        assert worse.seconds > whole.seconds, changed
        assert worse.nbytes >= whole.nbytes
    assert len(worse.first_waits_s) == 4
    assert worse.lost_s <= 3 * (60 + 20)
    limited = example.simulate(replace(cluster, requests_per_s=20))
    assert limited.seconds >= limited.num_requests / 20, "the prefix answers no faster"
    shared = example.simulate(replace(cluster, requests_per_s=20, num_prefixes=3))
    assert shared.seconds < limited.seconds


def test_chunks_are_those_of_the_sampler(example: ModuleType) -> None:
    """The shards that the simulated ranks read, and when, are those of the indices they yield."""
    cluster = example.Cluster(num_nodes=2, ranks_per_node=2, num_shards=9, samples_per_shard=30)
    for rank, chunks in enumerate(example.chunks_of_ranks(cluster, epoch=1)):
        sampler = example.wids.DistributedChunkedSampler(
            example.Lengths(cluster), num_replicas=4, rank=rank, chunksize=30
        )
        sampler.set_epoch(1)
        indices = list(sampler)
        assert [c.stop for c in chunks[:-1]] == [c.start for c in chunks[1:]]
        for chunk in chunks:
            read = {index // 30 for index in indices[chunk.start : chunk.stop]}
            assert read <= set(chunk.shards)


@pytest.mark.long
def test_the_table_of_the_page_is_computed(example: ModuleType) -> None:
    """A row without a failure, and the one with four."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:4] == "| 25"]
    assert len(rows) == 5
    few = example.Cluster(num_prefixes=16)
    failing = example.Cluster(num_prefixes=4, num_failures=4)
    for cluster in (few, failing):
        assert example.row(cluster, example.simulate(cluster)) in rows


@pytest.mark.long
def test_the_command_prints_a_table() -> None:
    """A row for each combination of cards, prefixes, bytes ahead and failures."""
    arguments = ["--num-nodes", "1", "--num-shards", "16", "--num-prefixes", "1,2", "--redeal"]
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "simulate_cluster.py"), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(re.findall(r"^\| (25|100) \|", result.stdout, re.MULTILINE)) == 4
