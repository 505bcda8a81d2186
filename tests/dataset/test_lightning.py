"""`SamplerCallback`: Lightning resumes where it was, from any of its checkpoints, many times."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import need, raises
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import wids

pytestmark = [
    pytest.mark.long,  # Lightning takes seconds to import
    pytest.mark.filterwarnings("ignore"),  # what Lightning and torchdata have to say
]

NUM_SAMPLES, BATCH, NUM_STEPS, NUM_EPOCHS = 64, 6, 11, 4  # the last batch of an epoch is short


class Numbers:
    """Samples that are their indices."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"index": index}


class KilledError(Exception):
    """A job ends in the middle of a step."""


def orders(epochs: Iterable[int]) -> dict[int, list[int]]:
    """Return the order of each epoch."""
    sampler = wids.ChunkedSampler(Numbers())
    found = {}
    for epoch in epochs:
        sampler.set_epoch(epoch)
        found[epoch] = list(sampler)
    return found


def module(log: list[tuple[int, int, list[int]]], kill_at: int | None) -> Any:
    import lightning

    class Module(lightning.LightningModule):
        """Logs the samples of each step, and is killed in one."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            indices = batch["index"]
            log.append((self.global_step + 1, self.current_epoch, indices.tolist()))
            if len(log) == kill_at:
                raise KilledError
            return (self.weight * indices.float()).mean()

        def validation_step(self, batch: Any, _: int) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def fit(
    folder: Path,
    kill_at: int | None,
    *,
    loader: type[DataLoader[Any]] = DataLoader,
    num_workers: int = 0,
    saving: dict[str, Any],
    validated: float = 0,
    by_steps: bool = False,
    **others: Any,
) -> list[tuple[int, int, list[int]]]:
    """Train from the latest checkpoint, if there is one; return step, epoch and samples."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from wids import SamplerCallback

    sampler = wids.DistributedChunkedSampler(Numbers())
    log: list[tuple[int, int, list[int]]] = []
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        max_epochs=-1 if by_steps else NUM_EPOCHS,
        max_steps=NUM_EPOCHS * NUM_STEPS if by_steps else -1,
        limit_val_batches=1 if validated else 0,
        val_check_interval=validated or 1.0,
        callbacks=[SamplerCallback(sampler), ModelCheckpoint(folder, save_top_k=-1, **saving)],
        **others,
    )
    try:
        trainer.fit(
            module(log, kill_at),
            loader(Numbers(), batch_size=BATCH, sampler=sampler, num_workers=num_workers),  # type: ignore[arg-type]
            DataLoader(Numbers(), batch_size=BATCH) if validated else None,  # type: ignore[arg-type]
            ckpt_path=max(folder.glob("*.ckpt"), key=lambda p: p.stat().st_mtime_ns, default=None),
        )
    except KilledError:
        pass
    else:
        assert kill_at is None
    return log


def fit_and_resume(folder: Path, kills: list[int], **options: Any) -> dict[int, list[int]]:
    """Train in one job for each kill, and one to the end; return what each epoch used."""
    need(importlib.util.find_spec("lightning"), "pip install lightning")
    counted: list[tuple[int, int, list[int]]] = []
    for kill_at in [*kills, None]:
        steps = fit(folder, kill_at, **options)
        counted = [step for step in counted if step[0] < steps[0][0]] + steps
    used: dict[int, list[int]] = {}
    for _, epoch, indices in counted:
        used.setdefault(epoch, []).extend(indices)
    return used


