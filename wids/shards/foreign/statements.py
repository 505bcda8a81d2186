"""Read how many samples shards have from files that other programs write beside them.

Each format is a small function of bytes, and one entry in a table. SPEC-50 in specs/shard-spec.md
names the programs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from wids.errors import MismatchError, SpecError
from wids.shards.specs.model import INFO
from wids.storage.transport import urls

Counts: TypeAlias = "dict[str, int]"
"""Number of samples by the name of a shard, relative to the folder that the file describes."""


OTHER_FORM: Final = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(OverflowError, RecursionError),  # of ``Infinity``, and of brackets nested too deeply
)
"""Errors of a document of another form than expected."""


class OfShard(NamedTuple):
    """A file with the count of one shard.

    Attributes:
        name: Returns its name from that of the shard.
        head_nbytes: First bytes that have the count, or show that its length does.
        parse: Returns the count from these bytes and the length; None if they do not have it.
    """

    name: Callable[[str], str]
    head_nbytes: int
    parse: Callable[[bytes, int], int | None]


def by_shard(document: Any) -> Counts:
    """Return the counts of ``sizes.json``: an object with a number for each shard."""
    return {name: _number(count) for name, count in _object(document).items()}


def by_split(document: Any) -> Counts:
    """Return the counts of ``_info.json``, which has names and lengths of shards by split."""
    counts: Counts = {}
    for split in _object(document)["splits"].values():
        counts |= zip(split["filenames"], map(_number, split["shard_lengths"]), strict=True)
    return counts


def by_shard_counts(document: Any) -> Counts:
    """Return the counts of Energon's ``.info.json``."""
    return by_shard(_object(document)["shard_counts"])


def of_documents(documents: list[Any]) -> Counts:
    """Return the counts of a ``manifest.jsonl``, which names shards without ``.tar``."""
    named = ((str(line["shard"]), _number(line["num_sequences"])) for line in documents)
    return {name if name.endswith(".tar") else f"{name}.tar": count for name, count in named}


OF_FOLDER: Final[Mapping[str, Callable[[Any], Counts]]] = {
    "sizes.json": by_shard,
    "_info.json": by_split,
    ".info.json": by_shard_counts,
    "manifest.jsonl": of_documents,
    INFO: by_shard_counts,
    f"../{INFO}": by_shard_counts,
}
"""Files with the counts of all shards of a folder, by their names relative to that folder."""


def counts_in(data: bytes, url: str, parse: Callable[[Any], Counts]) -> Counts:
    """Return the counts in a file of a folder.

    Raises:
        SpecError: It has another form.
    """
    try:
        is_lines = urls.path_of(url).endswith(".jsonl")
        lines = [line for line in data.split(b"\n") if line.strip()] if is_lines else ()
        return parse(list(map(json.loads, lines)) if is_lines else json.loads(data))
    except OTHER_FORM as error:
        raise SpecError(
            f"{urls.redact(url)}: expected the number of samples of each shard, found text that "
            f"begins with {data[:40].decode('utf-8', 'replace')!r} ({type(error).__name__}: "
            f"{error})"
        ) from error


def disagreement(
    shard: str, source: str, count: int | None, other: str, found: int
) -> MismatchError:
    """Return the error for two files that state different numbers of samples of a shard."""
    return MismatchError(
        f"{urls.redact(shard)}: {source} states {count} samples, and {other} {found}; correct or "
        "remove the one that is wrong, or describe the shards with `wids create` and open that spec"
    )


def as_spec(document: Mapping[str, Any], label: str) -> dict[str, Any] | None:
    """Return a document of another program in the form of a spec; None for other documents."""
    try:
        if "splits" in document:
            splits = document["splits"].items()
            own = {name: by_split({"splits": {name: split}}) for name, split in splits}
            return {"datasets": [{"name": n, "shardlist": _entries_of(own[n])} for n in own]}
        if "shard_counts" in document:
            base = ".." if label.endswith(INFO) else None
            return {"base": base, "shardlist": _entries_of(by_shard_counts(document))}
        if document and all(name.endswith(".tar") for name in document):
            return {"shardlist": _entries_of(by_shard(document))}
    except OTHER_FORM:
        pass
    return None


def _entries_of(counts: Counts) -> list[dict[str, Any]]:
    return [{"url": name, "nsamples": count} for name, count in counts.items()]


def dali_name(name: str) -> str:
    """Return the name that an index of DALI has by default, if that of the shard has one dot."""
    return f"{name.removesuffix('.tar')}.idx"


def dali_count(head: bytes, _nbytes: int) -> int | None:
    """Return the count in the first line of DALI's index, such as ``v1.2 1000``."""
    version, _, count = head.partition(b"\n")[0].partition(b" ")
    return int(count) if version[:2] == b"v1" and count.strip().isdigit() else None


def _successes(data: bytes, _: int) -> int | None:
    """Return the count in ``00000_stats.json``, where img2dataset counts what it stored."""
    try:
        count = _object(json.loads(data))["successes"]
    except OTHER_FORM:
        return None
    return count if type(count) is int and count >= 0 else None


def _entries(head: bytes, nbytes: int) -> int | None:
    """Return the count that follows from the length of Energon's ``.tar.idx``.

    It has eight bytes for the start of each sample, the first of which is 0, and for the end of the
    last one.
    """
    return nbytes // 8 - 1 if head == bytes(8) and nbytes >= 16 and not nbytes % 8 else None


OF_SHARD: Final = (
    OfShard(lambda name: f"{name.removesuffix('.tar')}_stats.json", 1 << 20, _successes),
    OfShard(dali_name, 64, dali_count),
    OfShard(lambda name: f"{name}.idx", 8, _entries),
)
"""Files with the count of one shard."""


def _object(document: Any) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise TypeError("expected an object")
    return document


def _number(value: Any) -> int:
    number = int(value)
    if number < 0:
        raise ValueError(f"found the number {number}")
    return number
