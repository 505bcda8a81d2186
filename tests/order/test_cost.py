"""What an epoch reads: computed from the order, compared with what the samplers yield."""

from __future__ import annotations

import re
import warnings
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import raises, write_shards
from dataset.served_shards import serve_shards
from loopback import Server
from torch.utils.data import RandomSampler

import wids
from wids import ChunkedSampler, DistributedChunkedSampler, ShardSpec, sampling_cost
from wids.order.epoch_order import num_chunks

LENGTHS = [40, 7, 7, 0, 90, 33, 60, 3]
SHARD_OF = np.repeat(np.arange(8), LENGTHS)
NBYTES = np.array([10**number for number in range(8)])
SPEC = wids.DatasetSpec(tuple(ShardSpec(f"/{i}.tar", LENGTHS[i], 10**i) for i in range(8)))


class Data:
    """A dataset that has only lengths."""

    def __init__(self, lengths: list[int] = LENGTHS) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return sum(self.lengths)


def samplers(num_replicas: int, **options: Any) -> list[DistributedChunkedSampler]:
    return [
        DistributedChunkedSampler(Data(), num_replicas=num_replicas, rank=rank, **options)
        for rank in range(num_replicas)
    ]


@pytest.mark.parametrize("redeal", [False, True])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"num_samples": (30, 200)}])
def test_computed_cost_is_what_is_read(redeal: bool, options: dict[str, Any]) -> None:
    """Shards and bytes of each rank and node follow from the samplers' indices (ORDER-13)."""
    ranks = samplers(4, chunksize=20, redeal=redeal, seed=5, **options)

    cost = sampling_cost(SPEC, ranks[2], num_nodes=2, epochs=[3, 1])

    assert cost.epochs == (1, 3)
    seen: list[set[int]] = [set(), set()]
    for row, epoch in enumerate(cost.epochs):
        read = []
        for rank, sampler in enumerate(ranks):
            sampler.set_epoch(epoch)
            shards = set(SHARD_OF[list(sampler)].tolist())
            read.append(shards)
            assert cost.num_shards[row, rank] == len(shards)
            assert cost.nbytes[row, rank] == NBYTES[list(shards)].sum()
        for node in range(2):
            shards = read[2 * node] | read[2 * node + 1]
            assert cost.node_nbytes[row, node] == NBYTES[list(shards)].sum()
            assert cost.new_nbytes[row, node] == NBYTES[list(shards - seen[node])].sum()
            seen[node] |= shards


def test_visits_are_openings() -> None:
    """A shard that is cut into chunks is visited each time the rank returns to it."""
    sampler = ChunkedSampler(Data(), chunksize=20)

    cost = sampling_cost(SPEC, sampler, epochs=[0])

    shards = [shard for shard, _ in groupby(SHARD_OF[list(sampler)].tolist())]
    # The two shards of 7 samples share a chunk, so their indices are mixed.
    one_chunk = [
        shard for shard, _ in groupby(min(shard, 1 if shard == 2 else 9) for shard in shards)
    ]
    assert cost.num_visits[0, 0] == len(one_chunk) + 1
    assert cost.num_shards[0, 0] == 7
    assert cost.visited_nbytes[0, 0] == NBYTES[one_chunk].sum() + NBYTES[2]


def test_fixed_shares_are_downloaded_once() -> None:
    """By default a node reads nothing new after its first epoch; with ``redeal`` it does."""
    fixed, dealt = (
        sampling_cost(SPEC, samplers(4, chunksize=20, redeal=redeal)[0], num_nodes=4)
        for redeal in (False, True)
    )

    assert not fixed.new_nbytes[1].any()
    assert dealt.new_nbytes[1].any()
    assert fixed.nbytes.sum() < dealt.nbytes.sum()


def test_larger_chunks_mix_more_and_visit_less() -> None:
    """These two numbers decide about a chunk size."""
    small, large = (sampling_cost(SPEC, samplers(2, chunksize=size)[0]) for size in (10, 200))

    assert small.num_mixed < large.num_mixed <= len(Data())
    assert small.num_visits.sum() > large.num_visits.sum()


def test_cost_prints_as_a_table() -> None:
    """There is a line for each epoch, with the rank and the node that read most."""
    cost = sampling_cost(SPEC, samplers(4, chunksize=20)[0], num_nodes=2)

    lines = str(cost).splitlines()

    assert lines[0] == (
        "the most that one of 4 ranks reads, and one of 2 nodes; 64 samples are mixed at a time"
    )
    assert lines[1] == "working set: at most 2 shards (10.0 MB) of a rank, 20.0 MB of a node"
    assert " ".join(lines[3].split()) == "epoch shards visits bytes by visits | node new"
    assert len(lines) == 6
    assert lines[5].split()[0] == "1"
    assert lines[5].endswith(" 0 B")


