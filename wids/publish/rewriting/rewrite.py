"""Write a dataset or view to new shards in its order, with their spec and dataset index.

The plan needs only the indexes, so mistakes are errors before anything is written. Then each
output shard is a task of its own, on any executor. With ``keep_shards`` the new spec names a shard
of the input in which nothing changes, and that shard is not copied.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

import numpy as np

from wids.errors import PackError, ShardFormatError
from wids.order.arguments import at_least
from wids.publish.describe import describe_shard
from wids.publish.output import Output, real_path
from wids.publish.rewriting.rewrite_plan import (
    Order,
    PlannedShard,
    Rename,
    SomeSamples,
    index_of,
    mapped,
    order_of,
    plan_shards,
)
from wids.publish.rewriting.rewritten_shard import RewriteTask, rewrite_shard
from wids.publish.shard_job import FinalShard, ShardJob, no_sample_error, plan_of
from wids.shards.fields.decode import Decoder
from wids.shards.reader import ShardReader
from wids.shards.sample_access import IndexedDataset, required_access
from wids.shards.specs.model import DatasetSpec
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.shard import Shard
from wids.storage.arrays import IntArray, LazySequence
from wids.storage.sizes import parse_nbytes
from wids.storage.transport import urls

_ADVICE: Final = "leave keep_shards out (--keep-shards)"


def input_numbers(reader: ShardReader, order: Order, plan: Sequence[PlannedShard]) -> list[int]:
    """Return the shard of the input that each new one replaces.

    Raises:
        PackError: The order returns to a shard, or the samples are those of a join.
    """
    if reader.joint is not None:
        raise PackError(
            f"keep_shards: expected the samples of one dataset, found joined ones; {_ADVICE}"
        )
    numbers = [
        reader.locate(int(order.positions(planned.start, planned.stop)[0]))[0] for planned in plan
    ]
    if len(set(numbers)) < len(numbers):
        again = Counter(numbers).most_common(1)[0][0]
        raise PackError(
            "keep_shards: expected the samples of each shard together, found some of "
            f"{urls.redact(reader.shards[again].url)} in several places of the order; {_ADVICE}"
        )
    return numbers


def original(
    reader: ShardReader, order: Order, planned: PlannedShard, output: Output
) -> FinalShard | None:
    """Return the shard that can be kept: the one that has just these samples, in their order.

    Raises:
        PackError: Readers of the new spec could not open it.
    """
    positions = order.positions(planned.start, planned.stop)
    number, _ = reader.locate(int(positions[0]))
    if not np.array_equal(positions, np.arange(reader.starts[number], reader.ends[number])):
        return None
    fields = reader.fields
    if fields is not None and not fields.issuperset(index_of(reader, number).fields):
        return None
    shard = reader.shards[number]
    if urls.is_local(shard.url) and not output.is_local:
        raise PackError(
            f"{urls.redact(output.spec_path)}: expected shards to keep that its readers can open, "
            f"found {shard.url}; upload the dataset and rewrite it there, or {_ADVICE}"
        )
    rule = reader.options.key_split or shard.key_split
    spec = replace(
        shard, num_samples=planned.stop - planned.start, key_split=rule, index=None, dataset=None
    )
    return FinalShard(spec, partial(_index, reader, number, rule or "first"))


def _index(reader: ShardReader, number: int, key_split: KeySplit) -> tuple[ShardIndex, int]:
    """Return the index of a shard with checksums, and its length; read it unless published."""
    reader.release_dataset_indexes()  # of the shard before
    known = reader.dataset_indexes.index(number, reader.shards[number].nbytes, key_split)
    if known is not None and len(known[0].head_crcs):
        return known
    shard = reader.open(number)
    assert isinstance(shard, Shard)  # noqa: S101 - as always, unless by range
    record = describe_shard(shard.path, key_split, reader.options.repeated)
    stated = reader.shards[number].sha256
    if stated not in (None, record.sha256):
        raise ShardFormatError(
            f"{urls.redact(reader.shards[number].url)}: expected the sha256 {stated}, found "
            f"{record.sha256}; the shard is damaged or another one"
        )
    shard_index = record.index()
    assert shard_index is not None  # noqa: S101 - it was just made
    return shard_index, record.nbytes


_DIGEST_NBYTES: Final = 16
_MAX_FACTS: Final = 1 << 16
"""Shards of the input whose facts are kept where a plan follows their order."""

Map: TypeAlias = Callable[[Any], Any]
"""Takes a sample; returns a sample, None or several samples."""


def rewrite(
    dataset: IndexedDataset,
    pattern: str | os.PathLike[str],
    *,
    maxcount: int | None = None,
    maxsize: int | str | None = None,
    map: Map | None = None,  # noqa: A002 - the word for it
    rename: Rename | None = None,
    version: str | None = None,
    name: str | None = None,
    keep_shards: bool = False,
    executor: Executor | None = None,
    resume: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> DatasetSpec:
    """Write the samples of a dataset or view into new shards, in its order.

    ``dataset[order]`` sorts, shuffles or filters, and a list of specs concatenates. Without ``map``
    fields are copied byte by byte. Each shard appears under its name when it is complete, and the
    spec last of all. After an interruption, at any point, call it again with the same arguments:
    complete shards are not written again, if no function is involved or ``version`` states that it
    is unchanged. The same arguments give the same bytes, on any executor.

    Args:
        dataset: A `ShardListDataset` or a view.
        pattern: Path or URL of the shards, with a ``%06d`` for their number. The spec is written
            beside them, ``train.json`` for ``train-%06d.tar``, and the dataset index,
            ``train.index``.
        maxcount: Maximum number of samples in a shard; None for 100,000.
        maxsize: Maximum length of a shard, in bytes or as ``"1GB"``, unless a single sample is
            larger; None for 1 GB if ``maxcount`` is None too, or else for no limit.
        map: Takes a sample as the dataset returns it; returns a sample, None to leave it out, or
            several samples. It has to return the same for the same sample. Values that are not
            bytes are encoded as `ShardWriter` does. With it ``maxcount`` and ``maxsize`` apply
            to the input, and a shard without samples is left out. The dataset's ``on_error``
            decides about samples for which it raises or returns something else.
        rename: Takes the labels of a sample (``__key__``, ``__index__``, ``__shard__``,
            ``__shardindex__``, ``__dataset__``), returns its new key. None to keep the keys.
        version: The version of all functions that samples pass through: ``map``, ``rename``, the
            dataset's transformations and its ``on_error``. Choose any text, and change it when one
            of them, or what it uses, changes. A run with ``map`` or ``rename`` resumes if it has
            the version of the interrupted run; without one it starts over, which is logged.
        name: Name of the new dataset; None for the stem of its spec.
        keep_shards: Whether to keep the shards of the input, and where each ends. A shard in which
            no sample is left out, reordered or changed is not written: the new spec names it where
            it is. Any other one is written under its number. Without ``map`` and ``rename`` only
            shards are read that are written; with them all samples are.
        executor: Where to write shards; any `concurrent.futures.Executor` whose workers see the
            same files. None for this thread.
        resume: False to start over, and write complete shards of an interrupted run again.
        storage_options: As for `ShardListDataset`, for a URL.
        progress: Whether to show a progress bar; None for in terminals and notebooks only.

    Returns:
        The spec of the new dataset.

    Raises:
        PackError: Two samples of one new shard would have the same key, no sample is left, the
            output is the input, the dataset has transformations and there is no ``map``, or
            ``keep_shards`` is passed for a join, or an order that returns to a shard.
        TransformError: A map raises, or returns something else than samples.
        FileExistsError: Another dataset is there already, or an interrupted run on other samples
            or with another ``version``.
        ValueError: An argument is invalid.

    Example:
        >>> import wids
        >>> with wids.TarWriter("letters.tar") as writer:
        ...     for letter in "abcd":
        ...         _ = writer.write({"__key__": letter, "txt": letter})
        >>> dataset = wids.ShardListDataset("letters.tar")
        >>> spec = wids.rewrite(dataset[[3, 1, 2]], "sorted/letters-%06d.tar", maxcount=2)
        >>> [shard.num_samples for shard in spec.shards]
        [2, 1]
        >>> list(wids.ShardListDataset("sorted/letters.json").keys())
        ['d', 'b', 'c']
    """
    job = prepare_rewrite(
        *(dataset, pattern, maxcount, maxsize, map, rename, name),
        version=version,
        keep_shards=keep_shards,
        resume=resume,
        storage_options=storage_options,
    )
    return job.run(executor, progress)


def prepare_rewrite(
    dataset: IndexedDataset,
    pattern: str | os.PathLike[str],
    maxcount: int | None,
    maxsize: int | str | None,
    map: Map | None,  # noqa: A002 - the word for it
    rename: Rename | None,
    name: str | None,
    *,
    version: str | None = None,
    keep_shards: bool = False,
    resume: bool,
    storage_options: Mapping[str, Any] | None,
    shuffle: int | None = None,
) -> ShardJob:
    """Decide what to write.

    The arguments are those of `wids.rewrite`, and the seed of a random order, or None. That order
    is computed and not stored, so that it takes no memory for each sample.
    """
    if keep_shards and not (maxcount is maxsize is shuffle is None):
        raise ValueError(
            "keep_shards (--keep-shards): expected it without maxcount, maxsize and --shuffle, "
            "since the shards of the input set these limits; leave it or these out"
        )
    count, limit = (None, None) if keep_shards else limits(maxcount, maxsize)
    if version is not None and not (isinstance(version, str) and version):
        raise ValueError(f'version: expected a text such as "2", found {version!r}')
    output = Output.for_pattern(pattern, "rewriting", name=name, storage_options=storage_options)
    _check_not_input(dataset.spec, output)
    if map is None:
        _check_stored(dataset)
    access = required_access(dataset)
    source = dataset.undecoded()
    if map is not None:
        source = dataset.map(partial(mapped, map, needs_key=rename is None))
    order = order_of(source, shuffle)
    plan = plan_shards(
        access.reader,
        order,
        maxcount=count,
        maxsize=limit,
        # A map may return other keys, which are compared once they are known.
        rename=rename,
        dataset_name=access.dataset_name,
        checks_keys=map is None,
    )
    if not plan:
        raise no_sample_error(output)
    has_functions = map is not None or rename is not None
    settings = (map is not None, rename is not None, version, access.dataset_name)
    is_in_order = shuffle is None and isinstance(source.positions, range)
    digest = _digest_function(
        access.reader, settings + ("keep_shards",) * keep_shards, is_in_order=is_in_order
    )
    numbers = input_numbers(access.reader, order, plan) if keep_shards else range(len(plan))

    def original_of(number: int) -> FinalShard | None:
        return original(access.reader, order, plan[number], output) if keep_shards else None

    digests, may_stay = bytearray(), bytearray()
    for number, planned in enumerate(plan):
        digests += digest(order.positions(planned.start, planned.stop))
        # Samples of an overridden class are not those that are stored.
        may_stay.append(not access.is_overridden and original_of(number) is not None)
    stored = order_of(dataset.undecoded(), None)

    def task(number: int) -> RewriteTask:
        planned = plan[number]
        return RewriteTask(
            output.names.path(numbers[number]),
            planned.nbytes,
            planned.stop - planned.start if map is None else None,
            digests[number * _DIGEST_NBYTES : (number + 1) * _DIGEST_NBYTES].hex(),
            SomeSamples(order, planned.start, planned.stop),
            rename,
            SomeSamples(stored, planned.start, planned.stop) if may_stay[number] else None,
        )

    tasks = LazySequence(task, range(len(plan)))
    originals = LazySequence(original_of, range(len(plan))) if keep_shards else ()
    extras = {name: value for name, value in dataset.spec.extras.items() if name != "__kind__"}
    is_comparable = version is not None or not has_functions
    return ShardJob(
        *(tasks, output.journal, plan_of(tasks), output, rewrite_shard, extras),
        *(resume, is_comparable, originals),
    )


def limits(maxcount: int | None, maxsize: int | str | None) -> tuple[int, int | None]:
    """Return the maximum samples and bytes of a shard; bytes are None for no limit.

    Raises:
        ValueError: One of them is not a size of a shard.
    """
    limit = parse_nbytes("1GB" if maxsize is None and maxcount is None else maxsize, "maxsize")
    if limit == 0:
        raise ValueError(f"maxsize: expected at least 1 byte, found {maxsize!r}")
    count = 100_000 if maxcount is None else at_least(1, maxcount, "maxcount")
    return count, limit


def _check_not_input(spec: DatasetSpec, output: Output) -> None:
    """Raise PackError if shards of the input could be overwritten."""
    for shard in spec.shards:
        folder, _, file_name = shard.url.rpartition("/")
        if output.names.number_of(file_name) is None:
            continue
        if real_path(folder) == real_path(output.names.folder):
            raise PackError(
                f"{urls.redact(shard.url)}: expected another output than the input, found its "
                "names in the pattern; choose another folder or another name"
            )


def _check_stored(dataset: IndexedDataset) -> None:
    """Raise PackError if the dataset does more than decode stored bytes."""
    access = required_access(dataset)
    others = [step for step in access.steps if not isinstance(step, Decoder)]
    if others or access.is_overridden:
        found = f"the transformation {others[0]!r:.80}" if others else "a __getitem__ of its own"
        raise PackError(
            f"{dataset!r}: expected a dataset without transformations, since fields are copied "
            f"byte by byte, found {found}; pass the function as map="
        )


def _digest_function(
    reader: ShardReader, settings: tuple[str | bool | None, ...], *, is_in_order: bool
) -> Callable[[IntArray], bytes]:
    """Return the function from positions to the digest of what a shard of these samples is made of.

    Of that are the identities of the shards that are read, positions and settings. Functions are
    not: only their authors know whether these still do the same.

    Args:
        reader: Reads the samples.
        settings: What else is compared.
        is_in_order: Whether few shards are asked for twice, so that few have to be kept.
    """
    facts = (*settings, *sorted(reader.fields or ()))
    base = hashlib.blake2b(_encoded(facts), digest_size=_DIGEST_NBYTES)

    @lru_cache(_MAX_FACTS if is_in_order else None)
    def shard_facts(number: int) -> bytes:
        shard = reader.shards[number]
        facts = (number, shard.url, shard.num_samples, shard.nbytes)
        return _encoded((*facts, reader.content(number)))

    def digest(positions: IntArray) -> bytes:
        found = base.copy()
        numbers = np.unique(np.searchsorted(reader.edges[1:], positions, side="right"))
        for number in numbers.tolist():
            found.update(shard_facts(number))
        found.update(np.ascontiguousarray(positions, np.int64).tobytes())
        return found.digest()

    return digest


def _encoded(facts: tuple[Any, ...]) -> bytes:
    return repr(facts).encode("utf-8", "surrogatepass")
