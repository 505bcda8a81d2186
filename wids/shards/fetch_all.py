"""Fetch several remote shards into the cache concurrently, with one progress bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import Final

from wids.storage.cache.store import BackgroundFetch
from wids.storage.progress import Bar
from wids.storage.reading_threads import ReadingThreads

_PATIENCE_S: Final = 0.5
"""How long to wait for downloads to notice that they are cancelled."""

_LOOK_S: Final = 0.2
"""How often the bar is updated."""


def fetch_all(
    fetch: Callable[[int, BackgroundFetch], None],
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
    fetches = {number: BackgroundFetch() for number in nbytes_of}

    def fetch_one(number: int) -> None:
        # Otherwise a task that a thread took just before the cancellation would start a download.
        if not fetches[number].cancelled.is_set():
            fetch(number, fetches[number])
            fetches[number].done.set()

    def received(number: int) -> int:
        # If another process fetched it, nothing was received here.
        is_done = fetches[number].done.is_set()
        return (is_done and nbytes_of[number]) or fetches[number].received_nbytes

    if not nbytes_of:
        return
    is_known = None not in nbytes_of.values()
    total_nbytes = sum(nbytes or 0 for nbytes in nbytes_of.values()) if is_known else None
    threads = ReadingThreads(num_threads, "wids-fetch")
    tasks = [threads.submit(fetch_one, number) for number in nbytes_of]
    with Bar(description, total_nbytes, "B", wanted=progress) as bar:
        try:
            pending = set(tasks)
            while pending:
                done, pending = wait(pending, _LOOK_S, FIRST_EXCEPTION)
                for task in done:
                    task.result()
                num_done = len(tasks) - len(pending)
                note = f"{num_done:,} of {len(tasks):,} shards"
                bar.reach(sum(map(received, nbytes_of)), note=note)
        # Ctrl-C is not an Exception, and must end the downloads too.
        except BaseException:
            for background_fetch in fetches.values():
                background_fetch.cancelled.set()
            # No unlimited wait: a server may hang, and the caller wants the error.
            threads.shutdown(wait=False, cancel_futures=True)
            # But a short one: a download that notices its cancellation deletes its temporary file.
            wait(tasks, timeout=_PATIENCE_S)
            raise
    threads.shutdown()
