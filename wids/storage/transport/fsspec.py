"""Open URLs of any scheme that fsspec knows: ``s3:``, ``gs:``, ``az:``, ``hf:`` and others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from wids.errors import FetchError, NotFoundError
from wids.storage.transport import urls
from wids.storage.transport.store_settings import OWN_OPTIONS
from wids.storage.transport.stream import (
    Content,
    Entry,
    Stream,
    TransientError,
    Transport,
    driver_error,
    file_chunks,
    file_stream,
)

_BLOCK_NBYTES: Final = 16 << 20

_EXTRAS: Final = {**urls.KINDS, "adl": "azure", "hf": "hf", "sftp": "sftp", "ssh": "sftp"}
"""The extra of this package that installs the driver for a scheme."""

_ARCHIVES: Final = frozenset(("zip", "tar", "libarchive"))

_INDIRECT: Final = frozenset(
    (
        *("local", "asynclocal", "file", "git", "dvc", "reference", "dir", "zip", "tar"),
        *("libarchive", "data", "jupyter", "jlab", "dask", "worker", "generic"),
        *("async_wrapper", "asyncwrapper", "filecache", "blockcache", "simplecache", "cached"),
    )
)
"""Schemes of fsspec that read local files, or any file through another URL.

With them a document from elsewhere could name files that it must not name (specs/security.md).
"""


def transport_for(options: Mapping[str, Any], scratch: str | None) -> Fsspec:  # noqa: ARG001
    """Return the transport with the caller's options, except those that no driver takes."""
    return Fsspec({name: value for name, value in options.items() if name not in OWN_OPTIONS})


class Fsspec(Transport):
    """Reads files through fsspec.

    Args:
        options: Passed to the file system, as in ``fsspec.open(url, **options)``.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})

    def open(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:
        """Open a file, or read a part of it in one piece."""
        system, path = self.file_system(url)
        try:
            if stop == 0:
                return Stream(Content(0, *_version(system, path)), iter(()))
            if stop is not None:
                return part(url, system, path, start, stop, tag)
            nbytes, tag = _version(system, path)
            file = system.open(path, "rb", block_size=_BLOCK_NBYTES)
        except Exception as error:  # noqa: BLE001 - drivers raise errors of any kind
            raise driver_error(url, error) from None
        if not start:  # the files of some drivers cannot be positioned
            return Stream(Content(0, nbytes, tag), file_chunks(url, file), file.close)
        stream = file_stream(url, file, start, None)
        return replace(stream, content=stream.content._replace(total_nbytes=nbytes, tag=tag))

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder, by a new listing."""
        system, path = self.file_system(folder)
        try:
            system.invalidate_cache()  # a shard may have been added
            infos = system.ls(path, detail=True)
        except FileNotFoundError:
            private = (
                "; if it is private, log in or set HF_TOKEN" if urls.scheme(folder) == "hf" else ""
            )
            raise NotFoundError(f"{urls.redact(folder)}: no such folder{private}") from None
        except Exception as error:  # noqa: BLE001 - drivers raise errors of any kind
            raise driver_error(folder, error) from None
        return entries_of(infos, path)

    def file_system(self, url: str) -> tuple[Any, str]:
        """Return the file system of a URL, and the URL's path in it.

        Raises:
            FetchError: There is no driver for its scheme, or it leads to local files.
        """
        import fsspec

        scheme = urls.scheme(url)
        urls.check_server(url)
        # SEC-10; `::` chains file systems, so a harmless scheme could hide `simplecache::file:`.
        if scheme in _INDIRECT or "::" in url:
            remedy = "name the file itself"
            if scheme in _ARCHIVES:
                remedy = "unpack the archive first: a tar inside another file has no random access"
            raise FetchError(
                f"{urls.redact(url)}: expected the URL of a file, found one that leads to another "
                f'through "{scheme}"; {remedy}'
            )
        try:
            system, path = fsspec.core.url_to_fs(url, **self.options)
        except (ImportError, ValueError) as error:
            extra = _EXTRAS.get(scheme)
            remedy = f"pip install 'wids[{extra}]'" if extra else "install its fsspec driver"
            raise FetchError(
                f'{urls.redact(url)}: expected a driver for "{scheme}", found: '
                f"{urls.without_secrets(str(error), url)}; {remedy}, or pass a handler for it"
            ) from None
        except Exception as error:  # noqa: BLE001 - some drivers connect at once
            raise driver_error(url, error) from None
        # Drivers of other packages are not in the list above.
        if getattr(system, "local_file", False):
            raise FetchError(
                f"{urls.redact(url)}: expected a remote file, found a driver for local ones; name "
                "the file by its path"
            )
        return system, path


def entries_of(infos: Iterable[Mapping[str, Any]], folder: str) -> list[Entry]:
    """Return the items of a driver's listing, without the folder itself and names outside of it."""
    entries = []
    for info in infos:
        is_folder, size = info.get("type") == "directory", info.get("size")
        parent, _, name = str(info["name"]).strip("/").rpartition("/")
        if parent == folder.strip("/") and name not in ("", ".", "..") and "\0" not in name:
            nbytes = size if isinstance(size, int) and not is_folder else None
            entries.append(Entry(name, nbytes, is_folder))
    return entries


def _version(system: Any, path: str) -> tuple[int | None, str | None]:
    """Return the length and the tag of a file."""
    if system.protocol == "hf":
        # One request about one file; without these arguments, the driver lists its folder.
        info = system.info(path, refresh=True, expand_info=True)
    else:
        system.invalidate_cache()  # listings are cached, and would hide a newer version of the file
        info = system.info(path)
    tag = info.get("ETag") or info.get("etag") or info.get("blob_id")
    return info.get("size"), None if tag is None or str(tag).startswith("W/") else str(tag)


def part(url: str, system: Any, path: str, start: int, stop: int | None, tag: str | None) -> Stream:
    """Return the stream of a part of a file, with the tag of the version that it is from.

    Bytes and tag are two requests, and the file may be replaced between them. A tag that was known
    before the bytes were read, and is the same afterwards, is theirs. If it differs from a tag that
    the caller knows, the caller compares them.
    """
    known = _version(system, path)[1] if tag is None else tag
    # Drivers that open a file for a part would read five megabytes ahead.
    opens = stop is not None and not getattr(system, "async_impl", False)
    exact = {"cache_type": "none"} if opens else {}
    data = system.cat_file(path, start=start, end=stop, **exact)
    nbytes, found = _version(system, path)
    if tag is None and found != known:
        message = f"{urls.redact(url)}: it changed while it was being read"
        raise TransientError(message, is_outage=False)
    return Stream(Content(start, nbytes, found), iter([data]))
