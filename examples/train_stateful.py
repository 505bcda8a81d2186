"""Train with torchdata's StatefulDataLoader, whose state is exact even with workers.

    pip install torchdata
    wids demo
    python examples/train_stateful.py wids-demo/shapes.json --checkpoint shapes.pt

Kill it and restart it: it resumes with the batch after the checkpoint.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import wids


def main() -> None:
    """Train, from a checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="a JSON spec or its URL; samples need .jpg and .cls")
    parser.add_argument("--checkpoint", type=Path, help="file to save to and resume from")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()

    dataset = wids.ShardListDataset(options.spec, transformations="torch")
    sampler = wids.ChunkedSampler(dataset)
    loader = StatefulDataLoader(
        dataset, batch_size=24, sampler=sampler, num_workers=options.num_workers
    )
    network = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    step = 0

    if options.checkpoint and options.checkpoint.exists():
        checkpoint = torch.load(options.checkpoint, weights_only=True)
        network.load_state_dict(checkpoint["network"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])  # contains the sampler's state
        step = checkpoint["step"]

    # A state after the last batch of an epoch is the start of the next one.
    for epoch in range(step // len(loader), options.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            step += 1
            loss = train_step(network, optimizer, batch)
            if options.checkpoint and step % options.save_every == 0:
                checkpoint = {
                    "network": network.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                    "step": step,
                }
                temporary = options.checkpoint.with_suffix(".new")
                torch.save(checkpoint, temporary)
                os.replace(temporary, options.checkpoint)
        print(f"epoch {epoch}: step {step}, loss {loss.item():.3f}", flush=True)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Train on a batch, and return its loss."""
    loss = nn.functional.cross_entropy(model(batch[".jpg"] / 255), batch[".cls"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    main()
