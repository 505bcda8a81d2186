"""Samples → a tar shard, published when it is complete.

The same samples give the same bytes: members carry a fixed owner, mode and time. What a spec says
of them is another room's business.
"""

from __future__ import annotations

import io
import mmap
import os
import tarfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import IO, Any, Final

from wids import publish
from wids.encode import encode
from wids.index import ShardIndex, build, with_checksums
from wids.keys import split_name, to_bytes
from wids.tar import scan

_MODE: Final = 0o444


class TarWriter:
    """Writes samples into one tar shard.

    Used as a context manager. A path gets its file when the block ends well, all at once; after an
    exception nothing is left behind. Not safe to share between threads.

    Args:
        target: Path of the shard, or a binary stream to write to, which stays open.

    Attributes:
        num_samples: Samples written so far.
        nbytes: Length of the finished tar in bytes; 0 before the end.
        index: Where the samples are in the finished tar, to be published with it; None before the
            end, and for a stream.
    """

    def __init__(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        self.num_samples = 0
        self.nbytes = 0
        self.index: ShardIndex | None = None
        self._keys: set[str] = set()
        self._is_open = True
        self._replacing: AbstractContextManager[IO[bytes]] | None = None
        if isinstance(target, str | os.PathLike):
            self._replacing = publish.replacing(target)
            target = self._replacing.__enter__()
        self._stream = target
        self._tar = tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def write(self, sample: Mapping[str, Any]) -> None:
        """Append a sample.

        Args:
            sample: Its key under ``"__key__"``, and its fields, with or without the leading dot;
                values are encoded by their field's extension. Other names that begin with ``__``
                are left out.

        Raises:
            ValueError: The key is missing, was written before, or would be split otherwise.
            TypeError: A value has no encoder.
        """
        key = sample.get("__key__")
        if not isinstance(key, str) or not key:
            raise ValueError(f'a sample: expected its key under "__key__", found {key!r:.80}')
        if key in self._keys:
            raise ValueError(
                f"sample {key!r}: expected a new key, found one that was written before"
            )
        members: dict[str, bytes] = {}
        for name, value in sample.items():
            if name.startswith("__"):
                continue
            field = name if name.startswith(".") else "." + name
            if split_name(to_bytes(key + field)) != (to_bytes(key), to_bytes(field)):
                raise ValueError(
                    f"sample {key!r}: expected a key without a dot in its last part and a field "
                    f"without a slash, found the member name {key + field!r}, which is read "
                    "back as another key and field"
                )
            if key + field in members:
                raise ValueError(
                    f"sample {key!r}: expected the field {field!r} once, found it twice"
                )
            members[key + field] = encode(field, value)
        if not members:
            raise ValueError(f"sample {key!r}: expected at least one field, found none")
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = _MODE
            self._tar.addfile(member, io.BytesIO(data))
        self._keys.add(key)
        self.num_samples += 1

    def close(self) -> None:
        """Finish the tar and give the file its name; a second time, do nothing."""
        if not self._is_open:
            return
        self._is_open = False
        if self._replacing is None:
            self._finish()
            return
        try:
            self._finish()
            with mmap.mmap(self._stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                self.index = with_checksums(build(scan(data), "first"), data)
        except BaseException as error:
            self._replacing.__exit__(type(error), error, error.__traceback__)
            raise
        self._replacing.__exit__(None, None, None)

    def _finish(self) -> None:
        self._tar.close()
        # tarfile fills up the last record, and does not count that.
        self.nbytes = -(-self._tar.offset // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
        self._stream.flush()

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif self._is_open and self._replacing is not None:
            self._is_open = False
            self._replacing.__exit__(kind, error, trace)
