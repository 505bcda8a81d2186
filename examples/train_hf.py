"""Train with transformers.Trainer, on any number of processes, resumable at any step.

    pip install transformers accelerate
    wids demo
    torchrun --nproc-per-node 2 examples/train_hf.py wids-demo/shapes.json --checkpoints runs

Kill it and restart it: it resumes with the batch after the checkpoint, in the order of its epoch.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import wids
from wids import SamplerTrainer


class Classifier(nn.Module):
    """A toy model, in the form that the trainer expects: it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, 4))

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch."""
        logits = self.network(pixels / 255)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def as_input(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample under the names of the model's arguments."""
    return {"pixels": sample[".jpg"], "labels": sample[".cls"]}


def main() -> None:
    """Train, from a checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="a JSON spec or its URL; samples need .jpg and .cls")
    parser.add_argument("--checkpoints", type=Path, help="folder to save to and resume from")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()

    dataset = wids.ShardListDataset(options.spec, transformations="torch").map(as_input)
    arguments = TrainingArguments(
        output_dir=str(options.checkpoints or "runs"),
        per_device_train_batch_size=24,
        num_train_epochs=options.epochs,
        learning_rate=0.01,
        save_strategy="steps" if options.checkpoints else "no",
        save_steps=options.save_every,
        save_total_limit=2,
        dataloader_num_workers=options.num_workers,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        ddp_backend="gloo" if "RANK" in os.environ and not torch.cuda.is_available() else None,
    )
    trainer = SamplerTrainer(
        model=Classifier(),
        args=arguments,
        train_dataset=dataset,
        train_sampler=wids.DistributedChunkedSampler(dataset),
    )
    latest = None
    if options.checkpoints and options.checkpoints.exists():
        latest = get_last_checkpoint(str(options.checkpoints))
    trainer.train(resume_from_checkpoint=latest)


if __name__ == "__main__":
    main()
