"""Read, label, transform or replace the samples of a dataset or view, by index.

A dataset wraps an `Access` in methods for its users. Other packages of wids ask for the `Access`.
Files, caches and shards belong to the reader.

A class that overrides ``__getitem__`` decides what an index means, so its samples are read one
index after the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from wids.dataset.failures import Failures, Indices, Policy, as_failures
from wids.errors import DecodeError, SampleError, ShardFormatError, TransformError, WidsError
from wids.shards.batches import OpenShard, read_batch
from wids.shards.policy import Wanted, wanted_instead
from wids.shards.positions import (
    Positions,
    in_turn,
    index_of,
    is_ascending,
    position_at,
    select,
    select_batch,
)
from wids.shards.reader import ShardReader
from wids.shards.tars.raw_samples import Labels, ReadableShard
from wids.storage.arrays import IntArray
from wids.storage.ranges import WholeFileError
from wids.storage.stages import READ, SAMPLES, TRANSFORM, here, this_process, timed, timed_steps
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.tables.joined import Joint

Transformation: TypeAlias = Callable[[Any], Any]


def as_transformations(given: Any, *, allow_pickle: bool) -> list[Transformation]:
    """Return the callables of a sample: a decoder for each name, and the caller's own."""
    if given is not None and not isinstance(given, str | Iterable) and not callable(given):
        raise TypeError(f"transformations: expected a list of callables, found {given!r:.80}")
    steps = [given] if isinstance(given, str) or callable(given) else list(given or ())
    # If it were ignored silently, the caller would believe that pickles are decoded.
    if allow_pickle and not any(isinstance(step, str) for step in steps):
        raise ValueError(
            "allow_pickle: expected transformations by name, found callables; put "
            "wids.Decoder(allow_pickle=True) among them"
        )
    return [_as_transformation(step, allow_pickle=allow_pickle) for step in steps]


def _as_transformation(step: Any, *, allow_pickle: bool) -> Transformation:
    """Return a callable as it is, and a decoder for a name."""
    if isinstance(step, str):
        from wids.shards.fields.decode import (
            named_decoder,  # all codecs: 3 ms, which undecoded reads save
        )

        try:
            return named_decoder(step, allow_pickle=allow_pickle)
        except ValueError as error:
            raise ValueError(
                f"transformations: expected a list of callables, None, or the name of what "
                f"pictures become; {error}"
            ) from None
    return checked(step, "transformations")


def checked(function: Any, name: str) -> Transformation:
    """Return an argument that has to be a callable of a sample.

    Raises:
        TypeError: It is not callable.
    """
    if not callable(function):
        raise TypeError(f"{name}: expected a callable that takes a sample, found {function!r:.80}")
    transformation: Transformation = function
    return transformation


def locate_error(
    error: Exception, sample: Any, shard: str, key: str, index: int, advice: str = ""
) -> SampleError:
    """Return the error of a sample with its shard, key and index, in attributes and text."""
    # SEC-4: the URL of a shard may be signed, and errors end up in logs.
    place = f'{urls.redact(shard)}: sample "{key}" (index {index})'
    # Of the same type, so that a DecodeError stays one for callers that catch it.
    if isinstance(error, SampleError):
        return type(error)(
            f"{place}: {error}{advice}", shard=shard, key=key, field=error.field, index=index
        )
    name = error.args[-1] if isinstance(error, KeyError) and error.args else None
    is_field = isinstance(name, str) and name[:1] == "." and isinstance(sample, dict)
    return TransformError(
        f"{place}: a transformation raised {type(error).__name__}: {_text(error, sample)}",
        shard=shard,
        key=key,
        field=name if is_field and name not in sample else None,
        index=index,
    )


def _text(error: Exception, sample: Any) -> str:
    """Return the text of an error, for a missing field with the fields that there are."""
    if not isinstance(error, KeyError) or not error.args:
        return str(error)
    name = error.args[0]
    if isinstance(sample, dict) and isinstance(name, str) and name not in sample:
        return _missing_text(sample, name)
    return repr(name)