def test_table_of_the_page_is_computed() -> None:
    """The numbers in the table of options of the page on samplers are computed."""
    spec = wids.DatasetSpec(tuple(ShardSpec(f"/{i}.tar", 8716, 950_000_000) for i in range(147)))
    page = (Path(__file__).parents[2] / "docs" / "samplers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.*?)`.*? \| (\d.*?) \| [^|]* \|$", page, re.MULTILINE)
    assert len(rows) == 6
    for options, numbers in rows:
        arguments = eval(f"dict({options})")  # noqa: S307 - of our own page
        sampler = DistributedChunkedSampler(Data([8716] * 147), num_replicas=32, **arguments)
        cost = sampling_cost(spec, sampler, num_nodes=4)

        first, second = (
            re.split(r"\s*\|\s*|\s{2,}", line.strip()) for line in str(cost).splitlines()[-2:]
        )
        assert numbers.split(" | ") == [*first[1:3], first[-2], second[-1], f"{cost.num_mixed:,}"]


def test_unstated_lengths_are_unknown(tmp_path: Path) -> None:
    """Shards are counted even if the spec does not state their bytes."""
    with wids.ShardListDataset(write_shards(tmp_path, [5, 5])) as dataset:
        cost = sampling_cost(dataset.spec, ChunkedSampler(dataset))

    assert cost.num_shards.tolist() == [[2], [2]]
    assert np.isnan(cost.nbytes).all()
    assert str(cost).splitlines()[-1].split()[3] == "?"


def test_nothing_to_read_costs_nothing() -> None:
    """An epoch without samples costs nothing, and so do no epochs."""
    nothing = sampling_cost(SPEC, ChunkedSampler(Data(), num_samples=0))
    assert (nothing.num_visits.sum(), nothing.node_nbytes.sum(), nothing.num_mixed) == (0, 0, 0)
    assert sampling_cost(SPEC, ChunkedSampler(Data()), epochs=[]).num_shards.shape == (0, 1)


def test_mismatched_arguments_are_refused() -> None:
    """A sampler over other data, negative epochs and nodes that would split a rank are errors."""
    with raises(ValueError, "over the 8 shards of the spec, found one over 1"):
        sampling_cost(SPEC, ChunkedSampler(range(9)))
    other = Data([1, *LENGTHS[1:]])
    with raises(ValueError, "found one over 8 of other lengths"):
        sampling_cost(SPEC, ChunkedSampler(other))
    with raises(ValueError, "epochs: expected numbers of at least 0, found -1"):
        sampling_cost(SPEC, samplers(4)[0], epochs=[-1, 0])
    with raises(ValueError, "num_nodes: expected a divisor of the 4 ranks, found 3"):
        sampling_cost(SPEC, samplers(4)[0], num_nodes=3)


def test_chunks_are_counted() -> None:
    """Fixed runs cut chunks in two at their ends; with ``redeal`` they share chunks."""
    fixed, dealt = (
        samplers(4, chunksize=20, redeal=redeal)[0].settings for redeal in (False, True)
    )
    assert num_chunks(dealt) == 2 + 1 + 5 + 2 + 3 + 1
    assert num_chunks(fixed) > num_chunks(dealt)


def test_batches_of_buckets_cost_what_their_sampler_does() -> None:
    """The cost is that of the order inside; a sampler of torch's has none."""
    spec = wids.DatasetSpec(tuple(ShardSpec(f"/{n}.tar", 100, 1000) for n in range(8)))
    sampler = wids.ShardListSampler(range(800), lengths=[100] * 8)
    batches = wids.BucketBatchSampler(sampler, [n % 3 for n in range(800)], 8)
    assert str(sampling_cost(spec, batches)) == str(sampling_cost(spec, sampler))
    with pytest.raises(TypeError, match=r"expected one of wids' samplers.*found RandomSampler"):
        sampling_cost(spec, RandomSampler(range(800)))


def test_a_small_cache_downloads_less_than_is_visited(tmp_path: Path, server: Server) -> None:
    """With a cache that holds the working set, new bytes and visits bound real downloads."""
    shards = serve_shards(tmp_path, server)
    cache_size = int(3.2 * shards[0]["filesize"])
    with (
        wids.ShardListDataset(
            shards,
            cache_dir=tmp_path / "cache",
            cache_size=cache_size,
            access="download",
            transformations=None,
        ) as dataset,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)
        sampler = ChunkedSampler(dataset, seed=3, chunksize=25)
        cost = sampling_cost(dataset.spec, sampler)
        assert cost.working_nbytes < cache_size < cost.node_nbytes[0, 0]
        for epoch in range(2):
            before = server.num_sent
            sampler.set_epoch(epoch)
            for index in sampler:
                _ = dataset[index]
            nbytes = server.num_sent - before
            assert cost.new_nbytes[epoch, 0] <= nbytes <= cost.visited_nbytes[epoch, 0]
            assert nbytes > cost.node_nbytes[epoch, 0] / 2
