"""Read counts and splits of shards from files that other programs write beside them.

Each format is a small function of bytes, and one entry in a table. SPEC-50 in specs/shard-spec.md
names the programs.

Files are looked for under their names, and no folder is listed, so that plain HTTP works too. No
shard is read. Two files that disagree are an error.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

from wids.errors import MismatchError, NotFoundError, SpecError
from wids.shards.specs.model import COUNTS_FROM, INFO, DatasetSpec, ShardSpec
from wids.shards.specs.naming import expand
from wids.shards.specs.parsing import MAX_DOCUMENT_NBYTES, parse
from wids.storage.fetch import Fetcher
from wids.storage.reading_threads import in_threads
from wids.storage.remote_lengths import ask_lengths
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)


Counts: TypeAlias = "dict[str, int]"
"""Number of samples by the name of a shard, relative to the folder that the file describes."""


OTHER_FORM: Final = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(OverflowError, RecursionError),  # of ``Infinity``, and of brackets nested too deeply
)
"""Errors of a document of another form than expected."""


class CountFile(NamedTuple):
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
    CountFile(lambda name: f"{name.removesuffix('.tar')}_stats.json", 1 << 20, _successes),
    CountFile(dali_name, 64, dali_count),
    CountFile(lambda name: f"{name}.idx", 8, _entries),
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


_MAX_NBYTES: Final = 64 << 20
"""Longest file with the counts of a folder; that of a longer one is of another program."""

_NUM_ASKED: Final = 16
"""Folders of which one has to have such files, or no other is asked."""


def with_stated_counts(
    shards: Sequence[ShardSpec], numbers: Iterable[int], fetcher: Fetcher
) -> tuple[ShardSpec, ...]:
    """Return shards with the counts that lie beside some of them.

    Args:
        shards: The shards.
        numbers: Those to look for.
        fetcher: Looks for files, and reads them.

    Raises:
        MismatchError: Two files, or a spec and a file, state different counts for a shard.
        FetchError: A file that exists cannot be read.
    """
    by_folder: defaultdict[str, list[int]] = defaultdict(list)
    for number in numbers:
        if urls.scheme(shards[number].url) != "pipe":
            by_folder[urls.parent(shards[number].url)].append(number)
    search, result = _Search(shards, fetcher), list(shards)
    search.look(by_folder, slice(_NUM_ASKED))
    if search.sizes:
        search.look(by_folder, slice(_NUM_ASKED, None))
    for folder, own in by_folder.items():
        search.note_folder(folder, own)
        search.note_shards(own)
    for number, counts in search.counts.items():
        result[number] = _stated(shards[number], counts)
    if search.counts:
        sources = {source for counts in search.counts.values() for source in counts}
        _logger.info(
            "%s: the counts of %d shards, from files beside them",
            urls.redact(min(sources)),
            len(search.counts),
        )
    return tuple(result)


def _beside(url: str, kind: CountFile) -> str:
    """Return the URL of a file beside a shard."""
    stem, mark, query = (url, "", "") if urls.is_local(url) else url.partition("?")
    return kind.name(stem) + mark + query


@dataclass
class _Search:
    """A search for files beside some shards, and what was found, by the numbers of the shards.

    Attributes:
        shards: All shards.
        fetcher: Looks for files, and reads them.
        sizes: The lengths of files that exist.
        counts: The counts of each shard, by the file that states them.
    """

    shards: Sequence[ShardSpec]
    fetcher: Fetcher
    sizes: dict[str, int] = field(default_factory=dict)
    counts: defaultdict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def look(self, by_folder: Mapping[str, Sequence[int]], which: slice) -> None:
        """Look for the files of some folders, and for those of their first shards."""
        names = set()
        for folder, own in list(by_folder.items())[which]:
            names |= {urls.join(folder, name) for name in OF_FOLDER}
            names |= {_beside(self.shards[own[0]].url, kind) for kind in OF_SHARD}
        self.sizes |= _lengths(self.fetcher, names)

    def note_folder(self, folder: str, numbers: Sequence[int]) -> None:
        """Note the counts in the files of a folder."""
        by_path = {urls.path_of(self.shards[number].url): number for number in numbers}
        for name, read_counts in OF_FOLDER.items():
            url = urls.join(folder, name)
            if not 0 < self.sizes.get(url, 0) <= _MAX_NBYTES:
                continue
            root = urls.join(folder, "..") if name.startswith("../") else folder
            # By its length, and not by `Fetcher.read`, which would bind options to this server.
            data = self.fetcher.read_start(url, self.sizes[url]).data
            try:
                counts = counts_in(data, url, read_counts)
            except SpecError as error:  # a file of this name may be of another program
                _logger.warning("%s; continuing without it", str(error))
                continue
            join = urls.joiner(root)
            for shard, count in counts.items():
                number = by_path.get(urls.path_of(join(shard)))
                if number is not None:
                    self.counts[number][url] = count

    def note_shards(self, numbers: Sequence[int]) -> None:
        """Note the counts in files of single shards, unless a file of the folder states them."""
        if all(number in self.counts for number in numbers):
            return
        for kind in OF_SHARD:
            if _beside(self.shards[numbers[0]].url, kind) not in self.sizes:
                continue
            files = {number: _beside(self.shards[number].url, kind) for number in numbers}
            for number, count in _counts(kind, files, self.fetcher).items():
                self.counts[number][files[number]] = count


def _counts(kind: CountFile, files: Mapping[int, str], fetcher: Fetcher) -> dict[int, int]:
    """Return the counts in files of single shards; a missing file has none."""

    def count(url: str) -> int | None:
        try:
            start = fetcher.read_start(url, kind.head_nbytes)
        except NotFoundError:
            return None
        return kind.parse(start.data[: kind.head_nbytes], start.total_nbytes or 0)

    tasks = [partial(count, url) for url in files.values()]
    is_local = all(map(urls.is_local, files.values()))
    counts = [task() for task in tasks] if is_local else in_threads(tasks, "wids-counts")
    pairs = zip(files, counts, strict=True)
    return {number: count for number, count in pairs if count is not None}


def _lengths(fetcher: Fetcher, names: Iterable[str]) -> dict[str, int]:
    """Return the lengths of those files that exist."""
    wanted = sorted(set(names))
    answers = ask_lengths(fetcher, wanted, is_tolerant=True)
    pairs = zip(wanted, answers, strict=True)
    return {url: answer for url, answer in pairs if isinstance(answer, int)}


def _stated(shard: ShardSpec, counts: Mapping[str, int]) -> ShardSpec:
    """Return a shard with what files state, which must be the same.

    Raises:
        MismatchError: It is not.
    """
    counts_by_source = {urls.redact(source): count for source, count in counts.items()}
    extras = dict(shard.extras)
    if shard.num_samples is None:
        extras[COUNTS_FROM] = next(iter(counts_by_source))
    else:
        counts_by_source = {
            extras.get(COUNTS_FROM, "the spec"): shard.num_samples,
            **counts_by_source,
        }
    (source, count), *others = counts_by_source.items()
    for other, found in others:
        if found != count:
            raise disagreement(shard.url, source, count, other, found)
    return replace(shard, num_samples=count, extras=extras)


def split_of(
    spec: DatasetSpec, split: str, infos: Sequence[str], read: Callable[[str, int], bytes]
) -> DatasetSpec:
    """Return the dataset of one split, with its shards in the order of the split.

    Args:
        spec: The whole dataset.
        split: The name of the split.
        infos: The documents of Energon that it was loaded from; the splits are beside one.
        read: Returns the bytes of a document.

    Raises:
        SpecError: There is no such split, or it excludes single samples.
        ImportError: PyYAML is not installed.
    """
    if spec.all_dataset_indexes():
        raise SpecError(
            f"split {split!r}: expected shards with the splits of another program, found a spec "
            "with an index; select from its dataset, by dataset.sources or dataset.split"
        )
    if len(infos) == 1:
        names = _energon_split(infos[0], split, read)
        by_url = {shard.url: shard for shard in spec.shards}
        missing = [name for name in names if name not in by_url]
        if missing:
            raise SpecError(
                f"{urls.redact(infos[0])}: expected all shards of the split {split!r}, found none "
                f"of the name {urls.redact(missing[0])}; correct the split, or prepare the dataset "
                "again"
            )
        return replace(spec, name=split, shards=tuple(by_url[name] for name in names))
    found = list(dict.fromkeys(shard.dataset for shard in spec.shards if shard.dataset))
    if split not in found:
        raise _no_split(spec.name or "the dataset", split, found)
    own = tuple(shard for shard in spec.shards if shard.dataset == split)
    return DatasetSpec(own, split, extras=spec.extras)


def _energon_split(info: str, split: str, read: Callable[[str, int], bytes]) -> list[str]:
    """Return the URLs of the shards of a split, without those that are excluded."""
    folder = urls.parent(info)
    join = urls.joiner(urls.join(folder, ".."))
    try:
        url = urls.join(folder, "split.yaml")
        data = read(url, MAX_DOCUMENT_NBYTES)
        document = _from_yaml(data, url)
    except NotFoundError:
        url = urls.join(folder, "split.json")
        document = parse(read(url, MAX_DOCUMENT_NBYTES), urls.redact(url))
    try:
        parts = {name: list(own or ()) for name, own in document["split_parts"].items()}
        names = [name for part in parts.get(split, ()) for name in expand(part)]
        excluded = {name for part in document.get("exclude") or () for name in expand(part)}
    except OTHER_FORM as error:
        raise SpecError(
            f"{urls.redact(url)}: expected the shards of each split under split_parts, found "
            f"another {type(document).__name__}"
        ) from error
    if split not in parts:
        raise _no_split(urls.redact(url), split, list(parts))
    alone = [name for name in excluded if ".tar/" in name]
    if alone:
        raise SpecError(
            f"{urls.redact(url)}: expected whole shards to exclude, found the sample {alone[0]!r}; "
            "load the dataset without split, and select a view of it"
        )
    return [join(name) for name in names if name not in excluded]


def _from_yaml(data: bytes, url: str) -> Any:
    try:
        yaml: Any = import_module("yaml")
    except ImportError as error:
        raise ImportError(
            f"{urls.redact(url)}: splits by name need the package PyYAML, which is not installed: "
            "pip install pyyaml"
        ) from error
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, *OTHER_FORM) as error:
        raise SpecError(
            f"{urls.redact(url)}: expected YAML, found an error: {error!s:.300}"
        ) from error


def _no_split(name: str, split: str, found: Sequence[str]) -> SpecError:
    splits = ", ".join(found) or "none"
    return SpecError(f"{name}: expected a split {split!r}, found {splits:.200}")
