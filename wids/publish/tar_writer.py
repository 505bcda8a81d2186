"""Write samples to one tar shard, published when complete, with its digest and its index.

The same samples give the same bytes: every member has the same owner, mode and time.

The writer refuses a sample that a reader would split into another key or other fields.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final
from zlib import adler32

from wids.errors import printable
from wids.shards.fields.codecs import Encode
from wids.shards.fields.encode import encode
from wids.shards.tars.headers import is_metadata, padded, to_bytes
from wids.shards.tars.index import MemberLog, ShardIndex
from wids.storage import files, upload
from wids.storage.files import fastest_crc32
from wids.storage.sizes import count_text, nbytes_text
from wids.storage.transport import urls

if TYPE_CHECKING:
    from typing_extensions import Self


Encoder = bool | Mapping[str, Encode] | Callable[[dict[str, Any]], Mapping[str, Any]] | None
ToMembers = Callable[[Mapping[str, Any]], tuple[str, dict[str, bytes]]]

_MAX_NAME_LENGTH: Final = 200_000
"""In characters, of up to 4 bytes: a scan refuses extended headers of more than 1 MiB."""


def member_encoder(encoder: Encoder) -> ToMembers:
    """Return the function from a sample to its key and its encoded members.

    Args:
        encoder: How values become bytes, as for `wids.TarWriter`.
    """
    if isinstance(encoder, Mapping):
        return partial(_members, None, partial(encode, encoders=encoder))
    if callable(encoder):
        return partial(_members, encoder, _only_bytes)
    return partial(_members, None, _only_bytes if encoder is False else encode)


def members_as_read(sample: Mapping[str, Any]) -> tuple[str, dict[str, bytes]]:
    """Return the key of a sample that was read undecoded, and its members.

    Values that are not bytes are those of rows that were joined; None where there is no row.
    """
    fields = {name: value for name, value in sample.items() if value is not None}
    return _members(None, stored_or_encoded, fields)


def _members(
    transform: Callable[[dict[str, Any]], Mapping[str, Any]] | None,
    encode_field: Callable[[str, Any], bytes],
    sample: Mapping[str, Any],
) -> tuple[str, dict[str, bytes]]:
    """Return the key of a sample and its encoded members, by their names in the tar."""
    if transform is not None:
        sample = transform(dict(sample))
    key = sample.get("__key__")
    if not isinstance(key, str) or not key:
        raise ValueError(f'a sample: expected its key under "__key__", found {key!r:.80}')
    members: dict[str, bytes] = {}
    is_storable_key = _is_storable_key(key)
    for name, value in sample.items():
        if name.startswith("_"):
            continue
        field = name if name.startswith(".") else "." + name
        member = key + field
        if len(member) > _MAX_NAME_LENGTH:
            raise ValueError(
                f"sample {key!r:.80}: expected a key and a field of at most "
                f"{_MAX_NAME_LENGTH:,} characters together, found {len(member):,}"
            )
        if not (is_storable_key and _is_storable_field(field)):
            raise ValueError(
                f"sample {key!r}: expected a key without a dot in its last part and a field "
                f"without a slash, found the member name {member!r}, which is read back as "
                "another key and field"
            )
        if key.startswith("__") and is_metadata(to_bytes(member)):
            raise ValueError(
                f"sample {key!r:.80}: expected a name that does not begin with __…__, found the "
                f"member {member!r:.80}, which readers skip as metadata; rename it"
            )
        if member in members:
            raise ValueError(f"sample {key!r}: expected the field {field!r} once, found it twice")
        try:
            members[member] = encode_field(field, value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"sample {key!r}: {error}") from error
    if not members:
        raise ValueError(f"sample {key!r}: expected at least one field, found none")
    return key, members


def stored_or_encoded(field: str, value: Any) -> bytes:
    """Return bytes as they are, whatever their field, and any other value encoded."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return encode(field, value)


def _only_bytes(field: str, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f'field "{printable(field)}": expected bytes, found {type(value).__name__}')
    return bytes(value)


def _is_storable_key(key: str) -> bool:
    """Whether a member that is read back can have this key."""
    base = key.rpartition("/")[2]
    return bool(base) and "." not in base and _is_storable(key)


@lru_cache(maxsize=1024)  # there are few fields, and many samples
def _is_storable_field(field: str) -> bool:
    """Whether a member that is read back can have this field."""
    return len(field) > 1 and "/" not in field and _is_storable(field)


def _is_storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


