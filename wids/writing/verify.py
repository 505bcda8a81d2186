"""A spec against its shards → the list of what is wrong, one problem a line.

Every shard is read from its first byte to its last, wherever it is. This room mends nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from wids.errors import FetchError, SampleError, ShardFormatError
from wids.fields.decode import Decoder
from wids.files.digests import file_digest
from wids.files.progress import Bar
from wids.specs.loader import Shards, load_spec
from wids.specs.model import ShardSpec
from wids.tars import index, tar
from wids.tars import names as keys
from wids.tars.index import Pack, ShardIndex, TarIdentity
from wids.tars.names import KeySplit, to_text
from wids.tars.shard import Shard
from wids.tars.tar import TarIndex
from wids.transport import fetch, urls

_MAX_NAMES: Final = 3

Locate = Callable[[ShardSpec], "str | None"]


@dataclass(frozen=True)
class Problem:
    """Something that is wrong.

    Attributes:
        shard: Path or URL of the shard, or of the pack.
        text: What was expected and what was found.
    """

    shard: str
    text: str

    def __str__(self) -> str:
        return f"{self.shard}: {self.text}"


class _Made(NamedTuple):
    """What is kept of the index of a shard, to be compared with that of the pack.

    Attributes:
        nbytes: Length of the tar.
        digest: Digest of the index; the index itself would fill the memory for a large dataset.
    """

    nbytes: int
    digest: bytes


def verify_spec(
    shards: Shards,
    *,
    base: str | os.PathLike[str] | None = None,
    decode: bool = False,
    locate: Locate | None = None,
    executor: Executor | None = None,
    allow_pipe: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> list[Problem]:
    """Compare shards with what a spec and its pack say of them.

    Lengths, digests, counts, the checksums of headers, names that belong to no sample or come
    twice, bytes behind the end, the index in the pack; and the fields, if wanted.

    Args:
        shards: The shards, in any form that a dataset takes.
        base: Folder or URL that relative references start from.
        decode: Whether to decode every field too.
        locate: Gives the path of a local file to look at for a shard, or None to leave it out. By
            default local shards are read in place, and remote ones fetched, and not kept.
        executor: Where to do the work, as for `build_spec`.
        allow_pipe: Whether a document may name ``pipe:`` commands.
        storage_options: As for `ShardListDataset`.
        progress: Whether to show a progress bar; None for in terminals and notebooks only.

    Returns:
        The problems, in the order of the shards; none if all is well.

    Raises:
        SpecError: ``shards`` is malformed.
        FetchError: A document cannot be read. (A shard that cannot be read is a problem.)
    """
    fetcher = fetch.Fetcher(storage_options)
    spec = load_spec(shards, base=base, allow_pipe=allow_pipe, read=fetcher.read)
    problems: list[Problem] = []
    of_pack: list[Problem] = []
    with ExitStack() as stack:
        bar = stack.enter_context(Bar("verifying", len(spec.shards), "shard", wanted=progress))
        pack = None
        if spec.index is not None and locate is None:
            pack, of_pack = _opened_pack(stack, fetcher, spec.index, len(spec.shards))
        examine = partial(_examined, fetcher, locate, decode)
        results = (
            map(examine, spec.shards) if executor is None else executor.map(examine, spec.shards)
        )
        for number, (about, (found, made)) in enumerate(zip(spec.shards, results, strict=True)):
            problems += found
            if pack is not None and made is not None and not _has(pack, number, about, made):
                name = os.path.basename(urls.path_of(about.url))
                text = f"its index of {name} is not that of the shard; make it anew"
                of_pack.append(Problem(urls.redact(spec.index or ""), text))
            bar.reach(number + 1)
    return [*problems, *of_pack]


def _examined(
    fetcher: fetch.Fetcher, locate: Locate | None, decode: bool, about: ShardSpec
) -> tuple[list[Problem], _Made | None]:
    """Give the problems of a shard; and its length and index, where it has any. For executors."""
    if locate is not None:
        path = locate(about)
        return ([], None) if path is None else _problems(about, path, path, decode)
    name = urls.redact(about.url)
    try:
        with fetch.downloaded(fetcher, about.url) as path:
            return _problems(about, path, name, decode)
    except FetchError as error:
        return [Problem(name, _without(name, error))], None


def _problems(
    about: ShardSpec, path: str, name: str, decode: bool
) -> tuple[list[Problem], _Made | None]:
    try:
        nbytes = os.stat(path).st_size
    except OSError as error:
        return [Problem(name, f"it cannot be read: {error.strerror or error}")], None
    seen: list[TarIndex] = []
    find_index = partial(_indexed, about.key_split or "first", seen)
    try:
        shard = Shard(path, find_index=find_index)
    except (FetchError, ShardFormatError) as error:
        reason = _without(path, error)
        try:
            mismatch = _mismatch(about, path, nbytes)
        except OSError:  # a folder, or gone: which is the reason
            mismatch = ""
        return [Problem(name, f"{mismatch}; {reason}" if mismatch else reason)], None
    with shard:
        mismatch = _mismatch(about, path, nbytes)
        texts = []
        if about.num_samples not in (None, len(shard)):
            texts.append(f"the spec says {about.num_samples} samples, it has {len(shard)}")
        texts += _odd_names(seen[0], about.key_split or "first")
        texts += seen[0].remarks
        if decode:
            texts += _decode_problems(shard)
        made = _Made(nbytes, _digest(shard.index, nbytes))
    if mismatch:
        # The file is not the one that was meant: one problem, and what else is odd are its details.
        return [Problem(name, "; ".join([mismatch, *texts]))], None
    return [Problem(name, text) for text in texts], made


def _indexed(
    key_split: KeySplit, seen: list[TarIndex], path: str, data: tar.TarBytes, _: TarIdentity
) -> ShardIndex:
    found = tar.scan(data, path)
    seen.append(found)
    return index.with_checksums(index.build(found, key_split, path), data)


def _mismatch(about: ShardSpec, path: str, nbytes: int) -> str:
    """Tell how a file differs from the one that the spec describes, or give ``""``."""
    if about.nbytes not in (None, nbytes):
        return f"the spec says {about.nbytes} bytes, it has {nbytes}"
    if about.sha256 is not None:
        found = file_digest(path, "sha256")
        if found != about.sha256.lower():
            return f"the spec says the sha256 {about.sha256}, it has {found}"
    elif about.md5sum is not None:
        found = file_digest(path, "md5")
        if found != about.md5sum.lower():
            return f"the spec says the md5sum {about.md5sum}, it has {found}"
    return ""


def _odd_names(found: TarIndex, key_split: KeySplit) -> list[str]:
    dots = keys.split_names(found.names, key_split).dots.tolist()
    orphans = [name for name, dot in zip(found.names, dots, strict=True) if not dot]
    counts: dict[bytes, int] = {}
    for name in found.names:
        counts[name] = counts.get(name, 0) + 1
    twice = [name for name, count in counts.items() if count > 1]
    texts = []
    if orphans:
        texts.append(f"{len(orphans)} members belong to no sample: {_listed(orphans)}")
    if twice:
        texts.append(f"{len(twice)} names come more than once: {_listed(twice)}")
    return texts


def _listed(names: list[bytes]) -> str:
    shown = ", ".join(to_text(name) for name in names[:_MAX_NAMES])
    return shown + (", …" if len(names) > _MAX_NAMES else "")


def _decode_problems(shard: Shard) -> list[str]:
    decoder = Decoder()
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for local_index, sample in enumerate(shard):
        try:
            decoder(dict(sample))
        except SampleError as error:
            text = str(error)
            first.setdefault(text, f'sample "{sample["__key__"]}" (its number {local_index})')
            counts[text] += 1
    # Where each sample has the same problem, such as a package that is missing, once is enough.
    more = {text: f" (and {n - 1} more like it)" if n > 1 else "" for text, n in counts.items()}
    return [f"{where}: {text}{more[text]}" for text, where in first.items()]


def _opened_pack(
    stack: ExitStack, fetcher: fetch.Fetcher, url: str, num_shards: int
) -> tuple[Pack | None, list[Problem]]:
    """Open a pack for as long as the stack lasts; give it, and what is wrong with it as a whole."""
    name = urls.redact(url)
    try:
        path = stack.enter_context(fetch.downloaded(fetcher, url))
    except FetchError as error:
        return None, [Problem(name, _without(name, error))]
    pack = index.load_pack(path)
    if pack is None:
        what = "found something else, or damaged" if os.path.exists(path) else "found none"
        return None, [Problem(name, f"expected a pack of indexes, {what}")]
    if len(pack) != num_shards:
        text = f"expected the indexes of {num_shards} shards, found {len(pack)}"
        return pack, [Problem(name, text)]
    return pack, []


def _has(pack: Pack, number: int, about: ShardSpec, made: _Made) -> bool:
    """Tell whether a pack has the index of a shard; that it is too short was told already."""
    if number >= len(pack):
        return True
    found = pack.index(number, made.nbytes, about.key_split or "first")
    is_same = found is not None and _digest(found, made.nbytes) == made.digest
    return is_same and pack.is_named(number, os.path.basename(urls.path_of(about.url)))


def _digest(made: ShardIndex, nbytes: int) -> bytes:
    return hashlib.blake2b(index.dump(made, TarIdentity(nbytes))).digest()


def _without(prefix: str, error: Exception) -> str:
    return str(error).removeprefix(prefix).removeprefix(": ")
