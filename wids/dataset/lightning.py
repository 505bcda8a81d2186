"""Keep the position of a wids sampler in Lightning's checkpoints.

Lightning restores the state of a loader only into an epoch that it believes unfinished, and loses
count of epochs in a run that it resumed at the end of one. The sampler's own state says where
training is, so the callback restores it, and corrects the count.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, Sampler

from wids.errors import StateError, warn

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    # The same code under two names. The program uses one of them, and has already imported it.
    _NAMES = sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda n: n not in sys.modules)
    for _name in _NAMES:
        try:
            _package = import_module(_name)
        except ImportError as error:
            _missing = error
        else:
            break
    else:
        raise ImportError(
            "wids.dataset.lightning: expected lightning or pytorch_lightning, which are not "
            "installed; pip install lightning"
        ) from _missing
    if tuple(map(int, _package.__version__.split(".")[:2])) < (2, 5):
        raise ImportError(
            "wids.dataset.lightning: expected Lightning 2.5 or newer, since older ones repeat a "
            f"step after they resume, found {_package.__version__}; pip install -U "
            f"{_name.partition('.')[0]}"
        )
    Callback = _package.Callback


class SamplerCallback(Callback):
    """Have a ``lightning.Trainer`` resume in the order of a wids sampler, at any step.

    Each checkpoint has the sampler's state, whether it was saved after a step, a validation or an
    epoch. Resumed from it, any number of times, training uses each sample of an epoch exactly once.
    It needs no stateful loader: torch's own will do.

    Args:
        sampler: The sampler of the trainer's only training loader: a `DistributedChunkedSampler` or
            another wids sampler of indices or of batches, or a `Prefetcher` around one.

    Raises:
        TypeError: The sampler is not one of wids' samplers.
        ValueError: Training starts, and its loader has another sampler.
        StateError: The checkpoint was saved without this callback, or with another sampler.

    Example:
        ``trainer = lightning.Trainer(callbacks=[SamplerCallback(sampler)])``, with
        ``DataLoader(dataset, batch_size=24, sampler=sampler)``. ``examples/train_lightning.py`` is
        a complete program.
    """

    def __init__(self, sampler: Sampler[Any]) -> None:
        if not hasattr(sampler, "_state_at"):
            raise TypeError(
                "sampler: expected one of wids' samplers, such as "
                f"wids.DistributedChunkedSampler(dataset), found {type(sampler).__name__}"
            )
        self._sampler: Any = sampler
        self._num_items = 0
        # Whether training began with what other ranks have left of an epoch.
        self._is_rest = False
        self._reload_every: int | None = None
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        self._place = self._sampler._place_of(epoch)

    def on_fit_start(self, *_: Any) -> None:
        """Silence a warning about stateless loaders, which suffice here."""
        warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before")

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Find how many items of the sampler a step uses."""
        loader = trainer.train_dataloader
        batches = getattr(loader, "batch_sampler", None)
        if batches is self._sampler or (batches is None and _sampler_of(loader) is self._sampler):
            self._num_items = 1
        elif isinstance(batches, BatchSampler) and batches.sampler is self._sampler:
            self._num_items = batches.batch_size
        else:
            found = _sampler_of(batches) or _sampler_of(loader) or loader
            raise ValueError(
                "SamplerCallback: expected a training loader with its sampler, a "
                f"{type(self._sampler).__name__}, found {type(found).__name__}; pass both the same "
                "object, and a DistributedChunkedSampler where there are several processes"
            )

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Begin at the sampler's position in this epoch."""
        self._begin(trainer.current_epoch)
        if self._reload_every is not None:
            trainer.reload_dataloaders_every_n_epochs = self._reload_every
            self._reload_every = None

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Count the epoch, if Lightning has not."""
        # It does not count the epoch after a resume from the last step of the previous one.
        # In checkpoints of later steps that epoch would be over.
        progress: Any = trainer.fit_loop.epoch_progress
        if progress.current.ready == progress.current.processed:
            progress.increment_ready()
            progress.increment_started()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Count what was used."""
        self._place += self._num_items
        if trainer.is_last_batch:  # also of an epoch that `limit_train_batches` ends
            self._begin(trainer.current_epoch + 1)

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        """Move to the beginning of the next epoch, also after one that was stopped."""
        epoch = trainer.current_epoch
        if self._place.epoch == epoch and self._place.position and trainer.is_global_zero:
            warn(
                f"SamplerCallback: epoch {epoch} was stopped inside, as by max_steps or max_time. "
                f"A run that goes on begins epoch {epoch + 1}, and skips the rest; to read it, "
                "resume from a checkpoint that was saved after a step"
            )
        self._begin(trainer.current_epoch + 1)
        if self._is_rest:
            self._is_rest = False
            # Lightning keeps the number of batches of the first epoch, of which other ranks had
            # read a part. It counts them again when it asks for the loader.
            self._reload_every = trainer.reload_dataloaders_every_n_epochs
            trainer.reload_dataloaders_every_n_epochs = 1

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state after the samples that training has used."""
        state: dict[str, Any] = self._sampler._state_at(self._place)
        return state

    def on_load_checkpoint(
        self, trainer: Trainer, _: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the sampler, before its loader starts."""
        if trainer.state.fn != "fit":  # a checkpoint that is validated must not move training
            return
        if self.state_key not in checkpoint["callbacks"]:
            raise StateError(
                "SamplerCallback: expected the sampler's state in the checkpoint, which was saved "
                "without this callback; to continue from its weights, load them into the module "
                "and start an epoch, without ckpt_path"
            )
        self._sampler.load_state_dict(checkpoint["callbacks"][self.state_key])
        self._begin(self._sampler.epoch)
        self._is_rest = bool(self._place.history)
        if trainer.max_steps != -1:
            _end_at_last_step(checkpoint["loops"]["fit_loop"])


def _sampler_of(loader: Any) -> Any:
    return getattr(loader, "sampler", None)


def _end_at_last_step(loops: dict[str, Any]) -> None:
    """Make a checkpoint saved after an epoch look as though its last step had saved it.

    With ``max_steps``, Lightning resumes such a checkpoint inside the finished epoch and trains one
    more step there. From the last step it resumes correctly.
    """
    epochs, batches = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    if epochs["current"]["completed"] == epochs["current"]["processed"] - 1:
        for count in ("total", "current"):
            epochs[count]["processed"] -= 1
            batches[count]["completed"] -= 1
