"""Leave samples that cannot be produced out of their batch, or replace them by the next good ones.

`Failures` implements ``on_error="skip"`` and ``"next"``. Samples are read as usual, with its error
in the place of each such sample, whether it is damaged itself or its whole shard is. Broken shards
are noted where they are opened (`wids.shards.broken_shards`).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy.typing as npt

from wids.errors import SampleError, ShardFormatError, TransformError, WidsError, user_line, warn
from wids.shards.reader import ShardReader
from wids.storage.shared_numbers import SharedNumber, SharedRows, writing
from wids.storage.sizes import first_of
from wids.storage.stages import this_process

if TYPE_CHECKING:
    from wids.shards.sample_access import SampleAccess

Policy = Literal["skip", "next"]
Indices: TypeAlias = "Sequence[int] | npt.NDArray[Any]"

_MAX_STEPS: Final = 100
"""Samples to try in place of one that failed. More in a row suggest a systematic failure."""

_MIN_ALL: Final = 100
_MIN_MOST: Final = 1000
"""Samples that fail as long as none succeeds, or of which half may fail: more are no damage."""

_READ, _ALONE, _WITH_SHARD, _EPOCH = range(4)


class Failures:
    """What happens to samples that cannot be produced, and how many there were.

    Damaged samples are passed over, and so are samples that a transformation refuses and all
    samples of a shard that is missing, incomplete, not a tar, or not what the spec says. A server
    that is away, or that refuses access, raises: an epoch without its shards would be a silent
    error.

    Views and the workers of a DataLoader share the counts. A field that a transformation asks for
    and a sample lacks is no damage, and raises too.

    Args:
        policy: ``"skip"`` leaves these samples out of batches and iterations; ``"next"`` takes the
            next sample of the view that can be produced, and the first one after the last. In place
            of a broken shard it takes samples of the next one.
        max_failed: The largest share of samples to pass over; None for as many as damage explains,
            and a mistake of the program does not.

    Raises:
        ValueError: ``policy`` or ``max_failed`` has another value.
    """

    def __init__(self, policy: Policy, max_failed: float | None = None) -> None:
        if policy not in get_args(Policy):
            raise ValueError(
                f'on_error: expected "skip", "next", a callable or None, found {policy!r}'
            )
        self.policy = policy
        self.max_failed = max_failed
        self.num_failed = SharedNumber()
        self._epochs = SharedRows(0.0)
        """How many epochs were announced, as a common number."""
        self._begin()
        self.num_failed.reserve()
        self._epochs.reserve()
        self._line = user_line()
        self._watch()

    def _begin(self) -> None:
        """Count from 0: samples that were read, that failed alone, and with their shard.

        The common numbers are the sums when the latest epoch began, and which one that is.
        """
        self._counts = SharedRows(0.0, 0.0, 0.0, 0.0)
        self._counts.reserve()
        self._causes: dict[Any, tuple[int, WidsError]] = {}

    def _watch(self) -> None:
        if self.max_failed is not None:
            this_process.num_watchers += 1  # single samples have to be counted too

    def of_view(self) -> Failures:
        """Return the same policy for further transformations, whose failures count by themselves.

        ``num_failed`` stays common to both.
        """
        made = copy(self)
        made._begin()  # noqa: SLF001 - another of this class
        return made

    def begin_epoch(self) -> None:
        """Note that an epoch begins, in this view, in others and in their workers."""
        self._epochs.common[0] += 1

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_causes": {}}  # tracebacks cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch()

    def batch(self, access: SampleAccess, indices: Indices) -> list[Any]:
        """Return the samples of a batch, without those that failed, or with others in their place.

        Raises:
            FetchError: A shard cannot be fetched.
            SampleError: With ``"next"``, no sample near can be produced.
        """
        samples = access.with_on_error(failed).batch(indices)
        self.count_read(len(samples))
        errors = self.pass_over(access, samples)
        if self.policy == "skip":
            return [sample for place, sample in enumerate(samples) if place not in errors]
        others = {int(indices[place]) % len(access): error for place, error in errors.items()}
        replaced = _replaced(access, others)
        for place in errors:
            samples[place] = replaced[int(indices[place]) % len(access)]
        return samples

    def iterate(self, access: SampleAccess) -> Iterator[Any]:
        """Yield all samples, as `batch` returns them."""
        num_read, count_read = 0, self.count_read
        try:
            for index, sample in enumerate(access.with_on_error(failed).in_turn()):
                num_read += 1
                if not isinstance(sample, WidsError):
                    yield sample
                    continue
                self.count_read(num_read)
                num_read = 0
                self.pass_over(access, [sample])
                if self.policy == "next":
                    yield from _replaced(access, {index: sample}).values()
        except GeneratorExit:
            # Without the lock: this may be garbage, collected by a thread that is in a fork's way.
            count_read = self._count_read
            raise
        finally:
            count_read(num_read)

    def one(self, access: SampleAccess, index: int, error: WidsError) -> Any:
        """Return what takes the place of a single sample, or raise its error.

        A caller that asks for one sample gets one, so there is nothing to skip.
        """
        if self.policy == "skip":
            raise error
        self.pass_over_one(access, error)
        return _replaced(access, {index: error})[index]

    def check_shards(self, reader: ShardReader) -> None:
        """Raise the error of a broken shard if all of them have more samples than is allowed."""
        share = 0 if self.max_failed is None else reader.broken.share(reader.edges)
        if self.max_failed is not None and share > self.max_failed:
            raise self._too_many(share, reader.broken.first_error())

    def count_read(self, number: int) -> None:
        """Count samples that are asked for."""
        with writing:
            self._count_read(number)

    def _count_read(self, number: int) -> None:
        counts, epoch = self._counts, self._epochs.common[0]
        if counts.common[_EPOCH] != epoch:
            counts.common[_EPOCH] = epoch
            self._begin_epoch(counts.sums()[_READ])
        counts.row[_READ] += number

    def _begin_epoch(self, num_read: float) -> None:
        """Note what was counted until an epoch began, after so many samples."""
        _, alone, with_shard, _ = self._counts.sums()
        for column, value in enumerate((num_read, alone, with_shard)):
            self._counts.common[column] = value

    def pass_over_one(self, access: SampleAccess, error: WidsError) -> None:
        """Count a single sample that failed, as `pass_over` does."""
        if not this_process.num_watchers:
            # Single samples are counted from now on; before one fails, that would only take time.
            this_process.num_watchers += 1
            self.count_read(1)
        self.pass_over(access, [failed(error)])

    def pass_over(self, access: SampleAccess, samples: Sequence[Any]) -> dict[int, WidsError]:
        """Count the samples that failed, and return their errors by their places.

        Raises:
            WidsError: More have failed than is allowed; or samples lack a field.
        """
        errors = {n: each for n, each in enumerate(samples) if isinstance(each, WidsError)}
        if errors:
            _raise_missing([error for error in errors.values() if _is_missing(error)])
            begun, length = self._counts.common[_READ], max(1, len(access))
            num_passes = (self._counts.sums()[_READ] - begun - 1) // length
            if num_passes > 0:  # that nobody announced
                self._begin_epoch(begun + num_passes * length)
            self.num_failed.add(len(errors))
            for error in errors.values():
                self._count_failed(error)
            self._warn_once(errors)
            self._check(access, length)
        return errors

    def _count_failed(self, error: WidsError) -> None:
        cause = error.__cause__ or error
        frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
        traceback.clear_frames(cause.__traceback__)  # they have the sample
        place = (frames[-1].f_code, frames[-1].f_lineno) if frames else None
        kind = str(error) if error.is_of_shard else place
        with writing:
            self._counts.row[_WITH_SHARD if error.is_of_shard else _ALONE] += 1
            count, _ = self._causes.get((type(cause), kind), (0, error))
            self._causes[type(cause), kind] = count + 1, error

    def _check(self, access: SampleAccess, length: int) -> None:
        """Raise the commonest error if more samples have failed than is allowed."""
        read, alone, with_shard, _ = self._counts.sums()
        if self.max_failed is not None:
            self.check_shards(access.reader)
            # Of whole passes, since a broken shard may come first, and fill the first batches.
            share = (alone + with_shard) / (max(1, -(-read // length)) * length)
            if share > self.max_failed:
                raise self._too_many(share, self._commonest())
            return
        begun = self._counts.common
        counts = read - begun[_READ] - with_shard + begun[_WITH_SHARD], alone - begun[_ALONE]
        if not _are_most(*counts):
            # A broken shard may come first too. All epochs together show whether most shards are.
            counts = read, alone + with_shard
            num_broken = sum(error.is_of_shard for _, error in self._causes.values())
            if num_broken < min(3, len(access.reader.shards)) or not _are_most(*counts):
                return
        reason = (
            f"{counts[1]:,.0f} of {counts[0]:,.0f} samples that were read failed, most of them so: "
            "correct the program or the data; max_failed=1.0 allows it"
        )
        raise _with_reason(self._commonest(), reason)

    def _commonest(self) -> WidsError:
        """Return the latest error of the commonest cause in this process."""
        return max(self._causes.values(), key=lambda cause: cause[0])[1]

    def _warn_once(self, errors: Mapping[int, WidsError]) -> None:
        """Warn of the first sample that failed by itself; each broken shard warns elsewhere."""
        error = next((error for error in errors.values() if not error.is_of_shard), None)
        if error is not None and not self.num_failed.common[0]:
            self.num_failed.common[0] = 1  # for all processes
            done = "left out" if self.policy == "skip" else "replaced by the next good sample"
            warn(f"{error}: {done}; dataset.num_failed counts all such samples", self._line)

    def _too_many(self, share: float, error: WidsError) -> WidsError:
        return _with_reason(
            error, f"{share:.3%} of the samples cannot be produced, more than max_failed allows"
        )


def _are_most(num_read: float, num_failed: float) -> bool:
    """Whether so many samples have failed that damage does not explain it."""
    if num_read >= _MIN_MOST and 2 * num_failed > num_read:
        return True
    return num_read >= _MIN_ALL and num_failed >= num_read


def _is_missing(error: WidsError) -> bool:
    """Whether a transformation asked for a field that the sample lacks."""
    return isinstance(error, TransformError) and error.field is not None


def _raise_missing(errors: Sequence[WidsError]) -> None:
    """Raise the first error of samples that lack a field, with the names of the others."""
    if errors:
        others = [f'"{error.key}"' for error in errors[1:] if isinstance(error, SampleError)]
        names = f"; so do {first_of(others)}" if others else ""
        raise _with_reason(errors[0], f"on_error passes over damage alone{names}")


def failed(error: WidsError) -> WidsError:
    """Return an error, which stands in the place of a sample; raise one that is not its own."""
    if error.is_of_shard or isinstance(error, SampleError | ShardFormatError):
        return error
    raise error


def _replaced(access: SampleAccess, errors: Mapping[int, WidsError]) -> dict[int, Any]:
    """Return samples that can be produced, in place of those at some indices that have errors.

    Raises:
        WidsError: The error of one of them: none of the next samples can be produced either.
    """
    good: dict[int, Any] = {}
    reached = {index: (index, error) for index, error in errors.items()}
    collecting, num_tried = access.with_on_error(failed), min(len(access) - 1, _MAX_STEPS)
    for _ in range(num_tried):
        if not reached:
            break
        following = [
            access.in_next_shard(at) if error.is_of_shard else (at + 1) % len(access)
            for at, error in reached.values()
        ]
        samples = collecting.batch(following)
        for index, at, sample in zip(list(reached), following, samples, strict=True):
            if isinstance(sample, WidsError):
                _raise_missing([sample] if _is_missing(sample) else [])
                reached[index] = at, sample
            else:
                good[index] = sample
                del reached[index]
    for index in reached:
        reason = f'on_error="next": none of the next {num_tried} samples can be produced either'
        raise _with_reason(errors[index], reason)
    return good


def _with_reason(error: WidsError, reason: str) -> WidsError:
    made = copy(error).with_traceback(error.__traceback__)
    made.args, made.__cause__ = (f"{error.args[0]}; {reason}",), error.__cause__
    return made


def as_failures(on_error: Any, max_failed: Any = None) -> Failures | None:
    """Return the `Failures` of a policy by name; None for a callable, or for None.

    Raises:
        ValueError: It is neither a policy, a callable nor None; or ``max_failed`` is no share, or
            passed without a policy.
    """
    if max_failed is not None:
        if not (isinstance(max_failed, int | float) and 0 <= max_failed <= 1):
            raise ValueError(f"max_failed: expected a share from 0 to 1, found {max_failed!r}")
        if on_error is None or callable(on_error):
            raise ValueError(
                f'max_failed: expected on_error="skip" or "next" beside it, found {on_error!r}'
            )
    return None if on_error is None or callable(on_error) else Failures(on_error, max_failed)
