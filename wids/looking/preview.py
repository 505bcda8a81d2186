"""A dataset → what to show of it at first: a summary, a gallery of samples.

Fields and their sizes come from indexes, and of samples only small pictures and texts are read, by
range where shards are remote; nothing is fetched whole to be looked at.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from wids.errors import WidsError
from wids.files.sizes import nbytes_text
from wids.looking.field_stats import (
    FieldStats,
    compute_field_stats,
    field_sizes,
    is_small,
    preview_fields,
)
from wids.looking.html import card_html, dataset_html, gallery_html, sample_html
from wids.looking.text import printable, shortened
from wids.specs.model import DatasetSpec
from wids.tars.index import ShardIndex

_MAX_SHARDS: Final = 16
"""Shards whose indexes are looked at for statistics of fields."""
_MAX_MEMBERS: Final = 20_000
"""Members after which they are enough: an index may have to be fetched."""
_MAX_LOOKED_AT: Final = 1000
_NUM_FIRST: Final = 6


class Browsable(Protocol):
    """What is needed of a dataset."""

    spec: DatasetSpec
    dataset_name: str

    def __len__(self) -> int:
        """Give the number of samples."""

    def __getitem__(self, index: int) -> Any:
        """Read one sample, transformed."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Read some samples."""

    def locate(self, index: int) -> tuple[int, int]:
        """Give the number of a sample's shard, and its place there."""

    def is_here(self, number: int) -> bool:
        """Tell whether a shard can be read without fetching it."""

    def shard_index(self, number: int) -> ShardIndex | None:
        """Give the index of a shard, or None where it would have to be fetched for that."""

    def only(self, fields: Sequence[str] | None) -> AbstractContextManager[Browsable]:
        """Give the same samples without fetching shards; with these fields only, undecoded."""

    def find_key(self, key: str) -> int:
        """Return the index of a key."""

    @property
    def lengths(self) -> list[int]:
        """Samples in each shard."""

    @property
    def is_view(self) -> bool:
        """Whether it has only some samples of its shards."""

    @property
    def cache_folder(self) -> str:
        """The cache folder."""


class Gallery:
    """Samples to look at: shows itself in a notebook, and as text elsewhere.

    Attributes:
        indices: The samples, as indices of the dataset or view that was asked.
    """

    def __init__(self, indices: list[int], html: str, text: str) -> None:
        self.indices = indices
        self._html = html
        self._text = text

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return self._text


def field_stats(dataset: Browsable) -> list[FieldStats]:
    """Give the fields of a dataset, by the indexes of some shards that are spread over it."""
    return compute_field_stats(_indexes(dataset))


