"""Write the samples of files without random access to new shards, with spec and dataset index.

Such files are compressed tars, and files of concatenated maps in MessagePack or CBOR, one for each
sample. Each file is read once. A compressed one is first decompressed into a temporary file, so
that an incomplete file is an error and not a shorter one.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import re
import shutil
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from itertools import islice
from typing import IO, Any, Final

from wids.errors import ShardFormatError, printable
from wids.publish.journal import Journal
from wids.publish.output import Output
from wids.publish.rewriting.rewrite import limits
from wids.publish.shard_job import no_sample_error, unfinished_run
from wids.publish.shard_writer import ShardWriter
from wids.publish.tar_writer import stored_or_encoded
from wids.shards.fields.codecs import how_to_install
from wids.shards.specs.model import DatasetSpec
from wids.shards.tars.index import TarIdentity
from wids.shards.tars.shard import Shard
from wids.storage import fetch
from wids.storage.files import unnamed_file
from wids.storage.transport import urls

_NAME: Final = re.compile(
    r".*\.(?:(?P<tgz>tgz)|(?P<kind>tar|msgpack|msg|mpk|cbor|cbors)(?:\.(?P<packed>gz|bz2|xz|zst))?)",
    re.IGNORECASE | re.DOTALL,
)
_OPEN: Final[Mapping[str, Callable[[str], Any]]] = {
    "gz": gzip.open,
    "bz2": bz2.open,
    "xz": lzma.open,
}
_PIECE_NBYTES: Final = 1 << 20
_MAX_SAMPLE_NBYTES: Final = (1 << 31) - 1
_EXTENSIONS: Final = ".tgz, .tar.zst, .msgpack or .cbor"


def is_old_stream(name: str) -> bool:
    """Whether a path or URL names such a file, by its extension."""
    return _kind(name) is not None


def stream_samples(
    path: str, name: str, *, folder: str | None = None
) -> Iterator[Mapping[str, Any]]:
    """Yield the samples of a file: their keys, and their fields as they are stored.

    Args:
        path: A local file.
        name: Its path or URL, for its kind, and for messages without secrets.
        folder: Where to decompress; None for the system's folder of temporary files.

    Raises:
        ShardFormatError: The file is damaged, incomplete or of another kind.
        ModuleNotFoundError: A package is missing that reads it.
    """
    kind, label = _kind(name), urls.redact(name)
    if kind is None:
        raise ShardFormatError(f"{label}: expected {_EXTENSIONS}, found another extension")
    form, packed = kind
    with ExitStack() as stack:
        if packed:
            file, plain = stack.enter_context(unnamed_file(folder))
            _decompress(path, file, packed, label)
            file.flush()
            path = plain
        if form == "tar":
            yield from _tar_samples(path, label)
            return
        stream = stack.enter_context(open(path, "rb"))
        values = _cbor_values(stream) if form.startswith("cbor") else _msgpack_values(stream)
        yield from _mapped(values, stream, label)


def _kind(name: str) -> tuple[str, str] | None:
    """Return form and compression of a file; None if it has random access or another kind."""
    match = _NAME.fullmatch(urls.path_of(name))
    if match is None:
        return None
    if match["tgz"]:
        return "tar", "gz"
    form, packed = match["kind"].lower(), (match["packed"] or "").lower()
    return None if form == "tar" and not packed else (form, packed)


def _decompress(path: str, file: IO[bytes], packed: str, label: str) -> None:
    try:
        if packed == "zst":
            _decompress_zstd(path, file)
        else:
            with _OPEN[packed](path) as stream:
                shutil.copyfileobj(stream, file, _PIECE_NBYTES)
    except (EOFError, OSError, zlib.error, lzma.LZMAError, _ZstdDataError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system: a full disk
            raise
        raise _damaged(label, f"a complete .{packed} file", str(error)) from error


class _ZstdDataError(ValueError):
    """The data of a zstd file is damaged, or ends too early."""


def _decompress_zstd(path: str, file: IO[bytes]) -> None:
    zstandard = _imported("zstandard")
    frame = None
    with open(path, "rb") as stream:
        while piece := stream.read(_PIECE_NBYTES):
            while piece:  # a file may have several frames
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    file.write(frame.decompress(piece))
                except zstandard.ZstdError as error:
                    raise _ZstdDataError(str(error)) from error
                piece, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None or not file.tell():
        raise _ZstdDataError("it ends before its last frame does")


def _tar_samples(path: str, label: str) -> Iterator[Mapping[str, Any]]:
    try:
        with Shard(path) as shard:
            yield from shard
    except ShardFormatError as error:
        text = str(error).replace(printable(path), label)
        raise ShardFormatError(text) from None


def _msgpack_values(stream: IO[bytes]) -> Iterator[Any]:
    msgpack = _imported("msgpack")
    unpacker = msgpack.Unpacker(stream, max_buffer_size=_MAX_SAMPLE_NBYTES, strict_map_key=False)
    end = 0
    for value in unpacker:
        end = unpacker.tell()
        yield value
    # msgpack does not report that the file ends inside a value.
    if end < os.fstat(stream.fileno()).st_size:
        raise EOFError(f"the last sample, from byte {end} on, is incomplete")


def _cbor_values(stream: io.BufferedReader) -> Iterator[Any]:
    cbor2 = _imported("cbor2")
    # From a stream that cannot seek, cbor2 reads no more than a value.
    decoder = cbor2.CBORDecoder(_OnlyRead(stream))
    while stream.peek(1):
        yield decoder.decode()


class _OnlyRead:
    """A binary stream that cannot seek."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.read = stream.read

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether it can seek."""
        return False


def _mapped(values: Iterator[Any], stream: IO[bytes], label: str) -> Iterator[Mapping[str, Any]]:
    """Yield values that are samples: maps with a key."""
    number = 0
    while True:
        try:
            value = next(values)
        except StopIteration:
            return
        except (ModuleNotFoundError, OSError):
            raise
        except Exception as error:
            where = f"samples; after {number}, near byte {stream.tell()}"
            raise _damaged(label, where, str(error) or type(error).__name__) from error
        key = value.get("__key__") if isinstance(value, Mapping) else None
        key = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
        if not isinstance(key, str) or not all(isinstance(name, str) for name in value):
            raise ShardFormatError(
                f'{label}: sample {number}: expected a map of fields with a "__key__", found '
                f"{type(value).__name__} {value!r:.80}"
            )
        number += 1
        yield {**value, "__key__": key}


def _damaged(label: str, expected: str, found: str) -> ShardFormatError:
    return ShardFormatError(
        f"{label}: expected {expected}, found: {printable(found)}; compare it with where it came "
        "from"
    )


def _imported(package: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"{package} is needed to read this file: {how_to_install(package)}", name=package
        ) from None


def rewrite_streams(
    names: Sequence[str],
    pattern: str | os.PathLike[str],
    *,
    maxcount: int | None = None,
    maxsize: int | str | None = None,
    fields: Collection[str] | None = None,
    name: str | None = None,
    resume: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> DatasetSpec:
    """Write the samples of old streams into plain tars, in their order.

    After an interruption, call it again with the same arguments: complete shards are kept, and the
    files are read again up to there.

    Args:
        names: Paths or URLs of the files.
        pattern: As for `rewrite`.
        maxcount: The same.
        maxsize: The same.
        fields: The only fields to keep; None for all.
        name: As for `rewrite`.
        resume: False to write the shards of an interrupted run again.
        storage_options: As for `ShardListDataset`.

    Returns:
        The spec of the new dataset.

    Raises:
        ShardFormatError: A file is damaged, incomplete or of another kind.
        FetchError: A file cannot be read.
        PackError: There is no sample.
        FileExistsError: Another dataset is there already.
        ValueError: Two samples of a shard have the same key, a value cannot be encoded, or an
            argument is invalid.
    """
    output = Output.for_pattern(pattern, "rewriting", name=name, storage_options=storage_options)
    fetcher = fetch.Fetcher(storage_options)
    count, limit = limits(maxcount, maxsize)
    wanted = None if fields is None else frozenset("." + field.lstrip(".") for field in fields)
    facts = (*map(_identity, names), maxcount, limit, "first", sorted(wanted or ()))
    source = hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()
    output.make_folder()

    def unwanted(_: Journal) -> list[str] | None:
        return None if resume else output.existing_shards()

    with unfinished_run(output, source, unwanted) as target:
        writer = ShardWriter(
            pattern,
            maxcount=count,
            maxsize=1 << 62 if limit is None else limit,
            name=output.name,
            encoder=False,
            if_exists="resume" if target.if_exists == "error" else "replace",
            storage_options=storage_options,
        )
        with writer:
            samples = _all_samples(fetcher, names, output, wanted)
            for sample in islice(samples, writer.num_samples, None):
                writer.write(sample)
            if not writer.num_samples:
                raise no_sample_error(output)
    return DatasetSpec(tuple(writer.shards), output.name, output.dataset_index_path)


def _identity(name: str) -> tuple[Any, ...]:
    """Return what changes when a local file does; for a remote one its URL."""
    if not urls.is_local(name):
        return (name,)
    path = os.path.abspath(urls.local_path(name))
    return path, *TarIdentity.of_file(os.stat(path))


def _all_samples(
    fetcher: fetch.Fetcher, names: Sequence[str], output: Output, wanted: Collection[str] | None
) -> Iterator[dict[str, Any]]:
    """Yield samples with the wanted fields, as bytes; bytes are copied as they are."""
    # The disk of the output has space for its shards.
    folder = output.names.folder if output.is_local else None
    for name in names:
        with fetch.downloaded(fetcher, name) as path:
            for sample in stream_samples(path, name, folder=folder):
                found = {"__key__": sample["__key__"]}
                for key, value in sample.items():
                    field = "." + key.lstrip(".")
                    if not key.startswith("_") and (wanted is None or field in wanted):
                        found[key] = stored_or_encoded(field, value)
                yield found
