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
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import FileIO
from typing import IO, Any, Final, Literal, TypeAlias

import numpy as np

from wids.errors import MismatchError, ShardFormatError, printable
from wids.publish.describe import ShardRecord, describe_shard, record_of
from wids.publish.executors import results_of
from wids.publish.journal import Journal, Task, opened_journal
from wids.publish.problems import Problem, dataset_problems, log_problem
from wids.shards.costs import Cost, DownloadCost, estimate
from wids.shards.indexes.dataset_index import LocalDatasetIndex, load_dataset_index
from wids.shards.indexes.dataset_index_writer import write_dataset_index
from wids.shards.specs.loader import Shards, load_with
from wids.shards.specs.model import COUNTS_FROM, DatasetSpec, ShardSpec
from wids.shards.specs.saved_document import private_mode
from wids.shards.specs.shard_columns import columns_of
from wids.shards.tars.header_scan import HeaderScan
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import Repeated, ShardIndex, index_tar
from wids.storage import fetch, upload
from wids.storage.arrays import IntArray, LazySequence, chosen
from wids.storage.download import Report
from wids.storage.file_parts import ENDLESS_NBYTES, open_parts
from wids.storage.progress import PartsBar
from wids.storage.reading_threads import ReadingThreads
from wids.storage.remote_lengths import known_lengths, known_sum
from wids.storage.sizes import count_text
from wids.storage.transport import urls
from wids.storage.transport.retry import check_waits

_logger = logging.getLogger(__name__)


_ANY: Final = 1 << 32
"""More shards than any dataset index has: nobody else claims a length for a new one."""


def new_dataset_index(
    target: str | None,
    shards: Iterable[tuple[str, int, ShardIndex]],
    storage_options: upload.Options = None,
) -> AbstractContextManager[LocalDatasetIndex]:
    """Provide a dataset index, which is published when the block ends.

    Args:
        target: Path or URL; None for a temporary dataset index, deleted when the block ends.
        shards: As for `write_dataset_index`.
        storage_options: As for `ShardListDataset`.
    """
    return written_dataset_index(
        target, lambda file: write_dataset_index(file, shards), storage_options
    )


@contextmanager
def written_dataset_index(
    target: str | None, write: Callable[[IO[bytes]], object], storage_options: upload.Options
) -> Iterator[LocalDatasetIndex]:
    """Provide the dataset index that a function writes; otherwise as `new_dataset_index`."""
    with (
        tempfile.TemporaryFile()
        if target is None
        else upload.publishing(target, storage_options=storage_options)
    ) as file:
        write(file)
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


@dataclass(frozen=True)
class ShardCost:
    """What reading one shard costs in each way.

    Attributes:
        url: The shard.
        way: How its index is made: by its ``"headers"``; from its ``"start"``, which is all of it;
            or from the ``"whole"`` shard, which was not read yet.
        headers: What reading its headers cost, or would cost; None if its server sends whole files
            only.
        whole: What reading all of it costs; None if its length is unknown.
    """

    url: str
    way: Literal["headers", "start", "whole"]
    headers: Cost | None
    whole: Cost | None


_COST_TEXTS: Final = (
    ("headers", True, "{shards} indexed by headers: {headers} (whole: {whole}); no digests"),
    ("start", False, "{shards} read at once: {whole}"),
    ("whole", True, "{shards} to be read whole: {whole}{unknown} (by headers: about {headers})"),
    ("whole", False, "{shards} to be read whole: {whole}{unknown} (no byte ranges)"),
)
"""For each way of reading shards, and whether the cost of their headers is known."""


@dataclass(frozen=True)
class IndexingCost:
    """The cost of reading remote shards to describe them; ``str`` states it, with alternatives.

    Attributes:
        shards: The cost of each shard.
    """

    shards: tuple[ShardCost, ...]

    @property
    def unread(self) -> DownloadCost:
        """What remains to be downloaded: the shards that have to be read whole."""
        whole = {cost.url: cost.whole for cost in self.shards if cost.way == "whole"}
        return DownloadCost({url: cost and cost.nbytes for url, cost in whole.items()})

    def __str__(self) -> str:
        texts = []
        for way, has_headers, text in _COST_TEXTS:
            ways = [cost for cost in self.shards if cost.way == way]
            some = [cost for cost in ways if (cost.headers is not None) == has_headers]
            num_unknown = sum(not cost.whole for cost in some)
            facts = {
                "shards": count_text(len(some), "remote shard"),
                "headers": Cost.total(cost.headers for cost in some),
                "whole": Cost.total(cost.whole for cost in some),
                "unknown": f" and {num_unknown:,} of unknown length" if num_unknown else "",
            }
            texts += [text.format_map(facts)] if some else []
        return "; ".join(texts)


