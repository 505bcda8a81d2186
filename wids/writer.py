"""Samples → a tar shard, published when it is complete.

The same samples give the same bytes: members carry a fixed owner, mode and time. Reading them back,
and what a spec says of them, are other rooms' business.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any, Final

from wids.encode import encode
from wids.keys import split_name, to_bytes

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
    """

    def __init__(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        self.num_samples = 0
        self.nbytes = 0
        self._path: str | None = None
        if isinstance(target, str | os.PathLike):
            self._path = os.fspath(target)
            folder, name = os.path.split(os.path.abspath(self._path))
            handle, self._temporary = tempfile.mkstemp(
                dir=folder, prefix=f".{name}.", suffix=".tmp"
            )
            self._stream: IO[bytes] = open(handle, "wb")  # noqa: SIM115 - closed by __exit__
        else:
            self._stream = target
        self._tar = tarfile.open(fileobj=self._stream, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._keys: set[str] = set()

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
        members = []
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
            members.append((key + field, encode(field, value)))
        if not members:
            raise ValueError(f"sample {key!r}: expected at least one field, found none")
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = _MODE
            self._tar.addfile(member, io.BytesIO(data))
        self._keys.add(key)
        self.num_samples += 1

    def close(self) -> None:
        """Finish the tar and give the file its name."""
        self._tar.close()
        # tarfile fills up the last record, and does not count that.
        self.nbytes = -(-self._tar.offset // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
        self._stream.flush()
        if self._path is not None:
            os.fsync(self._stream.fileno())
            self._stream.close()
            os.chmod(self._temporary, 0o644)  # mkstemp's 0600 would lock other users out
            os.replace(self._temporary, self._path)

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
        elif self._path is not None:
            self._stream.close()
            os.unlink(self._temporary)
