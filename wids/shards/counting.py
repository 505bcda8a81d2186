"""Count the samples of shards without a stated count, and fetch shards, many at a time.

An index has the count at no cost, and so have files that other programs wrote beside the shards.
Local shards are scanned. Remote shards are downloaded; large downloads need the caller's consent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import contextmanager
from typing import Final

from wids.errors import NotFoundError, WidsError
from wids.shards.costs import download_cost, too_large_error
from wids.shards.policy import Wanted
from wids.shards.reader import ShardReader
from wids.storage.download import Report
from wids.storage.progress import Bar
from wids.storage.reading_threads import ReadingThreads
from wids.storage.remote_lengths import ask_lengths, check_found
from wids.storage.transport.retry import check_waits

_logger = logging.getLogger(__name__)

_WAIT_S: Final = 0.2
"""How often the bar is updated."""


def fetch_all(
    fetch: Callable[[int, Report], None],
    nbytes_of: Mapping[int, int | None],
    *,
    num_threads: int,
    description: str = "fetching",
    progress: bool | None = None,
) -> None:
    """Fetch shards into the cache, several at a time.

    An error, Ctrl-C included, cancels the other downloads. Completed copies stay.

    Args:
        fetch: Fetches a shard by its number, as `ShardReader.fetch` does.
        nbytes_of: Numbers of shards, in the order to fetch them, with their lengths if known.
        num_threads: Number of concurrent downloads.
        description: The label of the bar.
        progress: Whether to show a bar, as in `progress.Bar`.

    Raises:
        FetchError: A shard cannot be fetched.
    """
    received_nbytes = dict.fromkeys(nbytes_of, 0)

    def fetch_one(number: int) -> None:
        check_waits()  # a thread may have taken it just before the others were cancelled
        fetch(number, lambda nbytes, _: received_nbytes.update({number: nbytes}))
        # If another process fetched it, nothing was received here.
        received_nbytes[number] = nbytes_of[number] or received_nbytes[number]

    if not nbytes_of:
        return
    is_known = None not in nbytes_of.values()
    total_nbytes = sum(nbytes or 0 for nbytes in nbytes_of.values()) if is_known else None
    bar = Bar(description, total_nbytes, "B", wanted=progress)
    # After an error it waits a moment: a download that is cancelled deletes its temporary file.
    with ReadingThreads(num_threads, "wids-fetch") as threads, bar:
        tasks = [threads.submit(fetch_one, number) for number in nbytes_of]
        pending = set(tasks)
        while pending:
            done, pending = wait(pending, _WAIT_S, FIRST_EXCEPTION)
            for task in done:
                task.result()
            num_done = len(tasks) - len(pending)
            note = f"{num_done:,} of {len(tasks):,} shards"
            bar.reach(sum(received_nbytes.values()), note=note)


_NUM_THREADS: Final = 4


def count_samples(
    reader: ShardReader,
    counts: list[int | None],
    open_length: Callable[[int], int],
    progress: bool | None,
) -> None:
    """Count the samples of the shards whose number is not stated.

    Args:
        reader: Knows which shards have an index or a copy.
        counts: Its stated counts, in which new ones are stored; that of a broken shard stays None.
        open_length: Opens a shard, and returns its number of samples.
        progress: Whether to show a bar, as in `progress.Bar`.

    Raises:
        NotFoundError: A shard does not exist; the error names those that do.
        SpecError: More than a gigabyte would have to be downloaded.
        FetchError: A shard cannot be read.
        ShardFormatError: A shard is not a complete, plain tar.
    """
    missing = [number for number, count in enumerate(counts) if count is None]
    for number, count in zip(missing, reader.known_counts(missing), strict=True):
        counts[number] = count
    missing = [number for number, count in enumerate(counts) if count is None]
    # Others split names at the first dot. A copy is counted without its server.
    beside = [
        number
        for number in missing
        if reader.key_split(number) == "first"
        and (reader.path(number) is not None or not reader.is_local(number))
    ]
    if beside:
        try:
            from wids.shards.foreign.foreign_counts import with_stated_counts
        except ModuleNotFoundError:  # the shards are counted without it
            pass
        else:
            stated = with_stated_counts(reader.shards, beside, reader.store.fetcher)
            for number in beside:
                counts[number] = stated[number].num_samples
            reader.take_stated(stated)
        missing = [number for number in missing if counts[number] is None]
    for number, count in _counted(reader, missing, open_length, progress).items():
        counts[number] = count
    if len(reader.broken.numbers) == len(counts):  # it would be read as nothing, without an error
        raise reader.broken.first_error()


def check_empty(reader: ShardReader, numbers: Iterable[int], progress: bool | None) -> None:
    """Open shards of which 0 samples are stated, since nobody would find samples in them later.

    Those that do not exist are passed over. Raises as `count_samples`, and `MismatchError` for a
    shard with samples.
    """
    numbers = list(numbers)
    counts = reader.known_counts(numbers)
    doubtful = [number for number, count in zip(numbers, counts, strict=True) if count != 0]
    names = [reader.path(number) or reader.shards[number].url for number in doubtful]
    answers = ask_lengths(reader.store.fetcher, names, is_tolerant=True)
    pairs = zip(doubtful, answers, strict=True)
    found = [number for number, answer in pairs if not isinstance(answer, NotFoundError)]

    def open_length(number: int) -> int:
        # Apart, since nobody reads an empty shard.
        with reader.open_apart(number, Wanted.MOST) as shard:
            return len(shard)

    _counted(reader, found, open_length, progress)


def _counted(
    reader: ShardReader,
    numbers: Sequence[int],
    open_length: Callable[[int], int],
    progress: bool | None,
) -> dict[int, int]:
    """Return the number of samples of shards, after downloading those that are remote."""
    counts: dict[int, int] = {}
    if numbers:
        cost = _checked_cost(reader, numbers)
        _fetch(reader, counts, open_length, cost, progress)
    with Bar("counting samples", len(numbers), "shard", wanted=progress) as bar:
        for num_counted, number in enumerate(numbers, start=1):
            if number not in counts:
                with _passing_over(counts, number):
                    counts[number] = open_length(number)
            bar.reach(num_counted)
    return counts


@contextmanager
def _passing_over(counts: dict[int, int], number: int) -> Iterator[None]:
    """Count no samples in a shard that is noted as broken."""
    try:
        yield
    except WidsError as error:
        if not error.is_of_shard:
            raise
        counts[number] = 0


def _checked_cost(reader: ShardReader, numbers: Sequence[int]) -> dict[int, int | None]:
    """Check that shards exist and consent is given; return the shards to download, with lengths."""
    local = [path for number in numbers if (path := reader.path(number)) is not None]
    passes_over = reader.broken.are_noted
    if len(numbers) > 1 and not passes_over:  # opening a single shard reports the same
        check_found(local, ask_lengths(reader.store.fetcher, local))
    if reader.options.access == "range":
        return {}
    remote = [number for number in numbers if not reader.is_local(number)]
    named = [reader.shards[number] for number in numbers if reader.path(number) is None]
    # Includes shards with copies, since an error names those that exist.
    copied = {shard.url for shard in named}.difference(reader.shards[n].url for n in remote)
    cost = download_cost(named, reader.store.fetcher, copied, is_tolerant=passes_over)
    if cost.is_large and reader.options.access != "download":
        raise too_large_error(cost)
    if remote:
        _logger.info("counting samples: downloading %s", str(cost))
    return {number: cost.nbytes_of[reader.shards[number].url] for number in remote}


def _fetch(
    reader: ShardReader,
    counts: dict[int, int],
    open_length: Callable[[int], int],
    nbytes_of: Mapping[int, int | None],
    progress: bool | None,
) -> None:
    """Download shards and count their samples."""
    largest_nbytes = max((nbytes or 0 for nbytes in nbytes_of.values()), default=0)
    # In a small cache, concurrent downloads would evict each other before they are counted.
    limit_nbytes = reader.limit_nbytes
    is_small = limit_nbytes is not None and limit_nbytes < _NUM_THREADS * largest_nbytes

    def fetch(number: int, report: Report) -> None:
        with _passing_over(counts, number):
            reader.fetch(number, report)
            # Now: the next downloads may evict the copy.
            counts[number] = open_length(number)

    description = "downloading shards to count their samples"
    num_threads = 1 if is_small else _NUM_THREADS
    fetch_all(fetch, nbytes_of, num_threads=num_threads, description=description, progress=progress)
