"""Train on pictures of several shapes: every batch has one shape, and so have all ranks in a step.

    pip install wids[table]
    torchrun --nproc-per-node 2 examples/train_buckets.py pictures.json --checkpoint pictures.pt

Kill it and restart it on 1, 2, 3 or 6 processes: it resumes from the checkpoint, and each batch of
the epoch is used as without the kill. The shapes are read from the headers of the pictures into
a table; `wids table` saves one beside the spec. A batch has as many pictures as fit into a number
of pixels.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import wids

# The epoch is cut into this many runs. The number of processes must divide it.
NUM_CANONICAL = 6
# Pixels in a batch.
BUDGET = 16 * 64 * 64


def main() -> None:
    """Train, from a checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="a JSON spec or its URL; samples need .jpg and .cls")
    parser.add_argument("--checkpoint", type=Path, help="file to save to and resume from")
    parser.add_argument("--save-every", type=int, default=4, metavar="ROUNDS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()

    dist.init_process_group("gloo")  # "nccl" with GPUs
    rank, num_replicas = dist.get_rank(), dist.get_world_size()

    dataset = wids.ShardListDataset(options.spec, transformations="torch", fields=[".jpg", ".cls"])
    table = dataset.table({"height": ".jpg/height", "width": ".jpg/width"})
    sides = np.stack([table["height"].to_numpy(), table["width"].to_numpy()], axis=1)
    shapes, buckets = np.unique(sides, axis=0, return_inverse=True)
    batches = wids.BucketBatchSampler(
        # even=False: the batches make ranks equal, and nothing else has to be repeated.
        wids.DistributedChunkedSampler(dataset, num_canonical=NUM_CANONICAL, even=False),
        buckets.reshape(-1),
        lambda bucket: max(1, BUDGET // int(shapes[bucket].prod())),
        aligned=True,
    )
    loader = DataLoader(
        dataset,
        batch_sampler=wids.Prefetcher(batches, dataset),  # downloads remote shards ahead of time
        num_workers=options.num_workers,
    )
    network = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(128, 4),
    )  # fmt: skip
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = 0  # batches, on all ranks together

    if options.checkpoint and options.checkpoint.exists():
        checkpoint = torch.load(options.checkpoint, weights_only=True)
        network.load_state_dict(checkpoint["network"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        batches.load_state_dict(checkpoint["batches"])
        done = checkpoint["done"]

    for epoch in range(batches.epoch, options.epochs):  # after a restore, the epoch to resume
        batches.set_epoch(epoch)
        for num_batches, batch in enumerate(loader, 1):
            done += num_replicas
            loss = train_step(model, optimizer, batch)
            # After a full round, one batch of each run, any number of processes can resume.
            if (
                options.checkpoint
                and rank == 0
                and done % (options.save_every * NUM_CANONICAL) == 0
            ):
                # Workers run ahead of training, so training states how many batches it has used.
                state = batches.state_dict(num_consumed=num_batches)
                save(options.checkpoint, network, optimizer, state, done)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}; {batches!r}", flush=True)
    # Until no thread of gloo still holds what it reduced: one that lets go of it while Python ends
    # aborts the process.
    dist.barrier()
    dist.destroy_process_group()


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Train on a batch, and return its loss."""
    loss = nn.functional.cross_entropy(model(batch[".jpg"] / 255), batch[".cls"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def save(
    path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, batches: dict, done: int
) -> None:
    """Replace the checkpoint atomically, so that a kill leaves the old one or the new one."""
    checkpoint = {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "batches": batches,  # the same on all ranks
        "done": done,
    }
    temporary = path.with_suffix(".new")
    torch.save(checkpoint, temporary)
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