Attempt: TypeAlias = "tuple[ShardRecord | None, ShardCost]"
"""The description of a shard, None if it has to be read whole, and its cost."""


def _name_of(task: Task) -> str:
    return urls.redact(task[0])


def first_look(cost: DownloadCost) -> DownloadCost:
    """Return the cost of reading the first megabyte of each shard, from that of whole shards."""
    lengths = cost.nbytes_of.items()
    return DownloadCost({url: nbytes and min(nbytes, FIRST_NBYTES) for url, nbytes in lengths})


def _retried(fetcher: fetch.Fetcher, repeated: Repeated, task: Task) -> Attempt:
    # CACHE-30: if it was replaced between two requests, all requests now get the new version.
    for _ in range(2):
        with suppress(MismatchError):
            return _attempt(fetcher, repeated, task)
    # Mirrors state other versions of it in turn, and one response has all of one.
    nbytes = fetcher.nbytes(task[0])
    return None, ShardCost(task[0], "whole", None, None if nbytes is None else Cost(1, nbytes))


def _attempt(fetcher: fetch.Fetcher, repeated: Repeated, task: Task) -> Attempt:
    """Describe a remote shard by its headers, if that costs less than reading all of it."""
    url, key_split = task
    parts = open_parts(fetcher, url, FIRST_NBYTES, keep_nbytes=_KEEP_NBYTES)
    is_known = parts.nbytes != ENDLESS_NBYTES
    if is_known and parts.has(0, parts.nbytes):
        data = parts[:]
        index = index_tar(data, key_split, urls.redact(url), checksums=True, repeated=repeated)
        record = record_of(url, index, len(data), hashlib.sha256(data).hexdigest())
        return record, ShardCost(url, "start", None, Cost(1, len(data)))
    whole = Cost(2, parts.num_read_nbytes + parts.nbytes) if is_known else None
    if whole is None or not parts.has_ranges:
        return None, ShardCost(url, "whole", None, whole)
    scan = HeaderScan(parts, urls.redact(url))
    expected = estimate(scan, parts)
    if expected.weight > whole.weight:
        return None, ShardCost(url, "whole", expected, whole)
    while not scan.is_complete:
        check_waits()  # after an error, or Ctrl-C, in another thread
        scan.step()
    record = record_of(url, scan.index(scan.members(), key_split, repeated), len(parts), None)
    spent = Cost(parts.num_requests, parts.num_read_nbytes)
    return record, ShardCost(url, "headers", spent, whole)


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
    on_cost: Callable[[IndexingCost], None] = _logger.info,
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
        on_cost: Called with the cost of reading remote shards, after their headers were read and
            before some are read whole: ``str(cost)`` states it, ``cost.unread`` is what remains to
            be downloaded. An exception from it ends the work, which the journal can resume.
        on_problem: Called with what is wrong with the dataset as a whole, before the dataset index
            is
            published: keys that occur in several shards, and as remarks fields that only some
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
    dataset_index_path = None if dataset_index is None else upload.absolute(dataset_index)
    fetcher = fetch.Fetcher(storage_options)
    spec = load_with(fetcher, shards, base, allow_pipe=allow_pipe)
    describer = Describer(fetcher, key_split, repeated, digests, on_cost, executor, progress)
    dataset_name = spec.name if name is None else name
    describing = describer.indexed(spec.shards, journal, dataset_index_path, storage_options)
    with describing as (described, indexes):
        for problem in dataset_problems(indexes, described, dataset_name):
            on_problem(problem)
    return replace(
        spec,
        shards=described,
        name=dataset_name,
        index=dataset_index_path or spec.index,
        dataset_indexes=() if dataset_index_path else spec.dataset_indexes,
    )


