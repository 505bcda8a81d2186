"""Write a part of a view to one new shard, published when complete, and describe it.

Runs on the workers of an executor. Samples are read a few at a time, in the order in which they are
written, so that memory does not grow with the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import chain
from typing import Any, Final, TypeAlias

from wids.errors import PackError, WidsError
from wids.publish.describe import ShardRecord
from wids.publish.members import ToMembers, member_encoder, members_as_read
from wids.publish.new_shard import ShardTask, write_published
from wids.publish.rewriting.copying_tar import CopyingTar
from wids.publish.rewriting.mapped import listed
from wids.publish.rewriting.orders import SomeSamples
from wids.publish.rewriting.rewrite_plan import Place, Rename, place_text, repeated_key_error
from wids.publish.rewriting.stored_samples import View, stored_members
from wids.publish.threaded_tar import Publishing, ThreadedTar
from wids.storage.transport import urls

_BATCH_NBYTES: Final = 8 << 20
"""About how many bytes of samples are read at a time."""
_MAX_BATCH: Final = 1024

Sample: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class RewriteTask(ShardTask):
    """One shard to write.

    Attributes:
        num_samples: How many samples it will have; None if a map decides. Then values may have to
            be encoded; otherwise stored bytes are copied, also those under ``.gz`` that are not
            gzip data.
        samples: The samples. What is read may also be None, or several samples.
        rename: Returns the new key of a sample; None to keep its key.
        stored: All samples of a shard of the input, as they are stored: if these are what would be
            written, that shard is kept. None to write in any case.
    """

    samples: SomeSamples
    rename: Rename | None
    stored: SomeSamples | None = None

    @property
    def is_mapped(self) -> bool:
        """Whether samples pass through a map."""
        return self.num_samples is None


def rewrite_shard(task: RewriteTask, *, how: Publishing) -> ShardRecord:
    """Write a shard and return its description; one without samples, or kept, is not written.

    Args:
        task: The shard.
        how: How it is published.

    Raises:
        PackError: Two samples have the same key, or a sample cannot be stored.
        WidsError: A sample cannot be read.
    """
    if task.stored is not None and _is_same(task, task.stored):
        count = task.stored.stop - task.stored.start
        return ShardRecord(task.path, "first", None, count, 0, None, b"", task.source)
    view: View = task.samples.view()
    first: dict[str, Place] = {}
    samples: Iterator[Any] = iter(_batches(task, len(view)))
    append: Callable[[CopyingTar, Any], object] = partial(_copy, task, view, first)
    if task.is_mapped:
        samples = chain.from_iterable(_renamed(task, view, batch, first) for batch in samples)
        append = partial(_append, member_encoder(None))
    head = next(samples, None)
    if head is None:
        return ShardRecord(task.path, "first", None, 0, 0, None, b"", task.source)
    return write_published(task, chain((head,), samples), append, CopyingTar, how)


def _copy(
    task: RewriteTask, view: View, first: dict[str, Place], writer: CopyingTar, batch: range
) -> None:
    """Append stored samples as they are, or, where that is not possible, one by one."""
    if task.rename is None:
        stored = stored_members(view, batch.start, batch.stop)
        if stored is not None and writer.append_stored(stored):
            return
    for sample in _renamed(task, view, batch, first):
        _append(members_as_read, writer, sample)


def _is_same(task: RewriteTask, stored: SomeSamples) -> bool:
    """Whether all samples are written as they are stored."""
    if not task.is_mapped and task.rename is None:
        return True
    before = replace(task, samples=stored, rename=None, num_samples=stored.stop - stored.start)
    view, stored_view = task.samples.view(), stored.view()
    try:
        return all(
            _members(task, view, batch) == _members(before, stored_view, batch)
            for batch in _batches(task, len(view))
        )
    except (TypeError, ValueError):  # writing the sample raises it again, with its place
        return False


def _members(task: RewriteTask, view: View, batch: range) -> list[tuple[str, dict[str, bytes]]]:
    to_members = member_encoder(None) if task.is_mapped else members_as_read
    return [to_members(sample) for _, sample in _renamed(task, view, batch, {})]


def _append(to_members: ToMembers, writer: ThreadedTar, placed: tuple[Place, Sample]) -> None:
    place, sample = placed
    try:
        writer.append(*to_members(sample))
    except WidsError:
        raise
    except (TypeError, ValueError) as error:
        raise PackError(
            f"{place_text(place)}: {error}; pass rename= for other keys, map= for other fields"
        ) from error


def _renamed(
    task: RewriteTask, view: View, batch: range, first: dict[str, Place]
) -> Iterator[tuple[Place, Sample]]:
    """Yield samples under their new keys, each key once, with their places.

    Args:
        task: The shard.
        view: Its samples.
        batch: Which of them.
        first: Where the keys so far come from.
    """
    for sample in _samples(task.path, view, batch):
        place = sample.get("__shard__", task.path), sample.get("__index__", -1)
        key = sample.get("__key__") if task.rename is None else task.rename(dict(sample))
        if not isinstance(key, str) or not key:
            raise PackError(
                f'{place_text(place)}: expected a sample with a text under "__key__", found '
                f"{key!r:.80}; keep the key or return a new one"
            )
        if first.setdefault(key, place) is not place:
            raise repeated_key_error(key, first[key], place)
        # The bytes of a field that was not decoded, and any other value as it is.
        fields = {
            name: value.getvalue() if isinstance(value, BytesIO) else value
            for name, value in sample.items()
            if not name.startswith("__")
        }
        if not fields:
            raise PackError(
                f'{place_text(place)}: sample "{key}": expected at least one field to write, found '
                "none; choose fields that all samples have, or leave this one out"
            )
        yield place, {"__key__": key} | fields


def _batches(task: RewriteTask, length: int) -> Iterator[range]:
    """Yield the samples of a shard in batches."""
    mean_nbytes = max(task.nbytes // max(length, 1), 1)
    width = max(1, min(_MAX_BATCH, _BATCH_NBYTES // mean_nbytes))
    for start in range(0, length, width):
        yield range(start, min(start + width, length))


def _samples(path: str, view: View, batch: range) -> Iterator[Sample]:
    for found in view.__getitems__(list(batch)):
        for sample in listed(found):
            if not isinstance(sample, Mapping):
                raise PackError(
                    f"{urls.redact(path)}: expected on_error, or a dataset of another class, "
                    "to return a sample, None or several samples, found "
                    f"{type(sample).__name__} {sample!r:.80}"
                )
            yield sample
