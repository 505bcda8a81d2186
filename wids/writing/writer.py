"""Samples → tar shards, each published when it is complete, and the spec that describes them.

The same samples give the same bytes: members carry a fixed owner, mode and time. What is in a field
is another room's business.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import IO, Any, Final, Literal, get_args

from wids.fields.codecs import Encode
from wids.fields.encode import encode
from wids.files import publish
from wids.files.progress import Bar
from wids.specs.loader import load_spec
from wids.specs.model import DatasetSpec, ShardSpec
from wids.tars.index import ShardIndex, TarIdentity, dump, for_ranges, parse
from wids.transport import urls
from wids.writing.build import describe, save_pack

IfExists = Literal["error", "resume", "replace"]
Encoder = bool | Mapping[str, Encode] | Callable[[dict[str, Any]], Mapping[str, Any]] | None

_BLOCK: Final = tarfile.BLOCKSIZE
_ZEROS: Final = bytes(_BLOCK)
_NAME_NBYTES: Final = 100  # in a header without extensions


class TarWriter:
    """Writes samples into one tar shard.

    Used as a context manager. A path gets its file when the block ends well, all at once; after an
    exception nothing is left behind. Not safe to share between threads.

    Args:
        target: Path of the shard, or a binary stream to write to, which stays open.
        encoder: What values become bytes by: None or True for the table of encoders, by the
            extension of a field; a dict of encoders by extension, in front of that table; False for
            none, so that values have to be bytes; or a callable from a sample to a sample of bytes.
        mode: Permissions of the members.
        user: Name of their owner.
        group: Name of their group.
        mtime: Their time of modification, in seconds since 1970.
        compress: Has to be false: a compressed tar has no random access.
        is_new: Whether something that has the path at the end is an error, and stays.

    Attributes:
        num_samples: Samples written so far.
        nbytes: Length of the finished tar in bytes; before the end, without its padding.
        sha256: Digest of the finished tar, in hexadecimal digits; "" before the end.
        index: Where the samples are in the finished tar, to be published with it; None before the
            end, and for a stream.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | IO[bytes],
        *,
        encoder: Encoder = None,
        mode: int = 0o444,
        user: str = "",
        group: str = "",
        mtime: float = 0,
        compress: bool | str | None = None,
        is_new: bool = False,
    ) -> None:
        _check_target(target, compress)
        self.num_samples = 0
        self.nbytes = 0
        self.sha256 = ""
        self.index: ShardIndex | None = None
        self._to_members = _to_members(encoder)
        self._header = _headers(mode, user, group, mtime)
        self._keys: set[str] = set()
        self._digest = hashlib.sha256()
        self._is_open = True
        self._is_whole = True
        self._replacing: AbstractContextManager[IO[bytes]] | None = None
        if isinstance(target, str | os.PathLike):
            self._replacing = publish.replacing(target, is_new=is_new)
            target = self._replacing.__enter__()
        self._stream = target

    def write(self, sample: Mapping[str, Any]) -> int:
        """Append a sample.

        Args:
            sample: Its key under ``"__key__"``, and its fields, with or without the leading dot.
                Other names that begin with an underscore are left out.

        Returns:
            Bytes of its fields.

        Raises:
            ValueError: The key is missing, was written before, or would be split otherwise; or a
                value cannot be encoded.
            TypeError: A value has no encoder.
        """
        key, members = self._to_members(sample)
        self.append(key, members)
        return sum(map(len, members.values()))

    def append(self, key: str, members: Mapping[str, bytes]) -> None:
        """Append a sample of encoded members, by their names in the tar."""
        if not self._is_open:
            raise ValueError(f"sample {key!r}: expected an open writer, found one that was closed")
        self._check_whole()
        if key in self._keys:
            raise ValueError(
                f"sample {key!r}: expected a new key, found one that was written before"
            )
        self._is_whole = False
        for name, data in members.items():
            self._put(self._header(name, len(data)))
            self._put(data)
            self._put(_ZEROS[: -len(data) % _BLOCK])
        self._is_whole = True
        self._keys.add(key)
        self.num_samples += 1

    def nbytes_with(self, members: Mapping[str, bytes]) -> int:
        """Give the length that the finished tar would have with these members appended."""
        nbytes = self.nbytes + 2 * _BLOCK
        for name, data in members.items():
            nbytes += len(self._header(name, len(data))) + len(data) + -len(data) % _BLOCK
        return nbytes + -nbytes % tarfile.RECORDSIZE

    def _put(self, data: bytes) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self.nbytes += len(data)

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
                self.index = for_ranges(data, "first")
        except BaseException as error:
            self._replacing.__exit__(type(error), error, error.__traceback__)
            raise
        self._replacing.__exit__(None, None, None)

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise OSError("a sample was written in part before; the shard is not published")

    def _finish(self) -> None:
        self._check_whole()
        # Two blocks of zeros end an archive, and zeros fill up its last record.
        self._put(bytes(2 * _BLOCK))
        self._put(bytes(-self.nbytes % tarfile.RECORDSIZE))
        self._stream.flush()
        self.sha256 = self._digest.hexdigest()

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


