"""Time the loop of a rank, and print the sum over all ranks; started by torchrun."""

from __future__ import annotations

import json
import sys

import torch.distributed as dist
from torch.utils.data import DataLoader

import wids


def main(shards: list[str]) -> None:
    """Read the share of this rank with one worker."""
    dist.init_process_group("gloo")
    with wids.ShardListDataset(shards) as dataset:
        sampler = wids.DistributedChunkedSampler(dataset)
        loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
        with wids.timings(loader) as timings:
            num_batches = sum(1 for _ in loader)
        own, times = timings.times(), timings.over_ranks()
    if dist.get_rank() == 0:
        found = {
            "ranks": times.num_ranks,
            "batches": [num_batches, own.num_batches, times.num_batches],
            "samples": [own.counts["samples"], times.counts["samples"]],
            "decode_s": [own.seconds["decode"], times.seconds["decode"]],
            "text": str(times),
        }
        sys.stdout.write(json.dumps(found) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
