"""A torchrun program: every rank reads its share, and rank 0 writes down what all ranks saw."""

from __future__ import annotations

import json
import sys

import torch.distributed as dist
from torch.utils.data import DataLoader

from wids import DistributedChunkedSampler, ShardListDataset


def main(spec: str, report: str) -> None:
    dataset = ShardListDataset(spec)
    sampler = DistributedChunkedSampler(dataset, chunksize=50)  # before there is a process group
    dist.init_process_group("gloo")
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2)
    seen = [index for batch in loader for index in batch["__index__"].tolist()]
    gathered: list[list[int]] | None = (
        [[] for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    )
    dist.gather_object(seen, gathered)
    if gathered is not None:
        with open(report, "w", encoding="utf-8") as file:
            json.dump(gathered, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