EVERY_STEP, LAST_STEP = {"every_n_train_steps": 1}, {"every_n_train_steps": NUM_STEPS}
AFTER_EPOCH = {"every_n_epochs": 1, "save_on_train_epoch_end": True}
AFTER_VALIDATION = {"every_n_epochs": 1, "save_on_train_epoch_end": False}
# In mid-epoch, right after an epoch's last step, and twice there; numbers of steps of each job.
SAVED = [
    (EVERY_STEP, [6, 7, 1, 12, 8], 0),
    (EVERY_STEP, [12, 12, 2, 3, 3], 1.0),
    ({"every_n_train_steps": 4}, [3, 13, 13, 5, 3], 0.5),
    (LAST_STEP, [12, 12, 12, 3, 3], 0),
    (LAST_STEP, [13, 13, 5, 1, 1], 1.0),
    (AFTER_EPOCH, [12, 3, 13, 3, 13], 0),
    (AFTER_EPOCH, [14, 13, 3, 13, 1], 1.0),
    (AFTER_VALIDATION, [13, 3, 13, 13, 1], 1.0),
]


@pytest.mark.parametrize("by_steps", [False, True])
@pytest.mark.parametrize(("saving", "kills", "validated"), SAVED)
def test_five_kills(
    saving: dict[str, Any], kills: list[int], validated: float, by_steps: bool, tmp_path: Path
) -> None:
    """Each epoch has its own order, exactly, wherever checkpoints were saved and jobs killed."""
    options = {"saving": saving, "validated": validated, "by_steps": by_steps}

    assert fit_and_resume(tmp_path, kills, **options) == orders(range(NUM_EPOCHS))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stateful", [False, True])
def test_loaders(stateful: bool, num_workers: int, tmp_path: Path) -> None:
    """It is the same with workers, and with a loader that has a state of its own."""
    loader: type[DataLoader[Any]] = DataLoader
    if stateful:
        need(importlib.util.find_spec("torchdata"), "pip install torchdata")
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader = StatefulDataLoader
    options = {"loader": loader, "num_workers": num_workers, "saving": EVERY_STEP}

    assert fit_and_resume(tmp_path, [12, 12, 3, 8, 1], **options) == orders(range(NUM_EPOCHS))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_that_are_limited(num_workers: int, tmp_path: Path) -> None:
    """After an epoch of a part of its batches, a resumed job begins the next one."""
    options = {"num_workers": num_workers, "saving": EVERY_STEP, "limit_train_batches": 5}

    used = fit_and_resume(tmp_path, [6, 6, 3], **options)

    assert used == {e: order[: 5 * BATCH] for e, order in orders(range(NUM_EPOCHS)).items()}


