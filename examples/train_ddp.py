"""Train on many processes, exact to the sample, even if training is killed and restarted.

    wids demo
    torchrun --nproc-per-node 2 examples/train_ddp.py wids-demo/shapes.json --checkpoint shapes.pt

Kill it and restart it on 1, 2, 3, 4, 6 or 12 processes: it resumes from the checkpoint and uses the
same samples as without the kill. Each sample is used once, and a few twice if 12 does not divide
their number (``drop_last=True`` of the sampler leaves them out instead). For several nodes, start
it on each of them (``torchrun --nnodes 2 …``) with a URL as the spec: each node downloads its share
of the shards.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import wids

# The epoch is cut into this many runs. The number of processes must divide it.
NUM_CANONICAL = 12
# Samples per step, over all processes. A multiple of NUM_CANONICAL, so that any checkpoint can be
# resumed on another number of processes, and a step uses the same samples there.
GLOBAL_BATCH_SIZE = 48


def main() -> None:
    """Train, from a checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="a JSON spec or its URL; samples need .jpg and .cls")
    parser.add_argument("--checkpoint", type=Path, help="file to save to and resume from")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"])
    options = parser.parse_args()

    dist.init_process_group("gloo")  # "nccl" with GPUs
    rank, num_replicas = dist.get_rank(), dist.get_world_size()

    dataset = wids.ShardListDataset(options.spec, transformations="torch")
    sampler = wids.DistributedChunkedSampler(dataset, num_canonical=NUM_CANONICAL)
    loader = DataLoader(
        dataset,
        batch_size=GLOBAL_BATCH_SIZE // num_replicas,
        sampler=wids.Prefetcher(sampler, dataset),  # downloads remote shards ahead of time
        num_workers=options.num_workers,
        multiprocessing_context=options.start_method if options.num_workers else None,
        persistent_workers=options.num_workers > 0,
    )
    network = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0

    if options.checkpoint and options.checkpoint.exists():
        checkpoint = torch.load(options.checkpoint, weights_only=True)
        network.load_state_dict(checkpoint["network"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        sampler.load_state_dict(checkpoint["sampler"])
        step = checkpoint["step"]

    for epoch in range(sampler.epoch, options.epochs):  # after a restore, the epoch to resume
        sampler.set_epoch(epoch)
        for num_batches, batch in enumerate(loader, 1):
            step += 1
            loss = train_step(model, optimizer, batch)
            if options.checkpoint and rank == 0 and step % options.save_every == 0:
                # Workers run ahead of training, so training states how many samples it has used.
                state = sampler.state_dict(num_consumed=num_batches * loader.batch_size)
                save(options.checkpoint, network, optimizer, state, step)
        if rank == 0:
            print(f"epoch {epoch}: step {step}, loss {loss.item():.3f}", flush=True)
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
    path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, sampler: dict, step: int
) -> None:
    """Replace the checkpoint atomically, so that a kill leaves the old one or the new one."""
    checkpoint = {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "sampler": sampler,  # the same on all ranks
        "step": step,
    }
    temporary = path.with_suffix(".new")
    torch.save(checkpoint, temporary)
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