class BlockWriter:
    """A context manager that publishes what was written, or leaves nothing behind."""

    _title = ""

    def __init__(self) -> None:
        self._is_open = True
        self._process = os.getpid()

    def _check_process(self) -> None:
        """Raise RuntimeError in a process that was forked since."""
        files.check_process(self._process, self._title)

    def close(self) -> None:
        """Finish and publish what was written; a second call does nothing."""
        if not self._is_open:
            return
        try:
            self._is_open = False
            self._publish()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def _publish(self) -> None:
        """Finish and publish what was written."""
        raise NotImplementedError

    def _drop(self, *failure: Any) -> None:
        """Clean up after an exception; called a second time, it does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            self.close()
            return
        self._is_open = False
        self._drop(*failure)


_BLOCK: Final = tarfile.BLOCKSIZE
_ZEROS: Final = bytes(_BLOCK)
_NAME_NBYTES: Final = 100  # in a header without extensions
_JOINED_NBYTES: Final = 32 << 10
_MAX_OCTAL_NBYTES: Final = 8**11  # larger members need another form of header


class TarWriter(BlockWriter):
    """Writes samples into one tar shard.

    Use it as a context manager. The file appears under its path when the block ends normally; after
    an exception nothing is left behind. The next writer of the same path deletes what a killed one
    left, once it is a minute old. Not safe to share between threads; a process that is forked
    meanwhile can neither write nor finish the file.

    Args:
        target: Path of the shard; its URL, in an object store or of a scheme that fsspec can
            write, to which the complete file is uploaded from the folder for temporary files
            (``TMPDIR``); or a binary stream to write to, which stays open.
        encoder: How values become bytes: None or True for the table of encoders, chosen by the
            extension of a field; a dict of encoders by extension, which take precedence over that
            table; False for no encoding, so that every value has to be bytes; or a callable from a
            sample to a sample of bytes.
        mode: Permissions of the members.
        user: Name of their owner.
        group: Name of their group.
        mtime: Their modification time, in seconds since 1970.
        compress: Has to be false: a compressed tar has no random access.
        is_new: Whether to raise FileExistsError, and leave the existing file alone, if something
            has the path when the shard is complete.
        storage_options: As for `ShardListDataset`, for a URL.

    Attributes:
        num_samples: Samples written so far.
        nbytes: Length of the finished tar in bytes; until it is closed, without its padding.
        sha256: Digest of the finished tar, in hexadecimal digits; ``""`` until it is closed.
        index: Where the samples are in the finished tar, with checksums, for a dataset index; None
            until it is closed, and for a stream.

    Examples:
        >>> import wids
        >>> with wids.TarWriter("cats.tar") as writer:
        ...     nbytes = writer.write({"__key__": "0001", "txt": "a cat", "cls": 3})
        >>> nbytes
        6
        >>> with wids.Shard("cats.tar") as shard:
        ...     shard[0]
        {'.txt': b'a cat', '.cls': b'3', '__key__': '0001'}
    """

    _sweeps: ClassVar[bool] = True

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
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_target(target, compress)
        super().__init__()
        self._title = type(target).__name__
        if isinstance(target, str | os.PathLike):
            self._title = urls.redact(os.fsdecode(target))
        self.num_samples = 0
        self.nbytes = 0
        self.sha256 = ""
        self.index: ShardIndex | None = None
        self._to_members = member_encoder(encoder)
        self._header = header_function(mode, user, group, mtime)
        self._members = MemberLog()
        self._crc32 = fastest_crc32()
        self._keys: set[str] = set()
        self._digest = hashlib.sha256()
        self._has_partial_sample = False
        # Not an ExitStack, and before `_stream`: if an unclosed writer is collected in a cycle, the
        # collector ends what it reaches first, and this closes the stream.
        self._publishing: AbstractContextManager[IO[bytes]] | None = None
        if isinstance(target, str | os.PathLike):
            self._publishing = upload.publishing(
                target, is_new=is_new, sweeps=self._sweeps, storage_options=storage_options
            )
            target = self._publishing.__enter__()
        self._stream = target
        is_raw = isinstance(target, io.RawIOBase)
        self._write = partial(_write_whole, target) if is_raw else target.write

    def write(self, sample: Mapping[str, Any]) -> int:
        """Append a sample.

        Args:
            sample: Its key under ``"__key__"``, and its fields, with or without the leading dot.
                Other names that begin with an underscore are left out.

        Returns:
            The total length of its fields in bytes.

        Raises:
            ValueError: The key is missing, was written already, or would be read back as another
                one; or a value cannot be encoded.
            TypeError: There is no encoder for a value.
        """
        key, members = self._to_members(sample)
        self.append(key, members)
        return sum(map(len, members.values()))

    def append(self, key: str, members: Mapping[str, bytes]) -> None:
        """Append a sample of encoded members, by their names in the tar."""
        if not self._is_open:
            raise ValueError(f"sample {key!r}: expected an open writer, found one that was closed")
        if self._publishing is not None:  # a stream of the caller may be the child's
            self._check_process()
        self._check_no_partial_sample()
        if key in self._keys:
            raise ValueError(
                f"sample {key!r}: expected a new key, found one that was already written"
            )
        self._has_partial_sample = True
        parts: list[bytes] = []
        at = self.nbytes
        for name, data in members.items():
            header = self._header(name, len(data))
            parts += header, data, _ZEROS[: -len(data) % _BLOCK]
            skipped = len(header) - _BLOCK
            # Readers skip what precedes the last block if it states neither name nor length.
            if skipped and not fits_one_block(name, len(data)):
                skipped = 0
            crc = self._crc32(data)
            self._members.add(to_bytes(name), at + skipped, header[skipped:], len(data), crc)
            at += len(header) + padded(len(data))
        # A call for each small part would take longer than joining them.
        for part in [b"".join(parts)] if at - self.nbytes < _JOINED_NBYTES else parts:
            self._put(part)
        self._has_partial_sample = False
        self._keys.add(key)
        self.num_samples += 1

    def nbytes_with(self, members: Mapping[str, bytes]) -> int:
        """Return the length of the finished tar, in bytes, if these members were appended."""
        nbytes = self.nbytes
        for name, data in members.items():
            nbytes += len(self._header(name, len(data))) + len(data) + -len(data) % _BLOCK
        return finished_nbytes(nbytes)

    def _put(self, data: bytes | memoryview) -> None:
        self._write(data)
        self._digest.update(data)
        self.nbytes += len(data)

    def _drain(self) -> None:
        """Wait until the stream and the digest have received everything that was put."""
        self._stream.flush()

    def _publish(self) -> None:
        self._check_no_partial_sample()
        # Two blocks of zeros end an archive, and zeros fill up its last record.
        self._put(bytes(2 * _BLOCK))
        self._put(bytes(-self.nbytes % tarfile.RECORDSIZE))
        self._drain()
        self.sha256 = self._digest.hexdigest()
        if self._publishing is not None:
            # Indexed before it has its name, so that a published shard is always a valid one.
            self.index = self._members.index()
            self._publishing.__exit__(None, None, None)

    def _drop(self, *failure: Any) -> None:
        if self._publishing is not None:
            self._publishing.__exit__(*failure)

    def _check_no_partial_sample(self) -> None:
        if self._has_partial_sample:
            raise OSError("an earlier sample was written only in part; the shard is not published")

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        counts = f"{count_text(self.num_samples, 'sample')}, {nbytes_text(self.nbytes)}"
        return f"<TarWriter {self._title!r}: {counts}, {state}>"


def _write_whole(stream: IO[bytes], data: bytes | memoryview) -> None:
    """Write to a stream without a buffer, which may take fewer bytes at a time, as sockets do."""
    with memoryview(data) as view:
        start = 0
        while start < len(view):
            count = stream.write(view[start:])
            if not count:
                raise BlockingIOError(
                    "expected a stream that waits until it can write, found one that does not "
                    f"({type(stream).__name__}); make it blocking"
                )
            start += count


def header_function(mode: int, user: str, group: str, mtime: float) -> Callable[[str, int], bytes]:
    """Return the function from the name and length of a member to its header.

    Most headers differ only in name, length and checksum, so these are filled into a template. The
    standard library, which takes tens of microseconds, makes the template and all other headers.
    """

    def full_header(name: str, nbytes: int) -> bytes:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = nbytes, mode, mtime
        member.uname, member.gname = user, group
        return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")

    template = full_header("", 0)
    is_simple = len(template) == _BLOCK  # an owner or a time may need a header of its own
    # A checksum is the sum of all bytes; that of the template without its length field.
    checksum = int(template[148:154], 8) - sum(template[124:136])
    between, before, after = template[100:124], template[136:148], template[155:]

    @lru_cache(maxsize=1024)  # fields such as classes have few lengths
    def length_field(nbytes: int) -> tuple[bytes, int]:
        field = b"%011o\0" % nbytes
        return field, sum(field)

    def header(name: str, nbytes: int) -> bytes:
        if not (is_simple and fits_one_block(name, nbytes)):
            return full_header(name, nbytes)
        stored, (length, length_sum) = name.encode("ascii"), length_field(nbytes)
        # The sum of up to 100 bytes in a quarter of the time that sum() takes.
        name_sum = (adler32(stored) & 0xFFFF) - 1
        digits = b"%06o\0" % (checksum + name_sum + length_sum)
        padded_name = stored.ljust(_NAME_NBYTES, b"\0")
        return b"".join((padded_name, between, length, before, digits, after))

    return header


def fits_one_block(name: str, nbytes: int) -> bool:
    """Whether the header of a member is one block, if its owner and its time need no more."""
    return len(name) <= _NAME_NBYTES and name.isascii() and nbytes < _MAX_OCTAL_NBYTES


def finished_nbytes(nbytes: int) -> int:
    """Return the length of a finished tar, in bytes, whose members take this many."""
    nbytes += 2 * _BLOCK  # zeros that end the archive, and then fill its last record
    return nbytes + -nbytes % tarfile.RECORDSIZE


def check_target(target: Any, compress: bool | str | None) -> None:
    """Raise ValueError for a target that cannot be written, or that asks for compression."""
    name = os.fspath(target) if isinstance(target, str | os.PathLike) else ""
    upload.check_writable(name)
    if compress or name.endswith((".gz", ".tgz", ".bz2", ".xz", ".zst")):
        raise ValueError(
            f"{urls.redact(name) or 'a shard'}: expected a plain tar, since a compressed one has "
            "no random access; compress fields instead, by names that end in .gz, such as .json.gz"
        )