@dataclass(frozen=True)
class Describer:
    """Describes shards that exist, each once.

    Attributes:
        fetcher: Reads the shards.
        key_split: As for `build_spec`, like the attributes below.
        repeated: What members of one name are.
        digests: Whether every shard must have a digest.
        on_cost: Called with what reading remote shards costs; None to log it.
        executor: Where to do the work.
        progress: Whether to show a progress bar.
    """

    fetcher: fetch.Fetcher
    key_split: KeySplit | None = None
    repeated: Repeated = "error"
    digests: bool = False
    on_cost: Callable[[IndexingCost], None] | None = None
    executor: Executor | None = None
    progress: bool | None = None

    @contextmanager
    def indexed(
        self,
        shards: Sequence[ShardSpec],
        journal: str | os.PathLike[str] | None = None,
        target: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Iterator[tuple[Sequence[ShardSpec], LocalDatasetIndex]]:
        """Yield shards as described, and their dataset index.

        Args:
            shards: The shards.
            journal: As for `build_spec`.
            target: Path or URL of the dataset index, published when the block ends; None for a
                temporary one.
            storage_options: For the server of the dataset index.
        """
        tasks = self.tasks(shards)
        mode = private_mode(shard.url for shard in shards)
        with opened_journal(journal, mode=mode) as log:
            self.describe(shards, log)
            described = columns_of(
                self._with_facts(shard, log.record(task), has_index=target is not None)
                for shard, task in zip(shards, tasks, strict=True)
            )
            with new_dataset_index(target, log.indexes(tasks), storage_options) as dataset_index:
                yield described, dataset_index

    def tasks(self, shards: Sequence[ShardSpec]) -> Sequence[Task]:
        """Return the tasks of describing shards."""
        return LazySequence(self._task, shards)

    def _task(self, shard: ShardSpec) -> Task:
        return shard.url, self.key_split or shard.key_split or "first"

    def distinct(self, shards: Sequence[ShardSpec]) -> Sequence[ShardSpec]:
        """Return the shards whose tasks differ."""
        places = first_places(self.tasks(shards))
        return shards if len(places) == len(shards) else chosen(shards, places)

    def missing(self, shards: Sequence[ShardSpec], log: Journal) -> Sequence[ShardSpec]:
        """Return the shards that the journal does not describe, or not as fully as needed."""
        return log.missing(
            *(shards, lambda shard: (self._task(shard), "")),
            lambda record: record.sha256 is not None or not self.digests,
        )

    def describe(self, shards: Sequence[ShardSpec], log: Journal) -> None:
        """Describe the shards that the journal does not have yet."""
        missing = self.missing(self.distinct(shards), log)
        nbytes = _known_nbytes(self.fetcher, missing)
        with PartsBar("reading shards", len(missing), nbytes, wanted=self.progress) as bar:
            wanted = () if self.digests else enumerate(missing)
            numbers = (
                number
                for number, shard in wanted
                if not urls.is_local(shard.url) and urls.scheme(shard.url) != "pipe"
            )
            with_ranges = self.tasks(chosen(missing, np.fromiter(numbers, np.int64)))
            costs = []
            attempt = partial(_retried, self.fetcher, self.repeated)
            with (
                ReadingThreads(_NUM_THREADS, "wids-headers") as threads,
                closing(results_of(threads, attempt, with_ranges, _name_of)) as attempts,
            ):
                for _, (record, cost) in attempts:
                    costs.append(cost)
                    if record is not None:
                        log.add(record)
                        bar.finish(record.nbytes)
            if costs:
                (self.on_cost or _logger.info)(IndexingCost(tuple(costs)))
                missing = self.missing(missing, log)
            # Workers report finished shards; this thread also reports progress within a shard.
            report = None if self.executor else bar.move
            results = results_of(
                self.executor,
                partial(described, self.fetcher, report=report, repeated=self.repeated),
                self.tasks(missing),
                _name_of,
                advice="run it again; what is complete is in the journal, if there is one",
            )
            with closing(results):
                for _, record in results:
                    log.add(record)
                    bar.finish(record.nbytes)

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


def _known_nbytes(fetcher: fetch.Fetcher, shards: Sequence[ShardSpec]) -> int | None:
    """Return the length of all shards, None if it is not known, after asking for unstated ones.

    Raises:
        NotFoundError: One does not exist.
    """
    total: int | None = 0
    for start in range(0, len(shards), _ASKED_TOGETHER):
        some = shards[start : start + _ASKED_TOGETHER]
        found = known_sum(known_lengths(fetcher, {s.url: s.nbytes for s in some}).values())
        total = None if total is None or found is None else total + found
    return total


def described(
    fetcher: fetch.Fetcher, task: Task, report: Report | None = None, repeated: Repeated = "error"
) -> ShardRecord:
    """Describe a shard, local or remote. Runs on the workers of an executor."""
    url, key_split = task
    with fetch.downloaded(fetcher, url, report) as path:
        try:
            record = describe_shard(path, key_split, repeated)
        except ShardFormatError as error:
            raise ShardFormatError(str(error).replace(printable(path), urls.redact(url))) from None
    return replace(record, url=url, identity=record.identity if urls.is_local(url) else None)
