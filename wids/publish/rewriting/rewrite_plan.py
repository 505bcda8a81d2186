"""Plan the samples of each output shard of a rewrite, and check what a map returns.

The plan is a pure function of keys and lengths: the same view and limits cut the same shards. No
member is read. Samples are planned in windows, so that memory does not grow with their number. A
shuffled order is computed where it is needed: the driver holds none of it, and each task has the
seed.

A map is called where the dataset calls its transformations, so that the error names the sample and
its shard, and ``on_error`` decides about it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from wids.errors import PackError, TransformError
from wids.order.random_order import RandomOrder
from wids.publish.tar_writer import finished_nbytes
from wids.shards.indexes.key_tables import key_hashes, text_hashes
from wids.shards.positions import select_batch
from wids.shards.reader import ShardReader
from wids.shards.tars.headers import BLOCK_NBYTES, to_bytes
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import label
from wids.storage.arrays import IntArray, LazySequence, WordArray
from wids.storage.transport import urls


@dataclass(frozen=True)
class Order:
    """The order in which the samples of a view are written.

    Attributes:
        view: The view.
        seed: Seed of a random order; None for that of the view.
    """

    view: Any
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.view)

    def positions(self, start: int, stop: int) -> IntArray:
        """Return the positions of some samples in all shards."""
        return select_batch(self.view.positions, self.indices(start, stop))

    def indices(self, start: int, stop: int) -> IntArray:
        """Return the indices of some samples in the view."""
        if self.seed is None:
            return np.arange(start, stop)
        return RandomOrder(len(self.view), self.seed).between(start, stop)


def order_of(view: Any, seed: int | None) -> Order:
    """Return the order of a view, or a random one."""
    if seed is None or isinstance(view.positions, range):
        return Order(view, seed)
    # Otherwise each task would have all positions of the view.
    return Order(view[RandomOrder(len(view), seed).between(0, len(view))])


@dataclass(frozen=True)
class SomeSamples:
    """Samples ``start`` to ``stop`` of an order, for a worker that makes a view of them."""

    order: Order
    start: int
    stop: int

    def view(self) -> Any:
        """Return a view of them."""
        order = self.order
        if order.seed is None:
            return order.view[self.start : self.stop]
        return order.view[order.indices(self.start, self.stop)]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.order.seed is None:  # without the positions of other samples
            return SomeSamples, (Order(self.view()), 0, self.stop - self.start)
        return SomeSamples, (self.order, self.start, self.stop)


Rename: TypeAlias = Callable[[dict[str, Any]], str]
"""Returns the new key of a sample, from its labels: ``__key__``, ``__index__``, ``__shard__``,
``__shardindex__`` and ``__dataset__``."""

SampleOrigin: TypeAlias = tuple[str, int]
"""The URL of the shard that a sample is in, and its index in the dataset."""

_WINDOW: Final = 1 << 20
"""Samples that are planned together, about 60 B each. In a shuffled order each window has samples
of all shards, whose indexes are looked up once for each window."""

_SPARSE: Final = 4
"""Where fewer than one in this many samples of a shard is needed, other keys are not hashed."""

_NUM_READ: Final = 64
"""Samples that are read at a time for their lengths, where the index does not have all fields."""

_RELEASED_AFTER: Final = 16
"""Indexes that are read before the memory of their mapped dataset index is released."""

_MAX_NAME_NBYTES: Final = 100
"""Longer names, and those that are not ASCII, have a header of their own before the member's."""
_NAME_HEADER_NBYTES: Final = 64
"""Most bytes of such a header besides the name itself."""


@dataclass(frozen=True)
class PlannedShard:
    """The samples of one output shard.

    Attributes:
        start, stop: Its samples, as indices of the view.
        nbytes: Its length in bytes, or a little more.
    """

    start: int
    stop: int
    nbytes: int


