"""`SamplerTrainer`: what it refuses, and batches of buckets. Its training is in tests/processes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import need, raises, write_shards
from torch import nn
from torch.utils.data import RandomSampler

import wids

pytestmark = pytest.mark.long  # transformers takes seconds to import


class Model(nn.Module):
    """Remembers the indices of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = []

    def forward(self, index: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        self.seen.append(index.tolist())
        return {"loss": (self.weight * index.float()).sum()}


def trainer(folder: Path, dataset: Any, sampler: Any, **options: Any) -> Any:
    need(importlib.util.find_spec("transformers"), "pip install transformers")
    from transformers import TrainingArguments

    from wids import SamplerTrainer

    arguments = TrainingArguments(
        output_dir=str(folder / "runs"),
        per_device_train_batch_size=4,
        num_train_epochs=2,
        save_strategy="no",
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    return SamplerTrainer(
        model=Model(), args=arguments, train_dataset=dataset, train_sampler=sampler, **options
    )


def test_samplers_that_would_train_wrongly_are_refused(tmp_path: Path) -> None:
    """A sampler without epochs, or for another number of ranks, is an error before training."""
    with raises(TypeError, "train_sampler: expected one of wids' samplers", "RandomSampler"):
        trainer(tmp_path, range(8), RandomSampler(range(8)))
    sampler = wids.DistributedChunkedSampler(range(8), num_replicas=2, rank=0)
    with raises(ValueError, "expected one for 1 ranks", "DistributedChunkedSampler for 2"):
        trainer(tmp_path, range(8), sampler)


@pytest.mark.parametrize("kind", [wids.BucketBatchSampler, wids.PackedBatchSampler])
def test_batches_are_trained_on_as_they_are(tmp_path: Path, kind: Any) -> None:
    """A sampler of batches replaces the trainer's batch size."""
    with wids.ShardListDataset(write_shards(tmp_path, [9, 7])) as dataset:
        inputs = dataset.map(lambda sample: {"index": sample["__index__"]})

        def sampler() -> Any:
            return kind(wids.ChunkedSampler(dataset), [index % 2 for index in range(16)], 3)

        job = trainer(tmp_path, inputs, own := sampler())
        job.train()

        expected = []
        for epoch in range(2):
            reference = sampler()
            reference.set_epoch(epoch)
            expected += list(reference)
        assert job.model.seen == expected
        assert own.epoch == 1


def test_an_epoch_that_is_stopped_is_not_repeated(tmp_path: Path) -> None:
    """After a callback has ended an epoch early, the next one has its own order."""
    need(importlib.util.find_spec("transformers"), "pip install transformers")
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        """Ends the first epoch after its second step."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            control.should_epoch_stop = state.global_step == 2

    with wids.ShardListDataset(write_shards(tmp_path, [9, 7])) as dataset:
        inputs = dataset.map(lambda sample: {"index": sample["__index__"]})
        sampler = wids.ChunkedSampler(dataset)
        job = trainer(tmp_path, inputs, sampler, callbacks=[Stop()])
        job.train()
        assert sampler.epoch == 1

        reference, expected = wids.ChunkedSampler(dataset), []
        for epoch, count in ((0, 8), (1, 16)):
            reference.set_epoch(epoch)
            order = list(reference)[:count]
            expected += [order[at : at + 4] for at in range(0, count, 4)]
        assert job.model.seen == expected


@pytest.mark.parametrize("steps", [3, 10**7])
def test_the_epoch_of_the_last_steps_of_an_epoch(steps: int) -> None:
    """A checkpoint one step before the end of an epoch, of however many, belongs to that epoch."""
    need(importlib.util.find_spec("transformers"), "pip install transformers")
    from transformers import TrainerState

    from wids.dataset.huggingface import _SetEpoch

    sampler = wids.ChunkedSampler(range(8))
    for epoch in (0, 1, 10**6):
        for done, expected in ((steps - 1, epoch), (steps, epoch + 1)):
            # As the trainer computes it.
            state = TrainerState(epoch=epoch + done / steps)
            callback = _SetEpoch(sampler)
            callback.on_train_begin(None, state, None)
            callback.on_epoch_begin(None, state, None)
            assert sampler.epoch == expected
