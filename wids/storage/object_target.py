"""Write objects of S3, Google Cloud Storage and Azure with obstore.

These stores show an object when its last request has been answered. A large file is sent in parts,
several at a time. obstore has no condition for those, so a file that must be new, or must replace a
stated version, is sent in one request, up to the 5 GB that all stores accept there
(specs/decisions/0097).
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Final

from wids.storage.transport import store_clients, urls
from wids.storage.transport.object_store import ObjectStores
from wids.storage.transport.store_clients import KINDS, Store
from wids.storage.upload_target import Target

PART_NBYTES: Final = 16 << 20
MAX_PUT_NBYTES: Final = 5_000_000_000
"""Most bytes of one request that writes an object."""

_MAX_PARTS: Final = 10_000
_NUM_CONNECTIONS: Final = 4
"""As many parts are in memory."""

_MIN_NBYTES_PER_S: Final = 50_000
"""An upload that is slower fails."""

_ASK_S: Final = 60.0
_ABORT_S: Final = 1.0
"""How long to wait, after Ctrl-C, until the store has dropped the parts."""


class ObjectTarget(Target):
    """An object that obstore writes."""

    _transport: ObjectStores

    def __init__(self, transport: ObjectStores, url: str) -> None:
        super().__init__(transport, url)
        # Google compares generations of objects, the others tags.
        self._version = "version" if KINDS[urls.scheme(url)] == "gcs" else "e_tag"

    def read(self) -> tuple[bytes, str | None]:
        """Return all bytes and their version, from one response."""
        import obstore

        def read(store: Store, key: str) -> tuple[bytes, str | None]:
            result = obstore.get(store, key)
            return bytes(result.bytes()), result.meta[self._version]

        return self._transport.asked(self._url, read)

    def put(self, path: str, *, is_new: bool, replaces: str | None) -> None:
        """Upload, compare the length, and delete what is only a part."""
        nbytes = os.path.getsize(path)
        is_compared = replaces is not None or (is_new and nbytes <= MAX_PUT_NBYTES)
        if is_compared or nbytes <= PART_NBYTES:
            self._put_at_once(path, nbytes, is_new=is_new, replaces=replaces)
        else:
            self._put_parts(path, nbytes, is_new=is_new)
        with suppress(PermissionError):  # some keys are for writing alone
            self.check_length(nbytes)

    def _put_at_once(self, path: str, nbytes: int, *, is_new: bool, replaces: str | None) -> None:
        import obstore

        version = {self._version: replaces}
        mode = "create" if is_new else "overwrite" if replaces is None else version

        def put(store: Store, key: str) -> None:
            with open(path, "rb") as file:
                # Mapped, so that the file takes no memory; nothing cannot be mapped.
                data: Any = b""
                if nbytes:
                    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                obstore.put(store, key, data, mode=mode, use_multipart=False)

        timeout = f"{max(300, nbytes // _MIN_NBYTES_PER_S)}s"
        times = {"timeout": timeout, "read_timeout": timeout}
        self._transport.asked(self._url, put, "to write it", **times)

    def _put_parts(self, path: str, nbytes: int, *, is_new: bool) -> None:
        import obstore

        part_nbytes = max(PART_NBYTES, -(-nbytes // _MAX_PARTS))
        is_over, has_ended = threading.Event(), threading.Event()

        def parts() -> Generator[bytes, None, None]:
            with open(path, "rb") as file:
                while part := file.read(part_nbytes):
                    yield part
                    if is_over.is_set():
                        raise InterruptedError  # obstore then drops the parts
            if is_new:  # asked as late as can be; obstore takes no call within its own
                store_clients.interruptible(self.check_absent, _ASK_S)

        def put(store: Store, key: str) -> None:
            sizes = {"chunk_size": part_nbytes, "max_concurrency": _NUM_CONNECTIONS}
            try:
                obstore.put(store, key, parts(), use_multipart=True, **sizes)
            finally:
                has_ended.set()

        limit = store_clients.REQUEST_TIMEOUT  # for a part
        try:
            self._transport.asked(self._url, put, "to write it", timeout=limit, read_timeout=limit)
        except (KeyboardInterrupt, SystemExit):
            is_over.set()
            has_ended.wait(_ABORT_S)
            raise

    def move(self, url: str) -> None:
        """Copy the object to another name, and delete it."""
        import obstore

        other = store_clients.place_of(url).key
        self._transport.asked(self._url, lambda store, key: obstore.rename(store, key, other))

    def remove(self) -> None:
        """Delete the object."""
        import obstore

        self._transport.asked(self._url, obstore.delete)