def plan_shards(
    reader: ShardReader,
    order: Order,
    *,
    maxcount: int | None,
    maxsize: int | None,
    rename: Rename | None,
    dataset_name: str = "",
    checks_keys: bool = True,
) -> LazySequence[PlannedShard]:
    """Return the output shards, in order.

    Args:
        reader: The shards of the dataset.
        order: The samples, in the order in which they are written.
        maxcount: Maximum number of samples in a shard; None for the shards of the input.
        maxsize: Maximum length of a shard in bytes, unless one sample is larger; None for no limit.
        rename: Returns the new key of a sample, from its labels; None to keep the keys.
        dataset_name: The label of samples whose shard belongs to no dataset of its own.
        checks_keys: Whether to check now that the keys of a shard differ.

    Raises:
        PackError: Two samples of one output shard have the same key, and would become one.
        FetchError: A shard has no index, and cannot be fetched.
    """
    stops, lengths = array("q"), array("q")
    start, width = 0, _WINDOW
    while start < len(order):
        stop = min(start + width, len(order))
        positions = order.positions(start, stop)
        nbytes, hashes = _columns(reader, positions)
        if maxcount is None:
            edges = _input_edges(reader, positions)
        else:
            edges = _edges(nbytes, maxcount, maxsize)
        if stop < len(order):  # the last one may continue
            if len(edges) == 2:
                width *= 2
                continue
            edges.pop()
        if checks_keys and rename is not None:
            labels = (labels_of(reader, place, dataset_name) for place in positions.tolist())
            keys = [_new_key(rename, each) for each in labels]
            starts = np.cumsum([0, *(len(key) + 1 for key in keys)])
            hashes = text_hashes(np.frombuffer(b"\0".join(keys) + b"\0", np.uint8), starts)
        for places in map(slice, edges, edges[1:]) if checks_keys else ():
            _check_distinct(reader, positions[places], hashes[places], rename, dataset_name)
        totals = np.add.reduceat(nbytes[: edges[-1]], edges[:-1])
        lengths.extend(map(finished_nbytes, totals.tolist()))
        stops.extend(start + edge for edge in edges[1:])
        start, width = stops[-1], _WINDOW
    return LazySequence(
        lambda number: PlannedShard(
            stops[number - 1] if number else 0, stops[number], lengths[number]
        ),
        range(len(stops)),
    )


def labels_of(reader: ShardReader, position: int, dataset_name: str) -> dict[str, Any]:
    """Return the key of a sample, and where it is, without reading it."""
    number, local_index = reader.locate(position)
    sample = {"__key__": index_of(reader, number).key(local_index)}
    label(sample, local_index, reader.labels(number, dataset_name))
    return sample


def _columns(reader: ShardReader, positions: IntArray) -> tuple[IntArray, WordArray]:
    """Return the length of each sample in a tar, in bytes, and the hash of its key."""
    nbytes, hashes = np.empty(len(positions), np.int64), np.empty(len(positions), np.uint64)
    order = np.argsort(positions, kind="stable")
    edges = np.searchsorted(positions[order], reader.edges)
    for count, number in enumerate(np.flatnonzero(np.diff(edges)).tolist(), 1):
        places = order[edges[number] : edges[number + 1]]
        index = index_of(reader, number)
        local = positions[places] - reader.starts[number]
        if reader.joint is not None:
            nbytes[places] = _read_nbytes(reader, number, local)
        if len(local) * _SPARSE < len(index):
            index, local = _only(index, local), np.arange(len(local))
        if reader.joint is None:
            nbytes[places] = _tar_nbytes(index, reader.fields)[local]
        hashes[places] = key_hashes(index)[local]
        if count % _RELEASED_AFTER == 0:
            reader.release_dataset_indexes()
    return nbytes, hashes


def _read_nbytes(reader: ShardReader, number: int, local: IntArray) -> IntArray:
    """Return the length of each sample in a tar, where the index does not have all fields."""
    rows, places = np.unique(local, return_inverse=True)
    found = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), _NUM_READ):
        few = rows[start : start + _NUM_READ]
        shard = reader.joint.of_samples(number, few)
        found[start : start + _NUM_READ] = _tar_nbytes(shard.index, None)[few]
    return found[places]


