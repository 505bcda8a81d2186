"""Find what other programs have written beside shards, and state it in the specs of the shards.

Nothing is listed: files are looked for under their names, so that plain HTTP works too. No shard is
read. Two files that disagree are an error.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from wids.errors import NotFoundError, SpecError
from wids.shards.foreign.statements import (
    OF_FOLDER,
    OF_SHARD,
    OfShard,
    counts_in,
    disagreement,
)
from wids.shards.specs.model import COUNTS_FROM, ShardSpec
from wids.storage.fetch import Fetcher
from wids.storage.reading_threads import in_threads
from wids.storage.remote_lengths import ask_lengths
from wids.storage.transport import urls

_MAX_NBYTES: Final = 64 << 20
"""Longest file with the counts of a folder; that of a longer one is of another program."""

_NUM_ASKED: Final = 16
"""Folders of which one has to have such files, or no other is asked."""

_logger = logging.getLogger(__name__)


def with_stated_counts(
    shards: Sequence[ShardSpec], numbers: Iterable[int], fetcher: Fetcher
) -> tuple[ShardSpec, ...]:
    """Return shards with the counts that lie beside some of them.

    Args:
        shards: The shards.
        numbers: Those to look for.
        fetcher: Looks for files, and reads them.

    Raises:
        MismatchError: Two files, or a spec and a file, state different counts for a shard.
        FetchError: A file that exists cannot be read.
    """
    by_folder: defaultdict[str, list[int]] = defaultdict(list)
    for number in numbers:
        if urls.scheme(shards[number].url) != "pipe":
            by_folder[urls.parent(shards[number].url)].append(number)
    search, result = _Search(shards, fetcher), list(shards)
    search.look(by_folder, slice(_NUM_ASKED))
    if search.sizes:
        search.look(by_folder, slice(_NUM_ASKED, None))
    for folder, own in by_folder.items():
        search.note_folder(folder, own)
        search.note_shards(own)
    for number, counts in search.counts.items():
        result[number] = _stated(shards[number], counts)
    if search.counts:
        sources = {source for counts in search.counts.values() for source in counts}
        _logger.info(
            "%s: the counts of %d shards, from files beside them",
            urls.redact(min(sources)),
            len(search.counts),
        )
    return tuple(result)


def _beside(url: str, kind: OfShard) -> str:
    """Return the URL of a file beside a shard."""
    stem, mark, query = (url, "", "") if urls.is_local(url) else url.partition("?")
    return kind.name(stem) + mark + query


@dataclass
class _Search:
    """A search for files beside some shards, and what was found, by the numbers of the shards.

    Attributes:
        shards: All shards.
        fetcher: Looks for files, and reads them.
        sizes: The lengths of files that exist.
        counts: The counts of each shard, by the file that states them.
    """

    shards: Sequence[ShardSpec]
    fetcher: Fetcher
    sizes: dict[str, int] = field(default_factory=dict)
    counts: defaultdict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def look(self, by_folder: Mapping[str, Sequence[int]], which: slice) -> None:
        """Look for the files of some folders, and for those of their first shards."""
        names = set()
        for folder, own in list(by_folder.items())[which]:
            names |= {urls.join(folder, name) for name in OF_FOLDER}
            names |= {_beside(self.shards[own[0]].url, kind) for kind in OF_SHARD}
        self.sizes |= _lengths(self.fetcher, names)

    def note_folder(self, folder: str, numbers: Sequence[int]) -> None:
        """Note the counts in the files of a folder."""
        by_path = {urls.path_of(self.shards[number].url): number for number in numbers}
        for name, parse in OF_FOLDER.items():
            url = urls.join(folder, name)
            if not 0 < self.sizes.get(url, 0) <= _MAX_NBYTES:
                continue
            root = urls.join(folder, "..") if name.startswith("../") else folder
            # By its length, and not by `Fetcher.read`, which would bind options to this server.
            data = self.fetcher.read_start(url, self.sizes[url]).data
            try:
                counts = counts_in(data, url, parse)
            except SpecError as error:  # a file of this name may be of another program
                _logger.warning("%s; going on without it", str(error))
                continue
            join = urls.joiner(root)
            for shard, count in counts.items():
                number = by_path.get(urls.path_of(join(shard)))
                if number is not None:
                    self.counts[number][url] = count

    def note_shards(self, numbers: Sequence[int]) -> None:
        """Note the counts in files of single shards, unless a file of the folder states them."""
        if all(number in self.counts for number in numbers):
            return
        for kind in OF_SHARD:
            if _beside(self.shards[numbers[0]].url, kind) not in self.sizes:
                continue
            files = {number: _beside(self.shards[number].url, kind) for number in numbers}
            for number, count in _counts(kind, files, self.fetcher).items():
                self.counts[number][files[number]] = count


def _counts(kind: OfShard, files: Mapping[int, str], fetcher: Fetcher) -> dict[int, int]:
    """Return the counts in files of single shards; a missing file has none."""

    def count(url: str) -> int | None:
        try:
            start = fetcher.read_start(url, kind.head_nbytes)
        except NotFoundError:
            return None
        return kind.parse(start.data[: kind.head_nbytes], start.total_nbytes or 0)

    tasks = [partial(count, url) for url in files.values()]
    is_local = all(map(urls.is_local, files.values()))
    counts = [task() for task in tasks] if is_local else in_threads(tasks, "wids-counts")
    pairs = zip(files, counts, strict=True)
    return {number: count for number, count in pairs if count is not None}


def _lengths(fetcher: Fetcher, names: Iterable[str]) -> dict[str, int]:
    """Return the lengths of those files that exist."""
    wanted = sorted(set(names))
    answers = ask_lengths(fetcher, wanted, is_tolerant=True)
    pairs = zip(wanted, answers, strict=True)
    return {url: answer for url, answer in pairs if isinstance(answer, int)}


def _stated(shard: ShardSpec, counts: Mapping[str, int]) -> ShardSpec:
    """Return a shard with what files state, which must be the same.

    Raises:
        MismatchError: It is not.
    """
    known = {urls.redact(source): count for source, count in counts.items()}
    extras = dict(shard.extras)
    if shard.num_samples is None:
        extras[COUNTS_FROM] = next(iter(known))
    else:
        known = {extras.get(COUNTS_FROM, "the spec"): shard.num_samples, **known}
    (source, count), *others = known.items()
    for other, found in others:
        if found != count:
            raise disagreement(shard.url, source, count, other, found)
    return replace(shard, num_samples=count, extras=extras)