def _indexes(dataset: Browsable) -> Iterator[ShardIndex]:
    num_shards = len(dataset.spec.shards)
    count = min(num_shards, _MAX_SHARDS)
    num_members = 0
    for at in range(count):
        if num_members > _MAX_MEMBERS:
            return
        try:
            index = dataset.shard_index(at * num_shards // count)
        except WidsError:  # a shard that is broken is told when it is read
            continue
        if index is not None:
            num_members += len(index.sizes)
            yield index


def cards(dataset: Browsable, indices: Sequence[int], fields: Sequence[str]) -> list[str]:
    """Give cards of samples: of these fields the small ones are read, all others are named."""
    found: dict[int, str] = {}
    groups: dict[tuple[str, ...], list[int]] = {}
    rests: dict[int, dict[str, int]] = {}
    for index in indices:
        try:
            known = _members(dataset, index)
        except WidsError as error:
            found[index] = _problem(index, error)
            continue
        wanted = tuple(f for f in fields if known is None or is_small(f, known.get(f, 0)))
        rests[index] = {name: n for name, n in (known or {}).items() if name not in wanted}
        groups.setdefault(wanted, []).append(index)
    for wanted, group in groups.items():
        with dataset.only(wanted) as small:
            for index, sample in zip(group, _samples(small, group), strict=True):
                if isinstance(sample, Exception):
                    found[index] = _problem(index, sample)
                else:
                    found[index] = card_html(sample, rests[index])
    return [found[index] for index in indices]


def _members(dataset: Browsable, index: int) -> dict[str, int] | None:
    number, local_index = dataset.locate(index)
    known = dataset.shard_index(number)
    return None if known is None else field_sizes(known, local_index)


def _samples(small: Browsable, indices: Sequence[int]) -> list[Any]:
    try:
        return small.__getitems__(indices)
    except WidsError:  # one by one, to show those that can be read
        return [_sample_or_error(small, index) for index in indices]


def _sample_or_error(dataset: Browsable, index: int) -> Any:
    try:
        return dataset[index]
    except WidsError as error:
        return error


def _problem(index: int, error: Exception) -> str:
    text = shortened(printable(str(error)), 300)
    return card_html({"__index__": index}, problem=text)


def gallery(
    dataset: Browsable,
    num_samples: int,
    seed: int | None,
    where: Callable[[Any], Any] | None,
) -> Gallery:
    """Give a gallery of the first samples, of random ones, or of those that a predicate picks."""
    total, num_samples = len(dataset), max(num_samples, 0)
    indices: Sequence[int] = range(total)
    if seed is not None:
        count = min(total, num_samples if where is None else _MAX_LOOKED_AT)
        indices = random.Random(seed).sample(range(total), count)  # noqa: S311 - no secret
    note = ""
    if where is None:
        chosen = list(indices[:num_samples])
    else:
        looked_at, chosen = indices[:_MAX_LOOKED_AT], []
        num_looked_at = 0
        with dataset.only(None) as whole:
            for index in looked_at:
                if len(chosen) == num_samples:
                    break
                num_looked_at += 1
                sample = _sample_or_error(whole, index)
                if not isinstance(sample, WidsError) and where(sample):
                    chosen.append(index)
        note = f"{len(chosen)} of {num_looked_at:,} samples that were looked at"
    fields = preview_fields(field_stats(dataset))
    html = gallery_html(cards(dataset, chosen, fields), note)
    return Gallery(chosen, html, f"<Gallery of {len(chosen)} samples: {chosen}>")


def summary_html(dataset: Browsable) -> str:
    """Give a dataset as HTML: what it has, where it is, and its first samples."""
    stats = field_stats(dataset)
    shards = dataset.spec.shards
    nbytes = [shard.nbytes for shard in shards if shard.nbytes is not None]
    num_looked_at = min(len(shards), _MAX_SHARDS)
    num_here = sum(dataset.is_here(n) for n in range(num_looked_at))
    facts = {
        "samples": f"{len(dataset):,}",
        "shards": f"{len(shards):,}",
        "size": nbytes_text(sum(nbytes)) if len(nbytes) == len(shards) else "not stated",
        "on this machine": _amount(num_here, num_looked_at, len(shards)),
        "cache": dataset.cache_folder,
        "index": "published" if dataset.spec.index else "none published",
    }
    rows = [(s.field, f"{s.share:.0%}", nbytes_text(s.median_nbytes)) for s in stats]
    note = ""
    if not stats:
        note = "No index is known, so that fields are not; wids create makes one."
    elif len(shards) > _MAX_SHARDS:
        note = "Fields as in some of the shards."
    shown = ""
    if stats and len(dataset):
        first = list(range(min(len(dataset), _NUM_FIRST)))
        shown = gallery_html(cards(dataset, first, preview_fields(stats)))
    title = dataset.dataset_name or "dataset"
    return dataset_html(title, facts, rows, note, shown)


def _amount(num_here: int, num_looked_at: int, total: int) -> str:
    if num_here in (0, num_looked_at):
        return "all shards" if num_here else "no shards"
    about = "about " if num_looked_at < total else ""
    return f"{about}{num_here * total // num_looked_at:,} shards"


def show_samples_in_notebooks() -> None:
    """Have IPython show dicts that are samples as such; other dicts, and everyone else, see none.

    Called when a dataset is made, and does nothing where there is no IPython.
    """
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    if shell is not None:
        formatter = shell.display_formatter.formatters["text/html"]
        before = formatter.lookup_by_type(dict) if dict in formatter else None
        if not isinstance(before, _SampleFormatter):
            formatter.for_type(dict, _SampleFormatter(before))


class _SampleFormatter:
    """Shows dicts that are samples, and leaves others to what showed them before."""

    def __init__(self, before: Callable[[Any], str | None] | None) -> None:
        self._before = before

    def __call__(self, value: dict[Any, Any]) -> str | None:
        if "__key__" in value and "__shardindex__" in value:
            return sample_html(value)
        if self._before is not None:
            return self._before(value)
        own = getattr(value, "_repr_html_", None)  # of a subclass
        return own() if callable(own) else None
