"""Describe existing shards, and publish their spec and their dataset index.

Every shard is read once, on any executor. The descriptions go into a journal, so that an
interrupted run can be resumed.

Remote shards are described by their headers alone where that costs less. A tar is a chain: each
header says where the next one is. If members are large, a request for each header costs less than
the body. The first megabyte of a shard decides: it contains all of a small shard, or
shows how far apart its headers are. Other shards are read whole.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import FileIO
from typing import Any, Final

import numpy as np

from wids.errors import MismatchError, ShardFormatError, printable
from wids.publish.describe import ShardRecord, describe_shard, record_of
from wids.publish.job import finish
from wids.publish.journal import Journal, ShardTask, opened_journal
from wids.publish.problems import Problem, dataset_problems, log_problem
from wids.shards.costs import Cost, DownloadCost, estimate
from wids.shards.indexes.dataset_index import LocalDatasetIndex, load_dataset_index
from wids.shards.indexes.dataset_index_writer import join_dataset_indexes, write_dataset_index
from wids.shards.specs.loader import Shards, load_with
from wids.shards.specs.model import COUNTS_FROM, DatasetSpec, ShardSpec
from wids.shards.specs.saved_document import private_mode
from wids.shards.specs.shard_columns import columns_of
from wids.shards.tars.header_scan import HeaderScan
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import Repeated, ShardIndex, index_tar
from wids.storage import fetch, locks, upload
from wids.storage.arrays import IntArray, LazySequence, chosen
from wids.storage.download import Report
from wids.storage.file_parts import ENDLESS_NBYTES, open_parts
from wids.storage.progress import PartsBar
from wids.storage.reading_threads import ReadingThreads
from wids.storage.remote_lengths import known_lengths, known_sum
from wids.storage.transport import urls
from wids.storage.transport.retry import check_waits

_logger = logging.getLogger(__name__)


_ANY: Final = 1 << 32
"""More shards than any dataset index has: nobody else claims a length for a new one."""


@contextmanager
def new_dataset_index(
    target: str | None,
    shards: Iterable[tuple[str, int, ShardIndex]] = (),
    storage_options: upload.Options = None,
    *,
    parts: Sequence[tuple[LocalDatasetIndex, int]] = (),
) -> Iterator[LocalDatasetIndex]:
    """Provide a dataset index, which is published when the block ends.

    Args:
        target: Path or URL; None for a temporary dataset index, deleted when the block ends.
        shards: As for `write_dataset_index`.
        storage_options: As for `ShardListDataset`.
        parts: As for `join_dataset_indexes`, instead of ``shards``.
    """
    with (
        locks.unshared(tempfile.TemporaryFile)
        if target is None
        else upload.publishing(target, storage_options=storage_options)
    ) as file:
        if parts:
            join_dataset_indexes(file, parts)
        else:
            write_dataset_index(file, shards)
        file.flush()
        file.seek(0)
        name = "a temporary dataset index" if target is None else urls.redact(target)
        dataset_index = load_dataset_index(name, FileIO(file.fileno(), closefd=False), _ANY)
        if dataset_index is None:
            raise OSError(
                f"{name}: expected the dataset index that was just written, found another file"
            )
        with closing(dataset_index):  # closed before the file gets its name
            yield dataset_index


FIRST_NBYTES: Final = 1 << 20
"""Bytes that decide how to read the rest; a shard of at most this length needs no more."""

_NUM_THREADS: Final = 16
"""Shards at a time; reading headers mostly waits for a server."""

_KEEP_NBYTES: Final = 4 << 20  # no byte is needed twice


def _by_headers(fetcher: fetch.Fetcher, repeated: Repeated, task: ShardTask) -> ShardRecord | None:
    """Describe a remote shard by its headers; return None if it has to be read whole."""
    # CACHE-30: if it was replaced between two requests, all requests now get the new version.
    for _ in range(2):
        with suppress(MismatchError):
            return _attempt(fetcher, repeated, task)
    # Mirrors state other versions of it in turn, and one response has all of one.
    return None


def _attempt(fetcher: fetch.Fetcher, repeated: Repeated, task: ShardTask) -> ShardRecord | None:
    """Describe a remote shard by its headers, if that costs less than reading all of it."""
    url, key_split = task.path, task.key_split
    parts = open_parts(fetcher, url, FIRST_NBYTES, keep_nbytes=_KEEP_NBYTES)
    is_known = parts.nbytes != ENDLESS_NBYTES
    if is_known and parts.has(0, parts.nbytes):
        data = parts[:]
        index = index_tar(data, key_split, urls.redact(url), checksums=True, repeated=repeated)
        return record_of(url, index, len(data), hashlib.sha256(data).hexdigest())
    if not (is_known and parts.has_ranges):
        return None
    scan, whole = HeaderScan(parts, urls.redact(url)), Cost(2, parts.num_read_nbytes + parts.nbytes)
    if estimate(scan, parts).weight > whole.weight:
        return None
    while not scan.is_complete:
        check_waits()  # after an error, or Ctrl-C, in another thread
        scan.step()
    return record_of(url, scan.index(scan.members(), key_split, repeated), len(parts), None)


def first_places(items: Sequence[Hashable]) -> IntArray:
    """Return where items occur for the first time, ascending; takes 16 bytes for each item."""
    hashes = np.fromiter(map(hash, items), np.int64, len(items))
    in_order = np.sort(hashes)
    several = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    candidates = np.flatnonzero(np.isin(hashes, several)) if len(several) else several
    # Items of one hash may differ, so the items themselves decide.
    first: dict[Hashable, int] = {}
    later = [at for at in candidates.tolist() if first.setdefault(items[at], at) != at]
    return np.delete(np.arange(len(hashes)), later)


def log_cost(cost: DownloadCost) -> None:
    """Log what will be downloaded."""
    _logger.info("reading remote shards: %s", cost)


_ASKED_TOGETHER: Final = 100_000
"""Shards whose lengths are in memory at a time; an error for missing files names those of them."""


def build_spec(
    shards: Shards,
    *,
    base: str | os.PathLike[str] | None = None,
    name: str | None = None,
    key_split: KeySplit | None = None,
    repeated: Repeated = "error",
    dataset_index: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    journal: str | os.PathLike[str] | None = None,
    digests: bool = False,
    on_cost: Callable[[DownloadCost], object] = log_cost,
    on_problem: Callable[[Problem], None] = log_problem,
    allow_pipe: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> DatasetSpec:
    """Describe shards: count their samples, measure, hash and optionally index them.

    Of remote shards with large members only the headers are read, by byte range, 16 shards at a
    time; their spec then has no digest, and their index no checksums of members. Other remote
    shards are downloaded to a temporary file, one at a time for each worker.

    Args:
        shards: The shards, in any form that a dataset takes. What a document states about them is
            kept, except for counts, lengths and digests, which are computed.
        base: Folder or URL that relative references start from.
        name: Name of the dataset; None for the name in the document.
        key_split: Where member names are split, at the ``"first"`` or the ``"last"`` dot; None for
            the rule in the document, or else the first dot.
        repeated: What members of one name are: ``"error"``, since they may be two samples with one
            key, or ``"last"`` to describe the last of them.
        dataset_index: Path or URL to write the indexes of all shards to, which the spec will name.
            With it, no machine has to scan these shards again, and keys are found by binary search.
            It is valid for copies of the shards too: tars of the same names, lengths and headers.
        executor: Where to do the work; any `concurrent.futures.Executor`, such as that of a Dask
            client. None for this thread.
        journal: Folder for completed work, which is made, so that an interrupted run can be
            resumed. Delete it when the spec is saved. Local shards that have changed since are read
            again.
        digests: Whether every shard must have a digest, and its members checksums, so that all
            bytes of remote shards are read.
        on_cost: Called with what will be downloaded, before it is: the beginning of each remote
            shard, and then the shards that have to be read whole. ``str(cost)`` states it. An
            exception from it ends the work, which the journal can resume.
        on_problem: Called with what is wrong with the dataset as a whole, before the dataset index
            is published: keys that occur in several shards, and as remarks fields that only some
            samples have, and formats that are mixed. By default it is logged as a warning.
        allow_pipe: Whether a document may name ``pipe:`` commands.
        storage_options: As for `ShardListDataset`.
        progress: Whether to show a progress bar; None for in terminals and notebooks only.

    Returns:
        The spec, with ``num_samples``, ``nbytes`` (length of the tar in bytes) and ``sha256`` of
        each shard, in their order; a ``sha256`` is None if only headers were read and the document
        states none for a shard of this length.

    Raises:
        SpecError: ``shards`` is malformed.
        FetchError: A shard cannot be read.
        ShardFormatError: A shard is not a complete, plain tar.
        FileExistsError: ``journal`` is something else than a journal.
        UploadError: The dataset index cannot be written to its URL.
        ValueError: ``dataset_index`` is a URL that cannot be written, such as ``https:``.

    Examples:
        >>> import wids
        >>> with wids.TarWriter("cats.tar") as writer:
        ...     nbytes = writer.write({"__key__": "0001", "txt": "a cat"})
        >>> spec = wids.build_spec(["cats.tar"], name="cats", dataset_index="cats.index")
        >>> spec.save("cats.json")
        >>> spec.shards[0].num_samples, spec.shards[0].nbytes
        (1, 10240)
        >>> wids.verify_spec("cats.json")
        []
    """
    fetcher = fetch.Fetcher(storage_options)
    spec = load_with(fetcher, shards, base, allow_pipe=allow_pipe)
    describer = Describer(fetcher, key_split, repeated, digests, on_cost, progress)
    return described_spec(
        *(replace(spec, name=spec.name if name is None else name), describer, executor, journal),
        *(None if dataset_index is None else upload.absolute(dataset_index), on_problem),
        storage_options,
    )


def described_spec(
    spec: DatasetSpec,
    describer: Describer,
    executor: Executor | None,
    journal: str | os.PathLike[str] | None,
    dataset_index: str | None,
    on_problem: Callable[[Problem], None],
    storage_options: upload.Options,
) -> DatasetSpec:
    """Return a spec with its shards as they are described; for arguments see `build_spec`."""
    describing = describer.indexed(spec.shards, executor, journal, dataset_index, storage_options)
    with describing as (described, indexes):
        for problem in dataset_problems(indexes, described, spec.name):
            on_problem(problem)
    return replace(
        spec,
        shards=described,
        index=dataset_index or spec.index,
        dataset_indexes=() if dataset_index else spec.dataset_indexes,
    )


@dataclass(frozen=True)
class Describer:
    """Describes shards that exist, each once.

    Attributes:
        fetcher: Reads the shards.
        key_split: As for `build_spec`, like the attributes below.
        repeated: What members of one name are.
        digests: Whether every shard must have a digest.
        on_cost: Called with what will be downloaded.
        progress: Whether to show a progress bar.
    """

    fetcher: fetch.Fetcher
    key_split: KeySplit | None = None
    repeated: Repeated = "error"
    digests: bool = False
    on_cost: Callable[[DownloadCost], object] = log_cost
    progress: bool | None = None

    @contextmanager
    def indexed(
        self,
        shards: Sequence[ShardSpec],
        executor: Executor | None = None,
        journal: str | os.PathLike[str] | None = None,
        target: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Iterator[tuple[Sequence[ShardSpec], LocalDatasetIndex]]:
        """Yield shards as described, and their dataset index.

        Args:
            shards: The shards.
            executor: As for `build_spec`.
            journal: The same.
            target: Path or URL of the dataset index, published when the block ends; None for a
                temporary one.
            storage_options: For the server of the dataset index.
        """
        tasks = LazySequence(self._task, shards)
        mode = private_mode(shard.url for shard in shards)
        with opened_journal(journal, mode=mode) as log:
            self.describe(self.tasks(shards), log, executor)
            described = columns_of(
                self._with_facts(shard, log.record(task), has_index=target is not None)
                for shard, task in zip(shards, tasks, strict=True)
            )
            with new_dataset_index(target, log.indexes(tasks), storage_options) as dataset_index:
                yield described, dataset_index

    def tasks(self, shards: Sequence[ShardSpec]) -> Sequence[ShardTask]:
        """Return the tasks of describing shards, each once."""
        tasks = LazySequence(self._task, shards)
        places = first_places(tasks)
        return tasks if len(places) == len(tasks) else chosen(tasks, places)

    def _task(self, shard: ShardSpec) -> ShardTask:
        rule = self.key_split or shard.key_split or "first"
        return ShardTask(shard.url, shard.nbytes, None, "", key_split=rule)

    def describe(self, tasks: Sequence[ShardTask], log: Journal, executor: Executor | None) -> None:
        """Describe the shards that the journal does not describe, or not as fully as needed."""
        missing = log.missing(tasks, self._is_enough)
        nbytes, remote = _known_lengths(self.fetcher, missing)
        with PartsBar("reading shards", len(missing), nbytes, wanted=self.progress) as bar:
            if remote and not self.digests:
                self.on_cost(
                    DownloadCost({u: n and min(n, FIRST_NBYTES) for u, n in remote.items()})
                )
                numbers = (n for n, task in enumerate(missing) if task.path in remote)
                attempt = partial(_by_headers, self.fetcher, self.repeated)
                with ReadingThreads(_NUM_THREADS, "wids-headers") as threads:
                    with_ranges = chosen(missing, np.fromiter(numbers, np.int64))
                    finish(with_ranges, attempt, log, threads, bar)
                missing = log.missing(missing, self._is_enough)
            if whole := {task.path: remote[task.path] for task in missing if task.path in remote}:
                self.on_cost(DownloadCost(whole))
            # Workers report finished shards; this thread also reports progress within a shard.
            report = None if executor else bar.move
            describe = partial(described, self.fetcher, report=report, repeated=self.repeated)
            finish(missing, describe, log, executor, bar)

    def _is_enough(self, record: ShardRecord) -> bool:
        return record.sha256 is not None or not self.digests

    def _with_facts(self, shard: ShardSpec, record: ShardRecord, *, has_index: bool) -> ShardSpec:
        """Return the entry of a shard with the computed facts in place of the stated ones."""
        is_stated = record.sha256 is None and shard.nbytes in (None, record.nbytes)
        return replace(
            shard,
            num_samples=record.num_samples,
            nbytes=record.nbytes,
            sha256=shard.sha256 if is_stated else record.sha256,
            md5sum=shard.md5sum if is_stated else None,
            key_split=self.key_split or shard.key_split,
            index=None if has_index else shard.index,
            extras={key: value for key, value in shard.extras.items() if key != COUNTS_FROM},
        )


def _known_lengths(
    fetcher: fetch.Fetcher, tasks: Sequence[ShardTask]
) -> tuple[int | None, dict[str, int | None]]:
    """Return the length of all shards, None if it is not known, and that of each remote one.

    Raises:
        NotFoundError: One does not exist.
    """
    sums: list[int | None] = []
    remote: dict[str, int | None] = {}
    for start in range(0, len(tasks), _ASKED_TOGETHER):
        some = {task.path: task.nbytes for task in tasks[start : start + _ASKED_TOGETHER]}
        found = known_lengths(fetcher, some)
        sums.append(known_sum(found.values()))
        remote |= {u: n for u, n in found.items() if urls.scheme(u) not in ("", "file", "pipe")}
    return known_sum(sums), remote


def described(
    fetcher: fetch.Fetcher,
    task: ShardTask,
    report: Report | None = None,
    repeated: Repeated = "error",
) -> ShardRecord:
    """Describe a shard, local or remote. Runs on the workers of an executor."""
    url, key_split = task.path, task.key_split
    with fetch.downloaded(fetcher, url, report) as path:
        try:
            record = describe_shard(path, key_split, repeated)
        except ShardFormatError as error:
            raise ShardFormatError(str(error).replace(printable(path), urls.redact(url))) from None
    return replace(record, url=url, identity=record.identity if urls.is_local(url) else None)
