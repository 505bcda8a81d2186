"""Trainers that are resumed in the middle of an epoch download what is left of it, and no more."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import need
from loopback import Server
from served_shards import NUM_SAMPLES, NUM_SHARDS, serve_shards
from torch import nn
from torch.utils.data import DataLoader

import wids

pytestmark = pytest.mark.long  # both trainers take seconds to import

BATCH, DONE = 10, 15  # of 20 batches: six of eight shards

LEFT = Counter({"/6.tar": 1, "/7.tar": 1})


def indices_of(dataset: wids.ShardListDataset) -> wids.ShardListDataset:
    """Return a view whose samples are their indices."""
    return dataset.map(lambda sample: {"index": sample["__index__"]})


def fetched_ahead(dataset: wids.ShardListDataset) -> Any:
    """Return a sampler of ascending indices, so that it is known which shards are left."""
    return wids.Prefetcher(wids.ChunkedSampler(dataset, shuffle=False), dataset)


class Model(nn.Module):
    """Remembers the indices that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen: list[int] = []

    def forward(self, index: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        self.seen += index.tolist()
        return {"loss": (self.weight * index.float()).mean()}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_transformers(num_workers: int, server: Server, tmp_path: Path) -> None:
    """The trainer skips finished batches by accelerate's ``skip_first_batches``."""
    need(importlib.util.find_spec("transformers"), "pip install transformers")
    from transformers import TrainingArguments

    from wids import SamplerTrainer

    shards = serve_shards(tmp_path, server)

    def train(part: str, num_steps: int) -> list[int]:
        arguments = TrainingArguments(
            output_dir=str(tmp_path / "runs"),
            per_device_train_batch_size=BATCH,
            max_steps=num_steps,
            save_steps=DONE,
            dataloader_num_workers=num_workers,
            remove_unused_columns=False,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        with wids.ShardListDataset(shards, cache_dir=tmp_path / part) as dataset:
            trainer = SamplerTrainer(
                model=(model := Model()),
                args=arguments,
                train_dataset=indices_of(dataset),
                train_sampler=fetched_ahead(dataset),
            )
            trainer.train(resume_from_checkpoint=part == "second")
        return model.seen

    assert train("first", DONE) == list(range(DONE * BATCH))
    server.log.clear()

    assert train("second", 20) == list(range(DONE * BATCH, NUM_SAMPLES))

    assert Counter(server.requests) == LEFT


@pytest.mark.filterwarnings("ignore")  # what Lightning has to say
@pytest.mark.parametrize("num_workers", [0, 2])
def test_lightning(num_workers: int, server: Server, tmp_path: Path) -> None:
    """`SamplerCallback` restores the state of the sampler inside a prefetcher."""
    need(importlib.util.find_spec("lightning"), "pip install lightning")
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from wids import SamplerCallback

    shards = serve_shards(tmp_path, server)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(part: str, num_steps: int) -> list[int]:
        with wids.ShardListDataset(shards, cache_dir=tmp_path / part) as dataset:
            sampler = fetched_ahead(dataset)
            loader = DataLoader(
                indices_of(dataset), batch_size=BATCH, sampler=sampler, num_workers=num_workers
            )
            saving = ModelCheckpoint(tmp_path, filename="saved", every_n_train_steps=DONE)
            module = Module()
            trainer = lightning.Trainer(
                accelerator="cpu",
                max_steps=num_steps,
                logger=False,
                enable_progress_bar=False,
                callbacks=[SamplerCallback(sampler), saving],
                use_distributed_sampler=False,
            )
            saved = None if part == "first" else str(tmp_path / "saved.ckpt")
            trainer.fit(module, loader, ckpt_path=saved)
        return module.model.seen

    assert train("first", DONE) == list(range(DONE * BATCH))
    assert set(server.requests) <= {f"/{n}.tar" for n in range(NUM_SHARDS)}
    server.log.clear()

    assert train("second", 20) == list(range(DONE * BATCH, NUM_SAMPLES))

    assert Counter(server.requests) == LEFT
