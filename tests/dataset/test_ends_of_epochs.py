"""Trainers that were saved at the last step of an epoch: the next epoch, whole and in its order."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import need
from torch import nn

import wids

pytestmark = pytest.mark.long  # both trainers take seconds to import

BATCH, NUM_SAMPLES = 6, 64  # the last of 11 batches is short
NUM_STEPS = 11


class Numbers:
    """Samples that are their indices."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"index": index}


class Model(nn.Module):
    """Remembers the indices that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen: list[int] = []

    def forward(self, index: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        self.seen += index.tolist()
        return {"loss": (self.weight * index.float()).mean()}


def order(epoch: int) -> list[int]:
    sampler = wids.ChunkedSampler(Numbers())
    sampler.set_epoch(epoch)
    return list(sampler)


def test_transformers(tmp_path: Path) -> None:
    """`SamplerTrainer` reads the next epoch."""
    need(importlib.util.find_spec("transformers"), "pip install transformers")
    from transformers import TrainingArguments

    from wids import SamplerTrainer

    def train(num_steps: int, *, resume: bool) -> list[int]:
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=BATCH,
            max_steps=num_steps,
            save_steps=NUM_STEPS,
            remove_unused_columns=False,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = SamplerTrainer(
            model=(model := Model()),
            args=arguments,
            train_dataset=Numbers(),
            train_sampler=wids.ChunkedSampler(Numbers()),
        )
        trainer.train(resume_from_checkpoint=resume)
        return model.seen

    assert train(NUM_STEPS, resume=False) == order(0)
    assert train(3 * NUM_STEPS, resume=True) == order(1) + order(2)


@pytest.mark.filterwarnings("ignore")  # what Lightning and torchdata have to say
@pytest.mark.parametrize("num_workers", [0, 2])
def test_lightning(num_workers: int, tmp_path: Path) -> None:
    """Lightning, with torchdata's loader, reads the next epoch."""
    need(importlib.util.find_spec("lightning"), "pip install lightning")
    need(importlib.util.find_spec("torchdata"), "pip install torchdata")
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(num_steps: int, saved: str | None) -> list[int]:
        loader = StatefulDataLoader(
            Numbers(),  # type: ignore[arg-type]
            batch_size=BATCH,
            sampler=wids.DistributedChunkedSampler(Numbers()),
            num_workers=num_workers,
        )
        module = Module()
        saving = ModelCheckpoint(tmp_path, filename="saved", every_n_train_steps=NUM_STEPS)
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=num_steps,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[saving],
        )
        trainer.fit(module, loader, ckpt_path=saved)
        return module.model.seen

    assert train(NUM_STEPS, None) == order(0)
    assert train(3 * NUM_STEPS, str(tmp_path / "saved.ckpt")) == order(1) + order(2)
