"""Train with accelerate: prepare network and optimizer, but not the loader.

    pip install accelerate torchdata
    wids demo
    torchrun --nproc-per-node 2 examples/train_accelerate.py wids-demo/shapes.json

Use ``accelerate launch`` instead of ``torchrun`` if accelerate is configured for the machine.

``accelerator.prepare(loader)`` would shard the batches among the processes again, so that
each process would see only a part of its share. Register the loader for checkpoints nevertheless.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import wids


def main() -> None:
    """Train, from a checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="a JSON spec or its URL; samples need .jpg and .cls")
    parser.add_argument("--checkpoints", type=Path, help="folder to save to and resume from")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    dataset = wids.ShardListDataset(options.spec, transformations="torch")
    sampler = wids.DistributedChunkedSampler(dataset)
    loader = StatefulDataLoader(
        dataset, batch_size=24, sampler=sampler, num_workers=options.num_workers
    )
    network = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network, optimizer = accelerator.prepare(network, optimizer)  # not the loader
    accelerator.register_for_checkpointing(loader)
    step = 0
    if options.checkpoints:
        latest = max(options.checkpoints.glob("step-*"), default=None)
        if latest:
            accelerator.load_state(str(latest))
            step = int(latest.name.removeprefix("step-"))

    # A state after the last batch of an epoch is the start of the next one.
    for epoch in range(step // len(loader), options.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            step += 1
            loss = train_step(accelerator, network, optimizer, batch)
            if options.checkpoints and step % options.save_every == 0:
                save(accelerator, options.checkpoints, step)
        accelerator.print(f"epoch {epoch}: step {step}, loss {loss.item():.3f}")
    # Until no thread of gloo still holds what it reduced: one that lets go of it while Python ends
    # aborts the process.
    accelerator.wait_for_everyone()
    accelerator.end_training()


def train_step(
    accelerator: Accelerator,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, torch.Tensor],
) -> torch.Tensor:
    """Train on a batch, and return its loss."""
    images = batch[".jpg"].to(accelerator.device) / 255  # a prepared loader would do this
    labels = batch[".cls"].to(accelerator.device)
    loss = nn.functional.cross_entropy(network(images), labels)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    return loss


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Write a checkpoint under a temporary name and rename it once it is complete."""
    temporary = folder / "new"
    accelerator.save_state(str(temporary))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        temporary.rename(folder / f"step-{step:09d}")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
