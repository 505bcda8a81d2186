"""Shards → what is published beside them: the spec, and the pack of their indexes.

Each shard is read once from its first byte to its last, on whatever executor the caller has, and
what was found is put into a journal, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import IO, Any, Final

from wids.errors import ShardFormatError
from wids.files import locks, publish
from wids.files.digests import file_digest
from wids.files.progress import Bar
from wids.specs.loader import Shards, load_spec
from wids.specs.model import DatasetSpec, ShardSpec
from wids.tars import index, tar
from wids.tars.index import ShardIndex, TarIdentity
from wids.tars.names import KeySplit
from wids.tars.shard import Shard
from wids.transport import fetch, urls

_RECORD: Final = struct.Struct("<QQI")
_JOURNAL_MAGIC: Final = b"wids journal 1\n"

_Asked = tuple[str, KeySplit]


@dataclass(frozen=True)
class _Found:
    """What was found out about one shard.

    Attributes:
        url: Absolute path or URL.
        key_split: The rule that its samples were counted by.
        mtime_ns: When a local file was last changed; None for a remote one.
        num_samples: How many samples it has.
        nbytes: Length of the tar in bytes.
        sha256: Its digest in hexadecimal digits.
        blob: Its index with checksums, as a pack has it.
    """

    url: str
    key_split: KeySplit
    mtime_ns: int | None
    num_samples: int
    nbytes: int
    sha256: str
    blob: bytes


def build_spec(
    shards: Shards,
    *,
    base: str | os.PathLike[str] | None = None,
    name: str | None = None,
    key_split: KeySplit | None = None,
    pack: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    journal: str | os.PathLike[str] | None = None,
    allow_pipe: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> DatasetSpec:
    """Describe shards: count their samples, measure and hash them, and index them if wanted.

    Remote shards are fetched for that, one at a time for each worker, and not kept.

    Args:
        shards: The shards, in any form that a dataset takes. What a document says of them is kept,
            but for counts, lengths and digests, which are found anew.
        base: Folder or URL that relative references start from.
        name: Name of the dataset; None for what a document says.
        key_split: Where member names are split, at the ``"first"`` or the ``"last"`` dot; None for
            what a document says, or else the first.
        pack: A file to write the indexes of all shards into, which the spec will name.
        executor: Where to do the work; any `concurrent.futures.Executor`, such as that of a Dask
            client. None for this thread.
        journal: A file for what is done already, to go on after an interruption; to be deleted
            when the spec is saved. Local shards that have changed since are read again.
        allow_pipe: Whether a document may name ``pipe:`` commands.
        storage_options: As for `ShardListDataset`.
        progress: Whether to show a progress bar; None for in terminals and notebooks only.

    Returns:
        The spec, with ``num_samples``, ``nbytes`` and ``sha256`` for each shard, in their order.

    Raises:
        SpecError: ``shards`` is malformed.
        FetchError: A shard cannot be read.
        ShardFormatError: A shard is not a complete, plain tar.
    """
    fetcher = fetch.Fetcher(storage_options)
    spec = load_spec(shards, base=base, allow_pipe=allow_pipe, read=fetcher.read)
    rules = [key_split or shard.key_split or "first" for shard in spec.shards]
    with ExitStack() as stack:
        log = stack.enter_context(_Journal(journal))
        bar = stack.enter_context(Bar("reading shards", len(rules), "shard", wanted=progress))
        asked = list(zip([shard.url for shard in spec.shards], rules, strict=True))
        missing = [key for key in dict.fromkeys(asked) if key not in log]
        bar.reach(len(asked) - len(missing))
        examine = partial(_examined, fetcher)
        for number, found in enumerate(_results(examine, missing, executor), start=1):
            log.add(found)
            bar.reach(len(asked) - len(missing) + number)
        described = tuple(
            replace(
                shard,
                num_samples=(found := log.head(key)).num_samples,
                nbytes=found.nbytes,
                sha256=found.sha256,
                md5sum=None,
                key_split=key_split or shard.key_split,
                index=None if pack else shard.index,
            )
            for shard, key in zip(spec.shards, asked, strict=True)
        )
        pack_path = spec.index
        if pack is not None:
            pack_path = os.path.abspath(os.fspath(pack))
            save_pack(pack_path, log.indexes(asked))
    return replace(
        spec, shards=described, name=spec.name if name is None else name, index=pack_path
    )


def build_pack(spec: DatasetSpec, path: str | os.PathLike[str]) -> None:
    """Index all shards of a dataset into one file, to be named in its spec as ``index``.

    With it no shard is scanned again, on any machine, and a key is found by a search. It holds good
    for tars of the same names, lengths and headers, wherever they are copied.

    Args:
        spec: The dataset; its shards have to be local files.
        path: The file to write, all at once.

    Raises:
        FetchError: A shard cannot be opened.
        ShardFormatError: A shard is not a complete, plain tar.
    """
    save_pack(path, _indexes(spec))


def save_pack(path: str | os.PathLike[str], indexes: Iterable[tuple[str, int, ShardIndex]]) -> None:
    """Write a pack of indexes with checksums; see `index.write_pack`."""
    with publish.replacing(path) as file:
        index.write_pack(file, indexes)


def describe(path: str, key_split: KeySplit = "first") -> tuple[ShardSpec, ShardIndex]:
    """Read a local shard from end to end; give its description and its index with checksums.

    Raises:
        FetchError: It cannot be opened.
        ShardFormatError: It is not a complete, plain tar.
    """
    with Shard(path, find_index=partial(_checked_index, key_split)) as shard:
        about = ShardSpec(path, len(shard), shard.nbytes, sha256=file_digest(path, "sha256"))
        return about, shard.index


def _indexes(spec: DatasetSpec) -> Iterator[tuple[str, int, ShardIndex]]:
    for about in spec.shards:
        find_index = partial(_checked_index, about.key_split or "first")
        with Shard(about.local_path(), find_index=find_index) as shard:
            yield os.path.basename(shard.path), shard.nbytes, shard.index


def _checked_index(
    key_split: KeySplit, path: str, data: tar.TarBytes, _: TarIdentity
) -> ShardIndex:
    return index.for_ranges(data, key_split, path)


def _results(
    examine: Callable[[_Asked], _Found], missing: list[_Asked], executor: Executor | None
) -> Iterator[_Found]:
    """Examine shards; with an executor, in the order in which they are done."""
    if executor is None:
        yield from map(examine, missing)
        return
    futures = [executor.submit(examine, asked) for asked in missing]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def _examined(fetcher: fetch.Fetcher, asked: _Asked) -> _Found:
    """Find out about a shard, wherever it is. Runs on the workers of an executor."""
    url, key_split = asked
    with fetch.downloaded(fetcher, url) as path:
        try:
            return _found(url, key_split, path, _mtime_ns(path) if urls.is_local(url) else None)
        except ShardFormatError as error:
            raise ShardFormatError(str(error).replace(path, urls.redact(url))) from None


def _found(url: str, key_split: KeySplit, path: str, mtime_ns: int | None) -> _Found:
    about, found = describe(path, key_split)
    nbytes = about.nbytes or 0
    blob = index.dump(found, TarIdentity(nbytes))
    return _Found(url, key_split, mtime_ns, len(found), nbytes, about.sha256 or "", blob)


def _mtime_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0  # opening it will say what is wrong


class _Journal:
    """What was found out about shards so far, in a file that only grows.

    A record is the lengths and the checksum of its two parts, a JSON object and an index. What an
    interruption left incomplete at the end is cut off.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else os.path.abspath(os.fspath(path))
        self._heads: dict[tuple[str, str], tuple[_Found, int, int]] = {}
        self._file: IO[bytes]
        if self._path is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        else:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            self._file = open(handle, "r+b")  # noqa: SIM115 - the same
            try:
                self._load()
            except BaseException:
                self._file.close()
                raise

    def _load(self) -> None:
        if locks.acquire(self._file.fileno()) is False:
            raise OSError(f"{self._path}: another process is describing these shards")
        magic = self._file.read(len(_JOURNAL_MAGIC))
        if not magic:
            self._file.write(_JOURNAL_MAGIC)
        elif magic != _JOURNAL_MAGIC:
            raise FileExistsError(
                f"{self._path}: expected a journal of an interrupted run, found another file; move "
                "it away, or choose another name"
            )
        end = len(_JOURNAL_MAGIC)
        while len(start := self._file.read(_RECORD.size)) == _RECORD.size:
            head_nbytes, blob_nbytes, crc = _RECORD.unpack(start)
            if head_nbytes + blob_nbytes > os.fstat(self._file.fileno()).st_size:
                break
            body = self._file.read(head_nbytes + blob_nbytes)
            if len(body) != head_nbytes + blob_nbytes or zlib.crc32(body) != crc:
                break
            found = _Found(**json.loads(body[:head_nbytes]), blob=b"")
            blob_start = end + _RECORD.size + head_nbytes
            end = self._file.tell()
            if found.mtime_ns is None or _is_unchanged(found):
                self._heads[found.url, found.key_split] = (found, blob_start, end)
        self._file.seek(end)
        self._file.truncate()

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._heads

    def head(self, key: tuple[str, str]) -> _Found:
        """Give what was found, without the index."""
        return self._heads[key][0]

    def add(self, found: _Found) -> None:
        """Append what was found."""
        fields = asdict(replace(found, blob=b""))
        del fields["blob"]
        head = json.dumps(fields).encode("ascii")
        self._file.seek(0, os.SEEK_END)
        crc = zlib.crc32(found.blob, zlib.crc32(head))
        self._file.write(_RECORD.pack(len(head), len(found.blob), crc) + head + found.blob)
        self._file.flush()
        end = self._file.tell()
        place = (replace(found, blob=b""), end - len(found.blob), end)
        self._heads[found.url, found.key_split] = place

    def indexes(
        self, keys: Iterable[tuple[str, KeySplit]]
    ) -> Iterator[tuple[str, int, ShardIndex]]:
        """Give the indexes of some shards, as a pack takes them."""
        for url, key_split in keys:
            found, start, stop = self._heads[url, key_split]
            self._file.seek(start)
            blob = self._file.read(stop - start)
            parsed = index.parse(blob, 0, len(blob), TarIdentity(found.nbytes), key_split)
            if parsed is None:
                raise OSError(
                    f"{urls.redact(url)}: its index in the journal was damaged; delete it"
                )
            yield os.path.basename(urls.path_of(url)), found.nbytes, parsed

    def __enter__(self) -> _Journal:
        return self

    def __exit__(self, *_: object) -> None:
        # By its length, since an interruption may come between writing a record and noting it.
        is_empty = os.fstat(self._file.fileno()).st_size <= len(_JOURNAL_MAGIC)
        if self._path is not None and is_empty:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        self._file.close()


def _is_unchanged(found: _Found) -> bool:
    try:
        status = os.stat(urls.local_path(found.url))
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (found.nbytes, found.mtime_ns)
