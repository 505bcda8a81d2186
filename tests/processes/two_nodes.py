"""One epoch over remote shards by a rank of a job on several nodes; see test_nodes.py.

Started by torchrun, with the URL of a spec and a folder for the report of each rank. The node tells
the server who it is by a header.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from torch.utils.data import DataLoader

import wids


def main(spec: str, folder: str) -> None:
    """Read this rank's share, fetched ahead, and write down which samples came."""
    dist.init_process_group("gloo")
    options = {"headers": {"X-Node": os.environ["GROUP_RANK"]}}
    dataset = wids.ShardListDataset(spec, storage_options=options)
    sampler = wids.DistributedChunkedSampler(dataset, even=False)
    loader = DataLoader(
        dataset,
        batch_size=10,
        sampler=wids.Prefetcher(sampler, dataset),
        num_workers=2,
        collate_fn=list,
    )
    seen = [[], []]
    for epoch, indices in enumerate(seen):
        sampler.set_epoch(epoch)
        for batch in loader:
            indices += [sample["__index__"] for sample in batch]
    dist.barrier()
    report = Path(folder) / f"{dist.get_rank()}.json"
    report.write_text(json.dumps({"node": os.environ["GROUP_RANK"], "seen": seen}))
    dist.destroy_process_group()
    dataset.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