def _missing_text(sample: dict[Any, Any], name: str) -> str:
    """Return why a sample has no such field."""
    dotted = f".{name}"
    if dotted in sample:
        return f'{name}: fields keep their dot: sample["{dotted}"]'
    fields = [field for field in map(str, sample) if field.startswith(".")]
    spellings = (name.lower(), dotted.lower())
    same = next((field for field in fields if field.lower() in spellings), None)
    if same is not None:
        return f'{name}: field names keep their case: sample["{same}"]'
    if not name.startswith("."):
        return name if " " in name else repr(name)  # a message, or the key of another dict
    return f"{name}: the sample has {', '.join(fields) or 'no fields'}"


def _unchanged(sample: Any) -> Any:
    return sample


OnError: TypeAlias = Callable[[WidsError], Any]

_NUM_LOOKED_AT: Final = 4096
"""Positions to look at together for one in another shard."""

_SAMPLES: Final = Wanted.SAMPLES  # looking it up takes a fiftieth of the time of reading a sample

_MAX_LABELLED: Final = 1024
"""Shards whose labels are kept."""

_together: ContextVar[tuple[ShardReader, OpenShard, Wanted] | None] = ContextVar(
    "wids_together", default=None
)
"""How the samples of a class that overrides ``__getitem__`` are read inside a batch or a pass."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Access:
    """The samples of a dataset or view. What is derived from it shares the reader.

    Attributes:
        positions: Positions of the samples in the whole dataset.
        reader: The shards.
        dataset_name: The label of samples whose shard names no dataset.
        transformations: The callables that a sample passes through.
        on_error: What to do if a sample cannot be produced, as the caller passed it.
        failures: The same for ``"skip"`` and ``"next"``, with their count; otherwise None.
        is_overridden: Whether a subclass of the dataset decides what a sample is, so that its
            samples are not those that are read here.
        labels: What samples are labelled with, by the numbers of shards that were read.
    """

    positions: Positions
    reader: ShardReader
    dataset_name: str
    transformations: list[Transformation]
    on_error: OnError | Policy | None = None
    failures: Failures | None = None
    is_overridden: bool = False
    labels: dict[int, Labels] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def is_view(self) -> bool:
        """Whether these are not all samples of the shards in their order."""
        return not isinstance(self.positions, range) or len(self) != len(self.reader)

    @property
    def joint(self) -> Joint | None:
        """What is joined to the samples of the shards; None for nothing."""
        joint: Joint | None = self.reader.joint
        return joint

    @property
    def steps(self) -> list[Transformation]:
        """All transformations that samples pass through, beginning with those of joined sides."""
        return [*(self.joint.transformations if self.joint else ()), *self.transformations]

    @property
    def may_differ(self) -> bool:
        """Whether other ranks may find other samples: shards are counted, and passed over."""
        if self.failures is None:
            return False
        counts = self.reader.counts
        stated = (shard.num_samples for shard in self.reader.shards)
        return isinstance(counts, list) and any(count is None for count in stated)

    def shard_number(self, index: int) -> int:
        """Return the number of the shard that a sample is in; the index must not be negative."""
        return bisect_right(self.reader.ends, int(self.positions[index]))

    def locate(self, index: int) -> tuple[int, int]:
        """Return the number of the shard that a sample is in, and its position in the shard."""
        return self.reader.locate(position_at(self.positions, index))

    def in_next_shard(self, index: int) -> int:
        """Return the index of a sample in the next shard, in place of one of this shard.

        Neighbours have neighbours in their place, where positions ascend.
        """
        positions, ends, length = self.positions, self.reader.ends, len(self)
        number = self.shard_number(index)
        if not is_ascending(positions):
            for first in range(index + 1, index + length, _NUM_LOOKED_AT):
                at = np.arange(first, min(first + _NUM_LOOKED_AT, index + length)) % length
                found = select_batch(positions, at)
                elsewhere = at[(found < self.reader.starts[number]) | (found >= ends[number])]
                if elsewhere.size:
                    return int(elsewhere[0])
            return index
        first = bisect_left(positions, self.reader.starts[number])
        start = bisect_left(positions, ends[number]) % length
        stop = bisect_left(positions, ends[self.shard_number(start)])
        return start + (index - first) % (stop - start)

    def announce(self) -> None:
        """Note that a pass will read these samples; see `ShardReader.announce_shards`."""
        self.reader.announce_shards(self.reader.large_parts(self.positions))

    # Derived accesses.

    def selected(self, indices: Any) -> Access:
        """Return the samples that a slice, indices or a mask select."""
        return Access(  # `replace` would double the time
            select(self.positions, indices),
            self.reader,
            self.dataset_name,
            list(self.transformations),  # so that add_transform on a view leaves its dataset alone
            self.on_error,
            self.failures,
            self.is_overridden,
        )

    def followed_by(self, *transformations: Transformation) -> Access:
        """Return the same samples, which pass through further transformations."""
        failures = self.failures and self.failures.of_view()
        steps = [*self.transformations, *transformations]
        return replace(self, transformations=steps, failures=failures)

    def with_on_error(self, on_error: OnError | Policy | None) -> Access:
        """Return the same samples, with another policy for those that cannot be produced.

        Raises:
            ValueError: ``on_error`` is neither a policy, a callable nor None.
        """
        failures, earlier = as_failures(on_error), self.failures
        if failures is not None:
            self.reader.pass_over_broken()
            failures.max_failed = None if earlier is None else earlier.max_failed
        return replace(self, on_error=on_error, failures=failures)

    def through(self, reader: ShardReader) -> Access:
        """Return the same positions in another reader of these shards."""
        if self.failures is not None:
            reader.pass_over_broken()
        return replace(self, reader=reader)

    def undecoded(self) -> Access:
        """Return the same samples as they are stored, whose errors are raised."""
        reader = self.reader if self.joint is None else self.joint.undecoded().reader()
        return replace(self.with_on_error(None), reader=reader, transformations=[])

    def before_steps(self, *, is_verified: bool) -> Access:
        """Return the labelled samples before they are transformed.

        Args:
            is_verified: Whether to verify them as samples that will be decoded.
        """
        steps: list[Transformation] = [_unchanged] if is_verified else []
        return replace(self, transformations=steps)

    # Reading.

    def read(self, position: int, number: int | None = None, wanted: Wanted = _SAMPLES) -> Any:
        """Read, label and transform one sample.

        Args:
            position: Its position in the dataset.
            number: The number of its shard; None to find it, for a single sample.
            wanted: What is wanted of the shard.
        """
        reader, transformations, open_shard = self.reader, self.transformations, None
        if number is None:
            number = bisect_right(reader.ends, position)
            if self.is_overridden and (together := _together.get()) and together[0] is reader:
                _, open_shard, wanted = together
        if reader.joint is not None:
            return self._joined(np.array([position]), wanted)[0]
        verify = reader.verifies_decoded if transformations else reader.verifies_raw
        shard = None
        try:
            # Of a method, a call costs less than a reference.
            shard = (
                reader.open(number, wanted) if open_shard is None else open_shard(number, wanted)
            )
            try:
                labels = self.labels[number]
            except KeyError:
                labels = self.labels_of(number)
            sample = shard.read(position - labels[0], verify, labels)
        except WidsError as error:  # names the shard
            return self._read_again(position, number, wanted, shard, error)
        if not transformations:
            return sample
        if this_process.num_watchers and here.common[0]:
            return self.transformed_together([sample])[0]
        return self.transformed(sample)

    def labels_of(self, number: int) -> Labels:
        """Return the labels of the samples of a shard, and keep them for the next ones."""
        if len(self.labels) >= _MAX_LABELLED:
            self.labels.clear()  # one atomic step, as other threads may read
        labels = self.labels[number] = self.reader.labels(number, self.dataset_name)
        return labels

    def _read_again(
        self,
        position: int,
        number: int,
        wanted: Wanted,
        shard: ReadableShard | None,
        error: WidsError,
    ) -> Any:
        """Read a sample in another way after an error, or return what stands in for it."""
        reader = self.reader
        instead = None
        if isinstance(error, WholeFileError):
            instead = wanted_instead(wanted, reader.options.access)
        if instead is None and (shard is None or not reader.replaces(number, shard, error)):
            if shard is not None and type(error) is ShardFormatError:
                advised = ShardFormatError(f"{error}{self._advice(position)}")
                advised.__cause__ = None  # one traceback, of the error that it stands for
                error = advised.with_traceback(error.__traceback__)
            return self._stand_in(error, position)
        return self.read(position, number, instead or wanted)

    def watched(self, read: Callable[..., Any], *place: Any) -> Any:
        """Return ``read(*place)``, a sample; count and time it for those who want to know."""
        here.row[SAMPLES] += 1
        if self.failures is not None:
            self.failures.count_read(1)
        return timed(READ, read, *place) if here.common[0] else read(*place)

    def batch(self, indices: Indices) -> list[Any]:
        """Return several samples, with each shard opened once."""
        if self.failures is not None:
            return self.failures.batch(self, indices)
        return timed(READ, self._batch, indices)

    def _batch(self, indices: Indices) -> list[Any]:
        # True and False in a batch are 1 and 0, as for dataset[i]; only a view takes a mask.
        positions = select_batch(self.positions, indices)
        samples: list[Any] = [None] * len(positions)
        reader, transformations = self.reader, self.transformations
        if reader.joint is not None:
            return self._joined(positions, _SAMPLES)
        groups, open_shard = read_batch(reader, positions)
        verify = reader.verifies_decoded if transformations else reader.verifies_raw
        for number, places, local_indices in groups:
            shard = None
            try:
                shard = open_shard(number, _SAMPLES)
                labels = self.labels.get(number) or self.labels_of(number)
                samples_there = shard.read_many(local_indices, verify=verify, labels=labels)
            except WidsError as error:  # names the shard
                start = reader.starts[number]
                for place, local_index in zip(places, local_indices, strict=True):
                    # One by one, so that only those that fail are replaced. A shard that cannot be
                    # opened is not tried for each of them.
                    samples[place] = (
                        self._stand_in(error, start + local_index)
                        if shard is None
                        else self.read(start + local_index, number, Wanted.MOST)
                    )
                continue
            if transformations:
                samples_there = self.transformed_together(samples_there)
            for place, sample in zip(places, samples_there, strict=True):
                samples[place] = sample
        return samples

    def _joined(self, positions: IntArray, wanted: Wanted) -> list[Any]:
        """Return joined samples, which are read together; ``wanted`` is as for `read`."""
        try:
            samples = self.reader.joint.read(positions, wanted)
        except WidsError as error:
            if len(positions) == 1:
                return [self._stand_in(error, int(positions[0]))]
            # One by one, so that only those that fail are replaced.
            return [self._joined(positions[n : n + 1], wanted)[0] for n in range(len(positions))]
        return self.transformed_together(samples) if self.transformations else samples

    def in_turn(self) -> Iterator[Any]:
        """Yield all samples."""
        return self._in_turn() if self.failures is None else self.failures.iterate(self)

    def _in_turn(self) -> Iterator[Any]:
        positions, reader = self.positions, self.reader
        latest, wanted = -1, _SAMPLES
        for position in in_turn(positions):
            number = bisect_right(reader.ends, position)
            # Asked once for each shard, since the answer depends on how much of it the view has.
            if number != latest:
                latest, wanted = number, reader.wanted_of_view(number, positions)
            if this_process.num_watchers:
                yield self.watched(self.read, position, number, wanted)
            else:
                this_process.num_samples += 1
                yield self.read(position, number, wanted)

    def transformed_together(self, samples: list[Any]) -> list[Any]:
        """Return what the transformations make of labelled samples."""
        if not here.common[0]:
            return list(map(self.transformed, samples))

        def by(steps: list[Transformation]) -> Transformation:
            return replace(self, transformations=steps).transformed

        return timed_steps(self.transformations, self.transformed, by, samples)

    def transformed(self, sample: Any) -> Any:
        """Return what the transformations make of a labelled sample."""
        # Read before the first call: a transformation may return something without them.
        shard, key, position = sample["__shard__"], sample["__key__"], sample["__index__"]
        try:
            for transform in self.transformations:
                sample = transform(sample)
        except Exception as error:  # noqa: BLE001 - raised again, or passed to the caller
            # One link to the error of the library that decodes, whose text the DecodeError has.
            is_decoding = isinstance(error, DecodeError) and error.__cause__ is not None
            is_damaged = is_decoding and not isinstance(error.__cause__, ModuleNotFoundError)
            advice = self._advice(position) if is_damaged else ""
            # Wrapped, so that `on_error` gets one kind of exception, with the sample's name
            # (decision 0003).
            located = locate_error(error, sample, shard, key, position, advice)
            located.__cause__ = error.__cause__ if is_decoding else error
            return self._stand_in(located, position)
        return sample

    def _advice(self, position: int) -> str:
        """Return what the error of a damaged sample says to do, where it is raised."""
        if self.failures is not None or callable(self.on_error):
            return ""
        import shlex  # only such an error needs it

        number, local_index = self.reader.locate(position)
        url = shlex.quote(urls.redact(self.reader.shards[number].url))
        return (
            f"; look at it: `wids sample {url} {local_index} --raw`, or read on without damaged "
            'samples: on_error="skip"'
        )

    def _stand_in(self, error: WidsError, position: int) -> Any:
        """Return what ``on_error`` returns for a sample that cannot be produced, or raise."""
        if self.failures is not None:
            return self.failures.one(self, index_of(self.positions, position), error)
        if not callable(self.on_error):
            raise error
        return self.on_error(error)


def batch(dataset: Any, indices: Indices) -> list[Any]:
    """Return ``[dataset[i] for i in indices]``, as ``__getitems__`` of such a class."""
    access: Access = dataset.sample_access

    def read() -> list[Any]:
        with _reading(access.reader, _positions_of(access, indices)):
            return timed(TRANSFORM, list, _each(dataset, indices))

    return timed(READ, read)


def one_by_one(dataset: Any) -> Iterator[Any]:
    """Yield all samples, as ``__iter__`` of such a class."""
    access: Access = dataset.sample_access
    for index in range(len(dataset)):
        # A view may have one sample of each shard, so it reads as single samples do. Not around
        # `yield`: others read in between.
        with nullcontext() if access.is_view else _reading(access.reader):
            samples = timed(TRANSFORM, list, _each(dataset, (index,)))
        yield from samples


@contextmanager
def _reading(reader: ShardReader, positions: IntArray | None = None) -> Iterator[None]:
    """Have single samples be read together inside the block.

    Args:
        reader: The shards.
        positions: The samples of a batch, as far as they are known; None for a pass over the whole
            dataset, which fetches its shards.
    """
    way: tuple[ShardReader, OpenShard, Wanted] = reader, reader.open, Wanted.MOST
    if positions is not None:
        way = reader, read_batch(reader, positions)[1], Wanted.SAMPLES
    previous = _together.set(way)
    try:
        yield
    finally:
        _together.reset(previous)


def _positions_of(access: Access, indices: Indices) -> IntArray:
    """Return the positions that a batch probably has."""
    try:
        return select_batch(access.positions, indices)
    except (IndexError, TypeError):  # they may mean something else to the class
        return select_batch(access.positions, [])


def _each(dataset: Any, indices: Iterable[int]) -> Iterator[Any]:
    """Yield ``dataset[i]`` for each index; without the samples that are to be left out."""
    access: Access = dataset.sample_access
    failures = access.failures
    for index in indices:
        try:
            sample = dataset[index]
        except WidsError as error:
            # With "next", the access has looked for a replacement already, and found none.
            if failures is None or failures.policy == "next":
                raise
            failures.pass_over_one(access, error)
        else:
            yield sample
