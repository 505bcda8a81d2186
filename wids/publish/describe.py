"""Describe one local shard: sample count, length, digest, and index with checksums.

Reads the tar from the first byte to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wids.shards.indexes import index_file
from wids.shards.specs.model import ShardSpec
from wids.shards.tars.headers import KeySplit, TarBytes
from wids.shards.tars.index import Repeated, ShardIndex, TarIdentity, index_tar
from wids.shards.tars.shard import Shard
from wids.storage.files import file_digest


@dataclass(frozen=True)
class ShardRecord:
    """The description of one shard.

    Attributes:
        url: Absolute path or URL.
        key_split: The rule that groups its members into samples.
        identity: Identity of a local file when it was read; None for a remote one.
        num_samples: Number of samples.
        nbytes: Length of the tar in bytes.
        sha256: Digest of the tar, in hexadecimal digits; None if only its headers were read.
        blob: Its index with checksums, serialized as in a dataset index; those of members only if
            these were read.
        source: Digest of what the shard was made from; ``""`` for an existing one.
        cut_short: Members that are pictures without their end, as far as that was looked at.

    A rewritten shard of which nothing changed is not written. Its record has a count, and no bytes.
    """

    url: str
    key_split: KeySplit
    identity: TarIdentity | None
    num_samples: int
    nbytes: int
    sha256: str | None
    blob: bytes
    source: str = ""
    cut_short: Sequence[str] = ()

    @property
    def is_kept(self) -> bool:
        """Whether the shard of the input stays, instead of a new one."""
        return bool(self.num_samples and not self.nbytes)

    def index(self) -> ShardIndex | None:
        """Return its index; None if the bytes are damaged."""
        blob, identity = self.blob, TarIdentity(self.nbytes)
        return index_file.parse(blob, 0, len(blob), identity, self.key_split)

    def spec(self) -> ShardSpec:
        """Return what a spec says of the shard."""
        return ShardSpec(self.url, self.num_samples, self.nbytes, sha256=self.sha256)


def record_of(
    url: str,
    shard_index: ShardIndex,
    nbytes: int,
    sha256: str | None,
    identity: TarIdentity | None = None,
    source: str = "",
) -> ShardRecord:
    """Return the description of a shard that was indexed; for arguments see `ShardRecord`."""
    blob = index_file.dump(shard_index, TarIdentity(nbytes))
    rule, count = shard_index.key_split, len(shard_index)
    return ShardRecord(url, rule, identity, count, nbytes, sha256, blob, source)


def describe_shard(
    path: str, key_split: KeySplit = "first", repeated: Repeated = "error"
) -> ShardRecord:
    """Read a local shard from end to end and describe it.

    Raises:
        FetchError: The file cannot be opened.
        ShardFormatError: It is not a complete, plain tar.
    """

    def indexed(_: str, data: TarBytes, __: TarIdentity) -> ShardIndex:
        return index_tar(data, key_split, path, checksums=True, repeated=repeated)

    with Shard(path, find_index=indexed) as shard:
        # The identity of the opened file, so that a change during reading is noticed later.
        return record_of(
            path, shard.index, shard.nbytes, file_digest(path, "sha256"), shard.identity
        )