def _only(index: ShardIndex, local: IntArray) -> ShardIndex:
    """Return the index of some samples: their keys, fields and sizes."""
    text, starts = _stretches(
        np.frombuffer(index.text, np.uint8, index.text_stop - index.text_start, index.text_start),
        *(index.key_starts, local),
    )
    members, member_starts = _stretches(np.arange(len(index.sizes)), index.member_starts, local)
    return replace(
        index,
        text=text.tobytes(),
        text_start=0,
        text_stop=len(text),
        key_starts=starts,
        member_starts=member_starts,
        sizes=index.sizes[members],
        field_ids=index.field_ids[members],
    )


def _stretches(
    values: npt.NDArray[Any], edges: npt.NDArray[Any], numbers: IntArray
) -> tuple[npt.NDArray[Any], IntArray]:
    """Return ranges of values, concatenated, and where each begins; and the end."""
    starts = edges[numbers].astype(np.int64)
    lengths = edges[numbers + 1].astype(np.int64) - starts
    ends = np.cumsum(lengths)
    places = np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1])
    return values[places], np.concatenate(([0], ends))


def index_of(reader: ShardReader, number: int) -> ShardIndex:
    """Return the index of a shard, which is fetched if it has none."""
    known = reader.known_index(number)
    if known is not None and len(known) == reader.ends[number] - reader.starts[number]:
        return known
    index = reader.index(number)
    if index is None:  # all of its bytes are needed later, so they are fetched now
        index = reader.open(number).index
    return index


def _tar_nbytes(index: ShardIndex, wanted: frozenset[str] | None) -> IntArray:
    """Return the length of each sample of a shard in a tar, shape ``(num_samples,)``.

    Args:
        index: The samples.
        wanted: The only fields that are written; None for all.
    """
    if not len(index):
        return np.empty(0, np.int64)
    sizes, fields = index.sizes.astype(np.int64), index.field_ids
    members = BLOCK_NBYTES + sizes + -sizes % BLOCK_NBYTES + _name_headers(index)
    if wanted is not None:
        members *= np.array([field in wanted for field in index.fields])[fields]
    starts = index.member_starts.astype(np.int64)
    totals: IntArray = np.add.reduceat(np.append(members, 0), starts[:-1])
    return totals


