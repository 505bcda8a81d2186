"""Show the summary, a gallery and the samples of a dataset in a notebook.

`preview` chooses what is worth showing, and `html` renders it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from wids.errors import WidsError
from wids.look import preview
from wids.look.html import dataset_html, gallery_html
from wids.look.page.questions import Selection
from wids.look.text import class_names, classes_text
from wids.order.arguments import at_least
from wids.shards.sample_access import (
    MAX_SHARDS,
    FieldStats,
    IndexedDataset,
    ReadableDataset,
    field_stats,
)
from wids.storage.remote_lengths import known_sum
from wids.storage.sizes import count_text, nbytes_text
from wids.storage.transport import urls

_MAX_TESTED: Final = 1000
"""Samples that a predicate is tried on."""
_MAX_ROWS: Final = 2_000_000
"""Rows of a saved table that are read for a summary, in about a second."""
_NUM_FIRST: Final = 6
"""Samples in the summary of a dataset."""

_WITHOUT_INDEX: Final = (
    "wids.peek() shows the first samples of a shard without one; `wids create` makes an index"
)


@dataclass(frozen=True, eq=False, repr=False)
class Gallery:
    """Samples to look at. A notebook shows them as cards, a terminal lists their indices.

    Attributes:
        indices: The samples, as indices of the dataset or view whose `show` was called.
    """

    indices: list[int]
    _next: Callable[[Gallery], Gallery]
    _html: str
    _previous: Gallery | None

    def next(self) -> Gallery:
        """Return the gallery of the next samples; it is empty after the last one.

        Example:
            >>> dataset.show(2).next().indices
            [2]
        """
        return self._next(self)

    def previous(self) -> Gallery:
        """Return the previous gallery; the first one returns itself.

        Example:
            >>> dataset.show(2).next().previous().indices
            [0, 1]
        """
        return self._previous or self

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return f"<Gallery of {count_text(len(self.indices), 'sample')}: {self.indices}>"


def gallery(
    dataset: ReadableDataset,
    num_samples: int,
    seed: int | None,
    where: Callable[[Any], Any] | None,
    start: int = 0,
    previous: Gallery | None = None,
) -> Gallery:
    """Return a gallery of some of the candidates, which are all samples in the order of a seed.

    Args:
        dataset: The dataset or view.
        num_samples: Most samples to show.
        seed: The random order of the candidates; None for the order of the dataset.
        where: Whether to show a sample; None for all.
        start: How many candidates the previous galleries have used.
        previous: The previous gallery.
    """
    num_samples = at_least(0, num_samples, "num_samples")
    if where is not None and not callable(where):
        raise TypeError(f"where: expected a callable that takes a sample, found {where!r:.80}")
    total = len(dataset)
    candidates = Selection(range(total), total, seed)
    if where is None:
        indices = candidates.page(start, num_samples)
        stop, note = start + len(indices), ""
        if indices and total > len(indices):
            note = _range_text(start, stop, total, seed)
    else:
        tested = candidates.page(start, _MAX_TESTED)
        indices, num_tested = _accepted(dataset, tested, num_samples, where)
        stop = start + num_tested
        note = f"{len(indices)} of {count_text(num_tested, 'sample')} tested"
    if start and start >= total:
        note = "no more samples"
    elif note and num_samples and stop < total:
        note += "; next() shows more"
    shown = [index for index in indices if _has_index(dataset, index)]
    if len(shown) < len(indices):
        # One sentence instead of the same error on each card.
        unread = count_text(len(indices) - len(shown), "sample")
        missing = f"{unread} not shown: no index of the shard is available; {_WITHOUT_INDEX}"
        note = f"{note}; {missing}" if where is not None else missing
    html = _gallery(dataset, shown, field_stats(dataset), note)
    following = partial(gallery, dataset, num_samples, seed, where, stop)
    return Gallery(shown, following, html, previous)


def _range_text(start: int, stop: int, total: int, seed: int | None) -> str:
    """Return which candidates are shown; of a random order, how many and not their indices."""
    of_all = f"{stop:,} of {count_text(total, 'sample')}"
    if seed is None:
        return f"samples {start:,} to {stop - 1:,} of {total:,}" if start else of_all
    shown = f"{start + 1:,} to {of_all}" if start else of_all
    return f"{shown}, in the random order of seed {seed}"


def _gallery(
    dataset: ReadableDataset, indices: Sequence[int], stats: Iterable[FieldStats], note: str = ""
) -> str:
    shown = preview.cards(dataset, indices, [each.field for each in stats])
    problems = [
        f"{count_text(count, 'sample')}: {problem}"
        for problem, count in preview.problems_of(shown).items()
    ]
    return gallery_html((card.html for card in shown), note, problems)


def _has_index(dataset: ReadableDataset, index: int) -> bool:
    try:
        return dataset.reader.index(dataset.locate(index)[0]) is not None
    except WidsError:  # its card has the error
        return True


def _accepted(
    dataset: ReadableDataset,
    candidates: Sequence[int],
    num_samples: int,
    where: Callable[[Any], Any],
) -> tuple[list[int], int]:
    """Return the first samples that a predicate accepts, and how many samples were tested."""
    accepted: list[int] = []
    num_tested = 0
    # The predicate is the user's and expects transformed samples. `only` also keeps a search
    # through a thousand samples from downloading their shards.
    with dataset.only(None) as transformed:
        for index in candidates:
            if len(accepted) == num_samples:
                break
            num_tested += 1
            try:
                sample = transformed[index]
            except WidsError:
                continue
            if where(sample):
                accepted.append(index)
    return accepted, num_tested


def summary_html(dataset: ReadableDataset) -> str:
    """Return a dataset as HTML: its size, its location, its fields and its first samples."""
    stats = field_stats(dataset)
    num_shards = len(dataset.spec.shards)
    note = ""
    if not stats:
        note = f"No index is available, so the fields are unknown; {_WITHOUT_INDEX}."
    elif num_shards > MAX_SHARDS:
        note = "Statistics of fields are from some of the shards."
    first_samples = ""
    if stats and len(dataset):
        first = range(min(len(dataset), _NUM_FIRST))
        first_samples = _gallery(dataset, first, stats)
    title = dataset.dataset_name or "dataset"
    return dataset_html(title, _facts(dataset), stats, note, first_samples, _distributions(dataset))


def _distributions(dataset: ReadableDataset) -> str:
    """Return how the columns of the saved table are distributed, or why they are not shown."""
    table = dataset.spec.table
    # A table is not fetched for this, since no user asked for it.
    if table is None or not urls.is_local(table.url):
        return ""
    # Imported here, as they need a table, which few datasets have, and pyarrow.
    from wids.look.page.tally import distributions_text
    from wids.tables.table_file import load_table

    if not isinstance(dataset, IndexedDataset):  # a glimpse of some shards
        return ""
    if len(dataset.reader) > _MAX_ROWS:
        return (
            "The saved table is long: `wids info --columns` shows how its columns are distributed."
        )
    try:
        classes = class_names(dataset.spec)
        return distributions_text(load_table(dataset), classes=classes)
    except (WidsError, ModuleNotFoundError) as error:
        return str(error)


def peek_html(peek: preview.Peekable) -> str:
    """Return the beginning of a shard as HTML: what is known of it, and its first samples."""
    peek.read_on(_NUM_FIRST)
    stats = field_stats(peek)
    glimpse = peek.glimpse
    facts = {
        "shard": f"{peek.number:,} of {peek.num_shards:,}, from 0"
        if peek.num_shards > 1
        else "1 of 1",
        "known": known_text(peek),
        "location": urls.redact(peek.url),
    }
    note = ""
    if glimpse is not None:
        note = f"{glimpse.remark()}. " if glimpse.remark() else ""
        note += f"The samples are not counted yet: {peek.create_command} makes an index."
    first = range(preview.num_affordable(peek, 0, min(len(peek), _NUM_FIRST)))
    samples = _gallery(peek, first, stats) if len(peek) else ""
    return dataset_html(peek.title, facts, stats, note, samples)


def known_text(peek: preview.Peekable) -> str:
    """Return how many samples of a shard are known."""
    return count_text(len(peek), "sample") + ("" if peek.is_complete else " found so far")


def _facts(dataset: ReadableDataset) -> dict[str, str]:
    shards = dataset.spec.shards
    nbytes = known_sum(shard.nbytes for shard in shards)
    size = "not stated" if nbytes is None else nbytes_text(nbytes)
    has_remote = not all(urls.is_local(shard.url) for shard in shards[:MAX_SHARDS])
    num_checked = min(len(shards), MAX_SHARDS)
    # Of some shards only, because each costs a look at the file system, which may be a slow one.
    num_local = sum(dataset.reader.is_local(number) for number in range(num_checked))
    classes = classes_text(class_names(dataset.spec))
    return {
        "samples": f"{len(dataset):,}",
        "shards": f"{len(shards):,}",
        # Of a view nothing is known but the size of the shards that it is in.
        ("size of all shards" if dataset.is_view else "size"): size,
        **({"classes": classes} if classes else {}),
        "available locally": _amount(num_local, num_checked, len(shards)),
        **({"cache": _from_home(dataset.reader.cache_folder)} if has_remote else {}),
        "index": "published" if dataset.spec.all_dataset_indexes() else "none published",
    }


def _from_home(path: str) -> str:
    """Return a path as people write it."""
    home = os.path.expanduser("~")
    return f"~{path[len(home) :]}" if path.startswith(home + os.sep) else path


def _amount(num_local: int, num_checked: int, total: int) -> str:
    if num_local in (0, num_checked):
        return "all shards" if num_local else "no shards"
    approximate = "about " if num_checked < total else ""
    return approximate + count_text(num_local * total // num_checked, "shard")
