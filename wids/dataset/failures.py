"""Leave samples that cannot be produced out of their batch, or replace them by the next good ones.

`Failures` implements ``on_error="skip"`` and ``"next"``. Samples are read as usual, with a `Failed`
in the place of each such sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import numpy.typing as npt

from wids.errors import SampleError, ShardFormatError, WidsError
from wids.storage.shared_number import SharedNumber

Policy = Literal["skip", "next"]
Indices: TypeAlias = "Sequence[int] | npt.NDArray[Any]"

_MAX_STEPS: Final = 100
"""Samples to try in place of one that failed. More in a row suggest a systematic failure."""


class Collectable(Protocol):
    """The part of an `Access` that `Failures` uses: samples, with a `Failed` for each failure."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def with_on_error(self, on_error: Any) -> Collectable:
        """Return the same samples, with another policy for those that cannot be produced."""

    def one(self, index: int) -> Any:
        """Read one sample."""

    def batch(self, indices: Indices) -> list[Any]:
        """Read several samples."""

    def in_turn(self) -> Iterator[Any]:
        """Read all samples."""


class Indexed(Protocol):
    """A dataset whose class decides what a sample is."""

    def __getitem__(self, index: int) -> Any:
        """Return one sample."""


@dataclass(frozen=True)
class Failed:
    """Stands in the place of a sample that cannot be produced.

    Attributes:
        error: The reason.
    """

    error: WidsError


class Failures:
    """What happens to samples that cannot be produced, and how many there were.

    Only samples that are damaged, or that a transformation refuses, are passed over. A shard that
    cannot be fetched or opened raises: an epoch without the shards of a server that is down, or
    that answers with another file, would be a silent error.

    Views and the workers of a DataLoader share the count.

    Args:
        policy: ``"skip"`` leaves these samples out of batches and iterations; ``"next"`` takes the
            next sample of the view that can be produced, and the first one after the last.

    Raises:
        ValueError: The policy is neither.
    """

    def __init__(self, policy: Policy) -> None:
        if policy not in get_args(Policy):
            raise ValueError(
                f'on_error: expected "skip", "next", a callable or None, found {policy!r}'
            )
        self.policy = policy
        self.num_failed = SharedNumber()
        self.num_failed.reserve()
        self._has_warned = False

    def batch(self, access: Collectable, indices: Indices) -> list[Any]:
        """Return the samples of a batch, without those that failed, or with others in their place.

        Raises:
            FetchError: A shard cannot be fetched.
            SampleError: With ``"next"``, no sample near can be produced.
        """
        samples = access.with_on_error(Failed).batch(indices)
        if self.policy == "skip":
            return [sample for sample in samples if not self._passes_over(sample)]
        return [
            self._after(access, int(index), sample.error) if self._passes_over(sample) else sample
            for index, sample in zip(indices, samples, strict=True)
        ]

    def iterate(self, access: Collectable) -> Iterator[Any]:
        """Yield all samples, as `batch` returns them."""
        for index, sample in enumerate(access.with_on_error(Failed).in_turn()):
            if not self._passes_over(sample):
                yield sample
            elif self.policy == "next":
                yield self._after(access, index, sample.error)

    def each(self, dataset: Indexed, indices: Iterable[int]) -> Iterator[Any]:
        """Yield ``dataset[i]`` for each index, without those that failed.

        For a subclass, whose ``__getitem__`` decides what a sample is.
        """
        for index in indices:
            try:
                sample = dataset[index]
            except WidsError as error:
                # With "next", `one` has looked for a replacement already, and found none.
                if self.policy == "next" or not self._passes_over(Failed(error)):
                    raise
            else:
                yield sample

    def one(self, access: Collectable, index: int, error: WidsError) -> Any:
        """Return what takes the place of a single sample, or raise its error.

        A caller that asks for one sample gets one, so there is nothing to skip.
        """
        if self.policy == "skip" or not self._passes_over(Failed(error)):
            raise error
        return self._after(access, index, error)

    def _after(self, access: Collectable, index: int, error: WidsError) -> Any:
        """Return the next sample that can be produced, of those after an index."""
        length, collecting = len(access), access.with_on_error(Failed)
        for step in range(1, min(length, _MAX_STEPS + 1)):
            sample = collecting.one((index + step) % length)
            if not (isinstance(sample, Failed) and _is_to_blame(sample)):
                return sample
        num_tried = min(length - 1, _MAX_STEPS)
        reason = f'on_error="next": none of the next {num_tried} samples can be produced either'
        error.args = (f"{error.args[0]}; {reason}",)
        raise error

    def _passes_over(self, sample: Any) -> bool:
        """Count a sample that failed, and return True; return False for any other.

        Raises:
            WidsError: It failed for a reason outside the sample.
        """
        if not (isinstance(sample, Failed) and _is_to_blame(sample)):
            return False
        self.num_failed.add(1)
        if not self._has_warned:
            self._has_warned = True
            done = "left out" if self.policy == "skip" else "replaced by the next good sample"
            warnings.warn(
                f"{sample.error}: {done}; dataset.num_failed counts all such samples",
                stacklevel=2,
            )
        return True


def _is_to_blame(failed: Failed) -> bool:
    """Return whether the sample itself is at fault; otherwise raise."""
    if isinstance(failed.error, SampleError | ShardFormatError):
        return True
    raise failed.error


def as_failures(on_error: Any) -> Failures | None:
    """Return the `Failures` of a policy by name; None for a callable, or for None.

    Raises:
        ValueError: It is neither a policy, a callable nor None.
    """
    return None if on_error is None or callable(on_error) else Failures(on_error)
