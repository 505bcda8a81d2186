"""Train with a ``transformers.Trainer`` in the order of a wids sampler, and resume in it.

The trainer makes its own sampler, has accelerate deal its batches to ranks, and sets no epoch after
it was resumed in the middle of one. `SamplerTrainer` replaces the loader and sets each epoch.
"""

from __future__ import annotations

from typing import Any, cast

from torch.utils.data import DataLoader, Dataset, Sampler

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise ImportError(
        "wids.dataset.huggingface: expected transformers, which is not installed; "
        "pip install transformers accelerate"
    ) from error


class SamplerTrainer(Trainer):
    """A ``transformers.Trainer`` whose ranks read what a wids sampler yields.

    Resumed from a checkpoint, at any step of any epoch, it reads exactly the remaining samples, and
    decodes none of those that it skips. accelerate does not prepare the DataLoader: the sampler has
    the share of each rank already, and the trainer moves batches to their device.

    Args:
        *args: As for ``transformers.Trainer``.
        **kwargs: The same.
        train_sampler: A `DistributedChunkedSampler` or another wids sampler of indices or of
            batches over ``train_dataset``; or a `Prefetcher` around one.

    Raises:
        TypeError: The sampler has no ``set_epoch``.
        ValueError: There are several ranks, and each of them would read all samples.

    Example:
        ``trainer = SamplerTrainer(model=model, args=arguments, train_dataset=dataset,
        train_sampler=wids.DistributedChunkedSampler(dataset))``. ``examples/train_hf.py`` is a
        complete program.
    """

    def __init__(self, *args: Any, train_sampler: Sampler[Any], **kwargs: Any) -> None:
        if not hasattr(train_sampler, "set_epoch"):
            raise TypeError(
                "train_sampler: expected one of wids' samplers, such as "
                f"wids.DistributedChunkedSampler(dataset), found {type(train_sampler).__name__}"
            )
        super().__init__(*args, **kwargs)
        num_replicas = getattr(train_sampler, "num_replicas", 1)
        if num_replicas != self.args.world_size:
            raise ValueError(
                f"train_sampler: expected one for {self.args.world_size} ranks, found "
                f"{type(train_sampler).__name__} for {num_replicas}; use "
                "wids.DistributedChunkedSampler, which looks them up"
            )
        self.train_sampler = train_sampler
        self.add_callback(_SetEpoch(train_sampler))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the loader of this rank's share."""
        args, dataset = self.args, cast("Dataset[Any]", self.train_dataset)
        options: dict[str, Any] = {
            "collate_fn": self.data_collator,
            "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory,
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
        }
        if not getattr(self.train_sampler, "yields_indices", True):
            return DataLoader(dataset, batch_sampler=self.train_sampler, **options)
        return DataLoader(
            dataset,
            batch_size=self._train_batch_size,
            sampler=self.train_sampler,
            drop_last=args.dataloader_drop_last,
            **options,
        )


class _SetEpoch(TrainerCallback):
    """Sets the epoch of the sampler before each pass.

    The trainer itself sets it through the loader, which is another one after a resume.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._epoch: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._epoch = None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        # The first is that of the checkpoint, whose fraction stands for its steps; it is whole at
        # the end of an epoch, exactly. Then they are counted: one that is stopped ends at less.
        self._epoch = int(state.epoch or 0) if self._epoch is None else self._epoch + 1
        self._sampler.set_epoch(self._epoch)
