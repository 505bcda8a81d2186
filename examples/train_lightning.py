"""Train with Lightning on two processes: it keeps the sampler unchanged, and resumes exactly.

    pip install lightning
    wids demo
    python examples/train_lightning.py wids-demo/shapes.json --checkpoints shapes-checkpoints

Kill it and restart it, as often as you like: it resumes with the batch after the last checkpoint,
because the callback keeps the sampler's state. Without it, Lightning would read the first batches
of the epoch again instead of the remaining ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

import wids
from wids import SamplerCallback


class Classifier(lightning.LightningModule):
    """A classifier for the pictures of the demo."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, 4))

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self.network(batch[".jpg"] / 255), batch[".cls"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train, from a checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="a JSON spec or its URL; samples need .jpg and .cls")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--devices", type=int, default=2, help="number of processes")
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()

    dataset = wids.ShardListDataset(options.spec, transformations="torch")
    sampler = wids.DistributedChunkedSampler(dataset)  # Lightning starts the processes later
    loader = DataLoader(
        dataset,
        batch_size=24,
        sampler=sampler,
        collate_fn=wids.collate,
        num_workers=options.num_workers,
    )
    saving = ModelCheckpoint(options.checkpoints, every_n_train_steps=options.save_every)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=options.devices,
        max_epochs=options.epochs,
        logger=False,
        callbacks=[SamplerCallback(sampler), saving],
        enable_progress_bar=False,
    )
    latest = max(options.checkpoints.glob("*.ckpt"), key=lambda p: p.stat().st_mtime, default=None)
    trainer.fit(Classifier(), loader, ckpt_path=latest)


if __name__ == "__main__":
    main()
