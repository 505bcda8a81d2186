"""Look at the samples at the beginning of a shard that need not have an index.

A `Peek` is what notebooks, pages and commands need of a dataset, for one shard at a time, since
positions in the dataset are not known before its shards are counted. `wids.shards.glimpse` decides
what is read of a shard, and when.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from wids.dataset.access import Transformation, as_transformations, locate_error
from wids.dataset.reprs import show_in_notebooks
from wids.errors import printable
from wids.shards.glimpse import Glimpse, ShardLook
from wids.shards.read_options import ReadOptions, cache_folder, cache_limit
from wids.shards.reader import ShardReader
from wids.shards.specs.documents import is_document
from wids.shards.specs.loader import Shards, load_with
from wids.shards.specs.model import DatasetSpec
from wids.shards.specs.naming import dataset_name
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.raw_samples import normalized_index
from wids.storage.cache.store import Cache
from wids.storage.fetch import Fetcher
from wids.storage.reading_threads import latest
from wids.storage.transport import urls
from wids.storage.transport.local import Opener

if TYPE_CHECKING:
    from wids.look.notebook import Gallery

_MAX_KEPT: Final = 8
"""The number of recently used shards for which to keep what was read."""
_MAX_SEARCHED_NBYTES: Final = 100_000_000
"""Bytes to read to find one sample; for one farther into the dataset, an index is worth making."""


def peek(
    shards: Shards,
    shard: int = 0,
    *,
    base: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    transformations: str | Sequence[str | Transformation] | None = "PIL",
    key_split: KeySplit | None = None,
    allow_pipe: bool = False,
    allow_pickle: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    handlers: Mapping[str, Opener] | None = None,
) -> Peek:
    """Look at the samples at the beginning of a shard, which need not have an index.

    Of a remote shard the first megabyte is read by range (3 MiB from a server that sends whole
    files only), and no shard is downloaded. A notebook shows the result as cards.

    Args:
        shards: The shards, in any form that `ShardListDataset` takes.
        shard: Number of the shard to look at; negative from the end.
        base: Folder or URL that relative references start from, instead of the spec's.
        cache_dir: Folder of copies and indexes, as for `ShardListDataset`.
        transformations: As for `ShardListDataset`.
        key_split: As for `ShardListDataset`.
        allow_pipe: Whether a spec may name ``pipe:`` commands.
        allow_pickle: Whether to decode pickles, and thereby execute the code in them.
        storage_options: As for `ShardListDataset`.
        handlers: As for `ShardListDataset`.

    Raises:
        SpecError: ``shards`` is malformed.
        IndexError: There is no shard of this number.
        FetchError: The shard cannot be read.
        ShardFormatError: It is not a tar.

    Example:
        >>> import wids
        >>> with wids.TarWriter("cats.tar") as writer:
        ...     for n in range(3):
        ...         _ = writer.write({"__key__": f"cat{n}", "txt": f"cat {n}"})
        >>> samples = wids.peek("cats.tar")
        >>> samples[1][".txt"]
        'cat 1'
        >>> [sample["__key__"] for sample in samples]
        ['cat0', 'cat1', 'cat2']
    """
    folder = cache_folder(cache_dir)
    fetcher = Fetcher(storage_options, handlers, os.path.join(folder, "shards"))
    spec = load_with(fetcher, shards, base, allow_pipe=allow_pipe)
    limit_nbytes = cache_limit(None, keep=False, shards=spec.shards)
    store = Cache(folder, fetcher, limit_nbytes=limit_nbytes)
    reader = ShardReader(spec, store, ReadOptions("range", key_split=key_split))
    steps = as_transformations(transformations, allow_pickle=allow_pickle)
    show_in_notebooks()
    number = _shard_number(shard, len(spec.shards))
    return Peek(spec, reader, number, steps, create_command(shards, spec))


def _shard_number(number: int, count: int) -> int:
    """Return the number of a shard counted from the start; a negative one counts from the end."""
    try:
        return range(count)[number]
    except (IndexError, TypeError) as error:
        text = f"shard: expected a number from {-count} to {count - 1}, found {number!r:.80}"
        raise type(error)(text) from None


def create_command(shards: Shards, spec: DatasetSpec) -> str:
    """Return the command that makes an index of these shards, without secrets."""
    name = spec.name or dataset_name(spec.shards[0].url)
    if isinstance(shards, str | os.PathLike):
        named = os.fspath(shards)
        name = f"{name}-indexed" if is_document(named) else name
        return f"wids create {shlex.quote(urls.redact(named))} -o {shlex.quote(name)}.json"
    return f'wids.build_spec(shards, dataset_index="{name}.index").save("{name}.json")'


class Peek:
    """The samples at the beginning of one shard: a sequence of those that were found so far.

    `peek` makes one, which reads the shard when samples are first wanted. Safe to use from any
    number of threads.

    Args:
        spec: The dataset.
        shards: Its shards, read by range.
        number: The number of the shard.
        transformations: The callables that a sample passes through.
        create_command: The command that makes an index of all shards, for people to run.

    Attributes:
        create_command: As passed.
        spec: The spec of this shard alone.
        number: As passed.
        transformations: As passed.
        dataset_name: Name of the dataset, or ``""``.
        title: That name, or one made of the name of the first shard.

    Example:
        >>> samples = wids.peek("cats.tar")
        >>> samples.is_complete, len(samples)
        (True, 3)
    """

    is_view = False

    def __init__(
        self,
        spec: DatasetSpec,
        shards: ShardReader,
        number: int,
        transformations: Sequence[Transformation],
        create_command: str,
    ) -> None:
        self.transformations = list(transformations)
        self.create_command = create_command
        self._whole_spec, self._shards = spec, shards
        self._look_at = latest(partial(ShardLook, shards), _MAX_KEPT)
        self._fields: Sequence[str] | None = None
        self._turn_to(number)

    def _turn_to(self, number: int) -> None:
        spec = self._whole_spec
        shard_spec = spec.shards[number]
        self.number = number
        self.spec = replace(spec, shards=(shard_spec,), index=None, dataset_indexes=())
        self.dataset_name = shard_spec.dataset or spec.name
        self.title = self.dataset_name or dataset_name(spec.shards[0].url)

    # The shards.

    @property
    def num_shards(self) -> int:
        """Number of shards in the dataset."""
        return len(self._whole_spec.shards)

    @property
    def url(self) -> str:
        """Path or URL of the shard."""
        return self.spec.shards[0].url

    @property
    def has_all_indexes(self) -> bool:
        """Whether every shard has an index, so that `ShardListDataset` downloads none to open."""
        shards = self._shards
        return all(
            shards.is_in_dataset_index(n) or shards.has_index(n) for n in range(self.num_shards)
        )

    def shard(self, number: int) -> Peek:
        """Return the samples at the beginning of another shard.

        Raises:
            IndexError: There is no shard of this number.

        Example:
            >>> len(wids.peek(["cats.tar", "cats.tar"]).shard(1))
            3
        """
        other = copy(self)
        other._turn_to(_shard_number(number, self.num_shards))  # noqa: SLF001 - its class
        return other

    def make_index(self) -> None:
        """Make the index of the shard, and leave it in the cache folder for datasets.

        Its headers are read by range; from a server without ranges, the shard is downloaded into
        the cache.

        Raises:
            FetchError: The shard cannot be read, or the index cannot be stored.
            ShardFormatError: It is not a complete, plain tar.

        Example:
            >>> wids.peek("cats.tar").make_index()  # does nothing, as this shard is local
        """
        self.reader.make_index()

    # This shard.

    @property
    def glimpse(self) -> Glimpse | None:
        """What was found in the shard; None if it has an index."""
        return self.reader.glimpse

    @property
    def num_read_nbytes(self) -> int:
        """Bytes that were read to find samples; 0 if the shard has an index."""
        glimpse = self.glimpse
        return 0 if glimpse is None else glimpse.num_read_nbytes

    @property
    def is_complete(self) -> bool:
        """Whether these are all samples of the shard."""
        glimpse = self.glimpse
        return glimpse is None or glimpse.is_complete

    def read_on(self, num_samples: int) -> int:
        """Find more samples of the shard, and return how many are known.

        Args:
            num_samples: How many are wanted. It stops early after 24 requests or about 6 MB; the
                next call continues.

        Raises:
            FetchError: The shard cannot be read.

        Example:
            >>> wids.peek("cats.tar").read_on(100)
            3
        """
        self.reader.reach(num_samples)
        return len(self)

    # A sequence of samples.

    def __len__(self) -> int:
        return len(self.reader.index())

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([normalized_index(index, len(self), repr(self))])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        with self.reader.open(fields=self._fields) as shard:
            samples = shard.read_many(indices, labels=(0, self.url, self.dataset_name))
        return [self._transformed(i, sample) for i, sample in zip(indices, samples, strict=True)]

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))  # one request each, or none

    def _transformed(self, index: int, sample: dict[str, Any]) -> Any:
        url, key = self.url, sample["__key__"]
        del sample["__index__"]  # the samples of previous shards are not counted
        try:
            for transform in self.transformations:
                sample = transform(sample)
        except Exception as error:
            raise locate_error(error, sample, url, key, index) from error
        return sample

    def find_key(self, key: str) -> int:
        """Return the position of the first sample with a key, among those that are known.

        Raises:
            KeyError: None of them has the key.

        Example:
            >>> wids.peek("cats.tar").find_key("cat2")
            2
        """
        found = self.reader.index().find(key)
        if found < 0:
            known = "" if self.is_complete else " among those that were read"
            raise KeyError(f"{self!r}: no sample{known} has the key {key!r}")
        return found

    # For pages and notebooks.

    @property
    def reader(self) -> ShardLook:
        """This shard."""
        return self._look_at(self.number)

    @property
    def lengths(self) -> list[int]:
        """The number of known samples, as a list for one shard."""
        return [len(self)]

    def locate(self, index: int) -> tuple[int, int]:
        """Return 0, since there is one shard here, and the sample's position in it."""
        return 0, index

    def only(self, fields: Sequence[str] | None) -> Peek:
        """Return the same samples with only these fields, undecoded; with None as they are."""
        view = copy(self)
        if fields is not None:
            view._fields, view.transformations = fields, []
        return view

    def __enter__(self) -> Peek:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing is held open."""

    def show(self, num_samples: int = 12) -> Gallery:
        """Return a gallery of the first samples, which displays itself in a notebook.

        Only small pictures and texts are read.

        Example:
            >>> wids.peek("cats.tar").show(2).indices
            [0, 1]
        """
        from wids.look import notebook
        from wids.look.preview import num_affordable

        self.read_on(num_samples)
        return notebook.gallery(self, num_affordable(self, 0, num_samples), None, None)

    def _repr_html_(self) -> str:
        from wids.look import notebook

        return notebook.peek_html(self)

    def __repr__(self) -> str:
        return printable(
            f"<Peek {self.title!r}: the beginning of shard {self.number} of {self.num_shards}>"
        )


def find_sample(shards: Peek, index: int, key: str | None, shard: int | None) -> tuple[Peek, int]:
    """Return the shard of a sample and its position there.

    Shards before it are counted by their headers, unless the spec states their counts.

    Args:
        shards: Any shard of the dataset.
        index: The number of the sample, from 0 on.
        key: The key of the sample instead, or None.
        shard: The number of the only shard to look in; None for all, or for the first one if the
            sample is named by its key.

    Raises:
        IndexError: There is no such sample, or it is too far from the beginning.
        KeyError: No sample that was found has the key.
    """
    if key is not None:
        here = shards.shard(shard or 0)
        return here, here.find_key(key)
    if index < 0:
        raise _uncounted_error(shards, f"expected a number from 0 on, found {index}")
    local_index, read_nbytes = index, 0
    for number in range(shards.num_shards) if shard is None else [shard]:
        here = shards.shard(number)
        stated = here.spec.shards[0].num_samples
        if shard is None and stated is not None and local_index >= stated:
            local_index -= stated
            continue
        read_nbytes += _read_to(here, local_index, _MAX_SEARCHED_NBYTES - read_nbytes)
        if local_index < len(here):
            return here, local_index
        local_index -= len(here)
    raise IndexError(f"{shards.title}: index {index} is out of range")


def _read_to(here: Peek, local_index: int, limit_nbytes: int) -> int:
    """Read headers until a sample is known or the shard ends; return how many bytes were read."""
    while here.read_on(local_index + 1) <= local_index and not here.is_complete:
        glimpse = here.glimpse
        if glimpse is None or not glimpse.can_continue:
            raise _uncounted_error(here, "" if glimpse is None else glimpse.remark())
        if glimpse.num_read_nbytes > limit_nbytes:
            raise _uncounted_error(here, "the sample is too far from the beginning")
    return here.num_read_nbytes


def _uncounted_error(shards: Peek, reason: str) -> IndexError:
    return IndexError(
        f"{shards.title}: {reason}; the samples are not counted yet: {shards.create_command} makes "
        "an index"
    )
