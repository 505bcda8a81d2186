"""One mapped tar as a sequence of raw samples.

A shard is read where it lies: never copied, locked or written to. This room knows one local file;
what a spec or a dataset says about it is not its business.
"""

from __future__ import annotations

import io
import mmap
import operator
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Literal, get_args

from wids import fetch, index, tar
from wids.errors import ShardFormatError
from wids.keys import KeySplit

Raw = Literal["stream", "bytes", "view"]
RawSample = dict[str, Any]

_CHECK_EVERY_S: Final = 0.005
"""How long a look at the file's size is believed by single reads; the look costs a microsecond."""


class Shard:
    """One local tar file as a sequence of raw samples.

    A raw sample is a dict: each field's bytes under its name with the leading dot, and the key of
    the sample under ``"__key__"``. Safe to read from any number of threads and from forked
    processes. Holds one file descriptor until it is closed or collected.

    Args:
        path: The tar file.
        key_split: Where member names are split into key and field: at the ``"first"`` or the
            ``"last"`` dot of their last path component.

    Attributes:
        path: The tar file.
        nbytes: Its length in bytes.
        index: Where its samples are.

    Raises:
        FetchError: The file cannot be opened.
        ShardFormatError: It is not a complete, plain tar.
    """

    def __init__(self, path: str | os.PathLike[str], *, key_split: KeySplit = "first") -> None:
        self.path = os.fspath(path)
        self._map = _open_map(self.path)
        self.nbytes = len(self._map)
        self.index = index.build(tar.scan(self._map, self.path), key_split, self.path)
        self._view = memoryview(self._map)
        self._checked_s = time.monotonic()
        # A memoryview gives plain ints, several times faster than an array does.
        self._starts = self.index.member_starts.data
        self._offsets = self.index.offsets.data
        self._sizes = self.index.sizes.data
        self._field_ids = self.index.field_ids.data

    def __repr__(self) -> str:
        return f"Shard({self.path!r}: {len(self)} samples, {self.nbytes} bytes)"

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, local_index: int) -> RawSample:
        position = operator.index(local_index)
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise IndexError(
                f"{self.path}: index {local_index} is out of range for {len(self)} samples"
            )
        return self.read(position)

    def __iter__(self) -> Iterator[RawSample]:
        return map(self.read, range(len(self)))

    def read(
        self, local_index: int, fields: Collection[str] | None = None, raw: Raw = "bytes"
    ) -> RawSample:
        """Read one sample.

        Args:
            local_index: Position in the shard, from 0 on.
            fields: The only fields to read, or None for all.
            raw: What a field becomes: ``"bytes"``, ``"stream"`` (an ``io.BytesIO``), or ``"view"``
                (a ``memoryview`` of the file itself, without a copy; see specs/security.md).

        Raises:
            ShardFormatError: The file was changed after it was opened.
        """
        if time.monotonic() - self._checked_s > _CHECK_EVERY_S:
            self.check()
        take = _TAKE[raw]
        source = self._view if raw == "view" else self._map
        names = self.index.fields
        sample: RawSample = {}
        for member in range(self._starts[local_index], self._starts[local_index + 1]):
            field = names[self._field_ids[member]]
            if fields is None or field in fields:
                offset = self._offsets[member]
                sample[field] = take(source[offset : offset + self._sizes[member]])
        sample["__key__"] = self.index.key(local_index)
        return sample

    def find(self, key: str) -> int:
        """Give the local index of a key, or -1."""
        return self.index.find(key)

    def check(self) -> None:
        """Compare the file's present size with the indexed one.

        To touch a mapped page that the file has lost kills the process, so this comes first.
        """
        nbytes = self._map.size()
        if nbytes != self.nbytes:
            raise ShardFormatError(
                f"{self.path}: expected {self.nbytes} bytes as when it was opened, found {nbytes}; "
                "it was changed in place: open the dataset again, and replace shards by renaming"
            )
        self._checked_s = time.monotonic()

    def close(self) -> None:
        """Let go of the file. Memoryviews that were handed out stay valid and keep it mapped."""
        self._view.release()
        with suppress(BufferError):  # views are out; the last of them closes the map
            self._map.close()

    def __enter__(self) -> Shard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _same(value: Any) -> Any:
    return value


_TAKE: Final[dict[str, Callable[[Any], Any]]] = {
    "bytes": _same,
    "view": _same,
    "stream": io.BytesIO,
}


def check_raw(raw: str) -> None:
    """Refuse a value of ``raw`` that there is not."""
    if raw not in get_args(Raw):
        raise ValueError(f'raw: expected "stream", "bytes" or "view", found {raw!r}')


def _open_map(path: str) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise ShardFormatError(
                    f"{path}: expected a tar, found an empty file; write it or fetch it again"
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise fetch.local_error(path, error) from error