class ShardWriter:
    """Writes samples into numbered shards, and at the end the spec and the pack of their indexes.

    Used as a context manager. A shard appears under its name when it is complete. When the block
    ends with an exception, or the process is killed, complete shards stay and nothing else; run it
    again with ``if_exists="resume"`` and leave out the ``writer.num_samples`` samples that are
    there already:

        with ShardWriter("train-%06d.tar", if_exists="resume") as writer:
            for sample in itertools.islice(samples, writer.num_samples, None):
                writer.write(sample)

    Not safe to share between threads. Several processes take patterns of their own.

    Args:
        pattern: Path of the shards, with a ``%06d`` for their number.
        maxcount: Most samples in a shard.
        maxsize: Most bytes of a shard, unless a single sample has more.
        post: Called with the path of each shard when it is complete.
        start_shard: Number of the first shard.
        spec: Where to write the spec; True for the pattern without its number, ``train.json``;
            False for none. The pack lies beside it, ``train.index``.
        name: Name of the dataset in the spec; None for that of the file.
        if_exists: What to do where a shard or the spec is there already: ``"error"``,
            ``"resume"``, to keep what is there and go on behind it, or ``"replace"``.
        encoder, mode, user, group, mtime, compress: As for `TarWriter`.

    Attributes:
        num_samples: Samples in all shards so far.
        shards: The complete shards, as the spec will describe them.

    Raises:
        FileExistsError: Something is there already.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        maxcount: int = 100_000,
        maxsize: float = 3e9,
        post: Callable[[str], Any] | None = None,
        start_shard: int = 0,
        *,
        spec: str | os.PathLike[str] | bool = True,
        name: str | None = None,
        if_exists: IfExists = "error",
        encoder: Encoder = None,
        mode: int = 0o444,
        user: str = "",
        group: str = "",
        mtime: float = 0,
        compress: bool | str | None = None,
    ) -> None:
        _check_target(pattern, compress)
        folder, file_name = os.path.split(os.path.abspath(os.fspath(pattern)))
        if len(re.findall(r"%0?\d*d", file_name)) != 1 or file_name.count("%") != 1:
            raise ValueError(
                "pattern: expected a file name with one number such as %06d in it, found "
                f"{os.fspath(pattern)!r}"
            )
        self._folder, self._file_name = folder, file_name
        if if_exists not in get_args(IfExists):
            raise ValueError(
                f'if_exists: expected "error", "resume" or "replace", found {if_exists!r}'
            )
        if maxcount < 1 or maxsize < 1:
            raise ValueError(
                f"expected a maxcount and a maxsize of at least 1, found {maxcount} and {maxsize}"
            )
        self.maxcount = maxcount
        self.maxsize = maxsize
        self.post = post
        self.num_samples = 0
        self.shards: list[ShardSpec] = []
        self._number = start_shard
        self._if_exists = if_exists
        self._spec_path = _spec_path(folder, file_name, spec)
        self._name = name
        self._to_members = _to_members(encoder)
        self._extras: Mapping[str, Any] = {}
        self._options = {"mode": mode, "user": user, "group": group, "mtime": mtime}
        self._is_whole = True
        self._writer: TarWriter | None = None
        # Indexes wait in a file without a name, so that a dataset may have any number of shards.
        self._indexes = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        try:
            if if_exists == "error":
                _check_absent(self._path(start_shard))
                self._check_no_spec()
            elif if_exists == "resume":
                self._adopt()
        except BaseException:
            self._indexes.close()
            raise

    def write(self, sample: Mapping[str, Any]) -> int:
        """Append a sample, to the next shard if this one is full; as `TarWriter.write` does."""
        if self._indexes.closed:
            raise ValueError("a sample: expected an open writer, found one that was closed")
        self._check_whole()
        key, members = self._to_members(sample)
        nbytes = sum(map(len, members.values()))
        writer = self._writer
        if writer is not None and (
            writer.num_samples >= self.maxcount or writer.nbytes_with(members) > self.maxsize
        ):
            self._finish_shard()
        if self._writer is None:
            path, is_new = self._path(self._number), self._if_exists != "replace"
            if is_new:
                _check_absent(path)
            self._writer = TarWriter(path, is_new=is_new, **self._options)  # type: ignore[arg-type]
        self._writer.append(key, members)
        self.num_samples += 1
        return nbytes

    def close(self) -> None:
        """Publish the last shard, the pack and the spec; a second time, do nothing."""
        if self._indexes.closed:
            return
        try:
            self._check_whole()
            if self._writer is not None:
                self._finish_shard()
            if self._spec_path and self.shards:
                self._describe(self._spec_path)
        finally:
            self._indexes.close()

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise OSError('a shard could not be completed before; run again with "resume"')

    def _finish_shard(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        self._is_whole = False  # until all that belongs to the shard is done
        writer.close()
        path = self._path(self._number)
        about = ShardSpec(path, writer.num_samples, writer.nbytes, sha256=writer.sha256)
        self._add(about, writer.index)
        self._is_whole = True
        if self.post is not None:
            self.post(path)

    def _add(self, about: ShardSpec, index: ShardIndex | None) -> None:
        self.shards.append(about)
        self._number += 1
        if index is not None and about.nbytes is not None:
            blob = dump(index, TarIdentity(about.nbytes))
            self._indexes.write(len(blob).to_bytes(8, "little") + blob)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, self._file_name % number)

    def _adopt(self) -> None:
        """Take over the complete shards that are there."""
        there = self._numbers_there()
        stop = self._number
        while stop in there:
            stop += 1
        if there and max(there) > stop:
            raise FileExistsError(
                f"{self._path(max(there))}: it is there already, and {self._path(stop)} is not; "
                "move it back, or the shards behind it away"
            )
        count = stop - self._number
        with Bar("reading shards that are there", count, "shard") as bar:
            for number in range(count):
                about, index = describe(self._path(self._number))
                self._add(about, index)
                self.num_samples += about.num_samples or 0
                bar.reach(number + 1)
        if self._spec_path and os.path.exists(self._spec_path):
            before = load_spec(self._spec_path)
            self._extras = before.extras
            self._name = before.name if self._name is None else self._name

    def _numbers_there(self) -> set[int]:
        head, width, tail = re.split(r"(%0?\d*d)", self._file_name)
        form = re.compile(re.escape(head) + r"(\d+)" + re.escape(tail))
        found = (form.fullmatch(name) for name in os.listdir(self._folder))
        numbers = {int(match[1]) for match in found if match and width % int(match[1]) == match[1]}
        return {number for number in numbers if number >= self._number}

    def _check_no_spec(self) -> None:
        if self._spec_path:
            for path in (self._spec_path, _pack_path(self._spec_path)):
                _check_absent(path)

    def _describe(self, path: str) -> None:
        if self._if_exists == "error":
            self._check_no_spec()
        save_pack(_pack_path(path), self._packed())
        stem = os.path.splitext(os.path.basename(path))[0]
        name = stem if self._name is None else self._name
        DatasetSpec(tuple(self.shards), name, _pack_path(path), self._extras).save(path)

    def _packed(self) -> Iterator[tuple[str, int, ShardIndex]]:
        self._indexes.seek(0)
        for about in self.shards:
            nbytes = about.nbytes or 0
            blob = self._indexes.read(int.from_bytes(self._indexes.read(8), "little"))
            index = parse(blob, 0, len(blob), TarIdentity(nbytes), "first")
            if index is None:
                raise OSError(f"{about.url}: the index that waited in a temporary file was damaged")
            yield os.path.basename(about.url), nbytes, index

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        with suppress(OSError):  # a full disk; what is in it is not needed
            self._indexes.close()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.__exit__(kind, error, trace)


def _headers(mode: int, user: str, group: str, mtime: float) -> Callable[[str, int], bytes]:
    """Give the function from the name and length of a member to its header.

    Most headers differ in name, length and checksum only, so these are put into a template; the
    standard library, which takes tens of microseconds, makes the template and all other headers.
    """

    def whole(name: str, nbytes: int) -> bytes:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = nbytes, mode, mtime
        member.uname, member.gname = user, group
        return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")

    template = whole("", 0)
    is_simple = len(template) == _BLOCK
    checksum = int(template[148:154], 8) - sum(template[124:136])

    def header(name: str, nbytes: int) -> bytes:
        if not (is_simple and len(name) <= _NAME_NBYTES and name.isascii() and nbytes < 8**11):
            return whole(name, nbytes)
        stored, length = name.encode("ascii"), b"%011o\0" % nbytes
        digits = b"%06o\0" % (checksum + sum(stored) + sum(length))
        return b"".join(
            (
                *(stored.ljust(_NAME_NBYTES, b"\0"), template[100:124], length),
                *(template[136:148], digits, template[155:]),
            )
        )

    return header


def _to_members(
    encoder: Encoder,
) -> Callable[[Mapping[str, Any]], tuple[str, dict[str, bytes]]]:
    """Give the function from a sample to its key and encoded members, by their names."""
    table = encoder if isinstance(encoder, Mapping) else {}
    if encoder is False or (callable(encoder) and not isinstance(encoder, Mapping)):
        encode_field: Callable[[str, Any], bytes] = _only_bytes
    else:

        def encode_field(field: str, value: Any) -> bytes:
            return encode(field, value, table)

    def to_members(sample: Mapping[str, Any]) -> tuple[str, dict[str, bytes]]:
        if callable(encoder) and not isinstance(encoder, Mapping):
            sample = encoder(dict(sample))
        key = sample.get("__key__")
        if not isinstance(key, str) or not key:
            raise ValueError(f'a sample: expected its key under "__key__", found {key!r:.80}')
        members: dict[str, bytes] = {}
        for name, value in sample.items():
            if name.startswith("_"):
                continue
            field = name if name.startswith(".") else "." + name
            _check_name(key, field)
            if key + field in members:
                raise ValueError(
                    f"sample {key!r}: expected the field {field!r} once, found it twice"
                )
            try:
                members[key + field] = encode_field(field, value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"sample {key!r}: {error}") from error
        if not members:
            raise ValueError(f"sample {key!r}: expected at least one field, found none")
        return key, members

    return to_members


def _only_bytes(field: str, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f'field "{field}": expected bytes, found {type(value).__name__}')
    return bytes(value)


def _check_name(key: str, field: str) -> None:
    base = key.rpartition("/")[2]
    is_split_so = base and "." not in base and len(field) > 1 and "/" not in field
    try:
        is_storable = b"\0" not in (key + field).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        is_storable = False
    if not (is_split_so and is_storable):
        raise ValueError(
            f"sample {key!r}: expected a key without a dot in its last part and a field without a "
            f"slash, found the member name {key + field!r}, which is read back as another key and "
            "field"
        )


def _check_target(target: Any, compress: bool | str | None) -> None:
    name = os.fspath(target) if isinstance(target, str | os.PathLike) else ""
    if urls.scheme(name) not in ("", "file") or name.startswith("file:"):
        raise ValueError(
            f"{urls.redact(name)}: expected a path on this machine, found a URL; write here, and "
            "copy what is complete"
        )
    if compress or name.endswith((".gz", ".tgz", ".bz2", ".xz", ".zst")):
        raise ValueError(
            f"{name or 'a shard'}: expected a plain tar, since a compressed one has no random "
            "access; compress fields instead, by names that end in .gz, such as .json.gz"
        )


def _check_absent(path: str) -> None:
    if os.path.lexists(path):
        raise FileExistsError(
            f'{path}: it is there already; pass if_exists="resume" to keep it and go on behind it, '
            '"replace" to write it anew, or another name'
        )


def _spec_path(folder: str, file_name: str, spec: str | os.PathLike[str] | bool) -> str:
    if spec is False:
        return ""
    if spec is not True:
        path = os.path.abspath(os.fspath(spec))
        if not path.endswith(".json"):
            raise ValueError(f"spec: expected a name that ends in .json, found {os.fspath(spec)!r}")
        return path
    stem = re.sub(r"[-_.]?%0?\d*d", "", os.path.splitext(file_name)[0]) or "shards"
    return os.path.join(folder, stem + ".json")


def _pack_path(spec_path: str) -> str:
    return os.path.splitext(spec_path)[0] + ".index"