def _name_headers(index: ShardIndex) -> IntArray:
    """Return the bytes that long names of members take in a tar; shape ``(num_members,)``."""
    starts = index.key_starts.astype(np.int64)
    nbytes = index.text_stop - index.text_start
    text = np.frombuffer(index.text, np.uint8, nbytes, index.text_start)
    is_foreign = np.add.reduceat(text[starts[0] :] >= 128, starts[:-1] - starts[0]) > 0
    num_members = np.diff(index.member_starts).astype(np.int64)
    fields = [to_bytes(field) for field in index.fields]
    lengths = np.repeat(np.diff(starts) - 1, num_members)
    lengths += np.array([len(field) for field in fields])[index.field_ids]
    is_long = lengths > _MAX_NAME_NBYTES
    is_long |= np.repeat(is_foreign, num_members)
    is_long |= np.array([not field.isascii() for field in fields])[index.field_ids]
    blocks = 1 - (-(lengths + _NAME_HEADER_NBYTES) // BLOCK_NBYTES)
    headers: IntArray = is_long * blocks * BLOCK_NBYTES
    return headers


def _edges(nbytes: IntArray, maxcount: int, maxsize: int | None) -> array[int]:
    """Return where shards begin, and the end of the last one."""
    sums = np.concatenate(([0], np.cumsum(nbytes)))
    # What the end of a tar adds to its members.
    limit = None if maxsize is None else maxsize - finished_nbytes(0)
    edges, length = array("q", [0]), len(nbytes)
    while edges[-1] < length:
        start = edges[-1]
        stop = min(start + maxcount, length)
        if limit is not None:
            fitting = int(np.searchsorted(sums, sums[start] + limit, side="right")) - 1
            stop = max(start + 1, min(stop, fitting))
        edges.append(stop)
    return edges


def _input_edges(reader: ShardReader, positions: IntArray) -> array[int]:
    """Return where the shards of the input change, and the end of the last one."""
    numbers = np.searchsorted(reader.edges[1:], positions, side="right")
    borders = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    return array("q", [0, *borders, len(numbers)])


def _new_key(rename: Rename, labels: dict[str, Any]) -> bytes:
    key: Any = rename(labels)
    if not isinstance(key, str) or not key:
        raise PackError(
            f'{urls.redact(labels["__shard__"])}: sample "{labels["__key__"]}": expected rename to '
            f"return a key, found {key!r:.80}"
        )
    return to_bytes(key)


def _check_distinct(
    reader: ShardReader, positions: IntArray, hashes: WordArray, rename: Rename | None, name: str
) -> None:
    """Raise PackError for two samples of one key."""
    ordered = np.sort(hashes)  # a tenth of the time of `np.unique`, which makes a table of hashes
    if not (ordered[1:] == ordered[:-1]).any():
        return
    first: dict[str, SampleOrigin] = {}
    # Other keys may have the same hash, so the keys themselves decide.
    for position in positions.tolist():
        labels = labels_of(reader, position, name)
        key = labels["__key__"] if rename is None else rename(labels)
        place = labels["__shard__"], position
        if first.setdefault(key, place) is not place:
            raise repeated_key_error(key, first[key], place)


def origin_text(place: SampleOrigin) -> str:
    """Return where a sample is, for a message."""
    url, index = place
    return urls.redact(url) if index < 0 else f"{urls.redact(url)} (index {index})"


def repeated_key_error(key: str, *places: SampleOrigin) -> PackError:
    """Return the error for two samples that would become one."""
    found = " and ".join(map(origin_text, places))
    return PackError(
        f'key "{key}": expected it once in an output shard, found it in {found}; they would '
        "become one sample: pass rename=, which returns another key for each"
    )


_LABELS: Final = ("__index__", "__shard__")


def mapped(
    function: Callable[[Any], Any], sample: Any, *, needs_key: bool
) -> list[Mapping[str, Any]]:
    """Return the samples that a sample becomes.

    They get the index and the shard of the sample that they were made from, unless they have their
    own, so that later errors can name it.

    Args:
        function: Takes a sample; returns a sample, None or several samples.
        sample: The sample.
        needs_key: Whether samples must have a key.

    Raises:
        TransformError: The map returned something else.
    """
    # Before the call, which may change the sample.
    is_labelled = isinstance(sample, Mapping)
    labels = {name: sample[name] for name in _LABELS if name in sample} if is_labelled else {}
    found = function(sample)
    return [{**labels, **_checked(one, found, needs_key=needs_key)} for one in listed(found)]


def _checked(one: Any, found: Any, *, needs_key: bool) -> Mapping[str, Any]:
    if not isinstance(one, Mapping):
        inside = "" if one is found else f" in a {type(found).__name__}"
        raise TransformError(
            "expected map= to return a sample (a dict with key and fields), None or several "
            f"samples, found {type(one).__name__} {one!r:.80}{inside}; return None to leave "
            "the sample out"
        )
    key = one.get("__key__")
    if needs_key and not (isinstance(key, str) and key):
        raise TransformError(
            'expected map= to return samples with a text under "__key__", found '
            f"{key!r:.80}; a map has to keep the key or return a new one"
        )
    return one


def listed(found: Any) -> Iterable[Any]:
    """Return what a map returned, in sequence; an iterator that it returned runs here."""
    if found is None:
        return ()
    if isinstance(found, Mapping | str | bytes) or not isinstance(found, Iterable):
        return (found,)
    return found