def test_a_run_that_stops_inside_an_epoch_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that goes on begins the next epoch, as Lightning alone does; a whole one is silent."""
    need(importlib.util.find_spec("lightning"), "pip install lightning")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "SamplerCallback")
        fit(tmp_path / "whole", None, saving=AFTER_EPOCH, by_steps=True)
    monkeypatch.setattr(sys.modules[__name__], "NUM_STEPS", 3)  # of 4 epochs, so that it ends at 12
    with pytest.warns(UserWarning, match=r"epoch 1 was stopped inside.* begins epoch 2"):
        fit(tmp_path / "stopped", None, saving=AFTER_EPOCH, by_steps=True)


def test_a_loader_of_another_sampler_is_refused(tmp_path: Path) -> None:
    """Nothing is trained if the callback would keep the state of a sampler that is not used."""
    need(importlib.util.find_spec("lightning"), "pip install lightning")
    import lightning

    from wids import SamplerCallback

    with raises(TypeError, "sampler: expected one of wids' samplers", "RandomSampler"):
        SamplerCallback(RandomSampler(range(8)))
    for loader in (
        DataLoader(Numbers(), sampler=wids.ChunkedSampler(Numbers())),  # type: ignore[arg-type]
        DataLoader(Numbers(), batch_sampler=BatchSampler(range(8), 2, drop_last=False)),  # type: ignore[arg-type]
    ):
        callback = SamplerCallback(wids.ChunkedSampler(Numbers()))
        log: list[Any] = []
        trainer = lightning.Trainer(
            accelerator="cpu",
            logger=False,
            default_root_dir=tmp_path,
            enable_progress_bar=False,
            callbacks=[callback],
        )
        with raises(ValueError, "expected a training loader with its sampler, a ChunkedSampler"):
            trainer.fit(module(log, None), loader)
        assert log == []


def test_a_checkpoint_without_a_state_is_refused(tmp_path: Path) -> None:
    """A checkpoint that was saved without the callback has no state of the sampler."""
    need(importlib.util.find_spec("lightning"), "pip install lightning")
    import lightning

    from wids import SamplerCallback

    def trainer(*callbacks: Any) -> Any:
        return lightning.Trainer(
            accelerator="cpu",
            logger=False,
            default_root_dir=tmp_path,
            enable_progress_bar=False,
            max_epochs=2,
            limit_train_batches=2,
            callbacks=list(callbacks),
        )

    first = trainer()
    first.fit(module([], None), DataLoader(Numbers()))  # type: ignore[arg-type]
    first.save_checkpoint(tmp_path / "saved.ckpt")
    sampler = wids.DistributedChunkedSampler(Numbers())
    loader = DataLoader(Numbers(), sampler=sampler)  # type: ignore[arg-type]
    again = trainer(SamplerCallback(sampler))

    with raises(wids.StateError, "the checkpoint, which was saved without this callback"):
        again.fit(module([], None), loader, ckpt_path=tmp_path / "saved.ckpt")
    again.validate(module([], None), loader, ckpt_path=tmp_path / "saved.ckpt")


@pytest.mark.parametrize(
    ("package", "other"),
    [("lightning.pytorch", "pytorch_lightning"), ("pytorch_lightning", "lightning")],
)
def test_both_names_of_lightning_are_served(package: str, other: str) -> None:
    """The callback belongs to the package that the program uses, and imports no other."""
    need(importlib.util.find_spec(package.partition(".")[0]), f"pip install {package}")
    program = (
        f"import sys, wids, {package}\n"
        "from wids import SamplerCallback\n"
        f"assert issubclass(SamplerCallback, {package}.Callback)\n"
        f"assert {other!r} not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


class Many(Numbers):
    """The same, for several ranks."""

    def __len__(self) -> int:
        return 400


@pytest.mark.parametrize("num_workers", [0, 1])
def test_any_number_of_ranks(tmp_path: Path, num_workers: int) -> None:
    """A checkpoint of four ranks resumes on five, then two, and no epoch is cut short (ORDER-52).

    Each rank is a trainer of its own here: they share checkpoints, and nothing else.
    """
    need(importlib.util.find_spec("lightning"), "pip install lightning")
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from wids import SamplerCallback

    used: dict[int, list[int]] = {}
    checkpoint: Path | None = None
    for num_replicas, num_steps in ((4, 5), (5, 4), (2, None)):
        for rank in range(num_replicas):
            data: Any = Many()
            sampler = wids.DistributedChunkedSampler(data, num_replicas=num_replicas, rank=rank)
            log: list[tuple[int, int, list[int]]] = []
            folder = tmp_path / f"{rank} of {num_replicas}"
            trainer = lightning.Trainer(
                accelerator="cpu",
                devices=1,
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                max_epochs=4,
                callbacks=[SamplerCallback(sampler), ModelCheckpoint(folder, **EVERY_STEP)],
            )
            loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=num_workers)
            killed = module(log, None if num_steps is None else num_steps + 1)
            with suppress(KilledError):
                trainer.fit(killed, loader, ckpt_path=checkpoint)
            for _, epoch, indices in log[:num_steps]:
                used.setdefault(epoch, []).extend(indices)
            if num_steps is None:
                steps = [[epoch for _, epoch, _ in log].count(epoch) for epoch in range(4)]
                # Of the 160 samples that are left in the first epoch, two ranks have 80 each.
                assert steps == [14, 34, 34, 34]
        (checkpoint,) = folder.glob("*.ckpt")
    for epoch in range(4):
        assert set(used[epoch]) == set(range(400))
        assert len(used[epoch]) - 400 < 2
