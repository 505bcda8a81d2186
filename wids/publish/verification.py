"""List what is wrong with a spec, its shards and their copies in a cache, one problem a line.

`verify_spec` reads every shard from the first byte to the last, including remote ones.

`check_copies` reads copies in a cache: all, or a random share of their samples, which finds a disk
that damages files in little time. It fetches nothing. Neither function repairs anything.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any, Final

from wids.errors import FetchError, SampleError, ShardFormatError
from wids.publish.describe import ShardRecord, record_of
from wids.publish.executors import results_of
from wids.publish.new_spec import log_cost, new_dataset_index
from wids.publish.problems import Problem, dataset_problems, log_problem, problem_of
from wids.shards.costs import DownloadCost
from wids.shards.fields.codecs import media_extensions
from wids.shards.fields.decode import Decoder
from wids.shards.indexes import index_file
from wids.shards.indexes.dataset_index import LocalDatasetIndex, load_dataset_index
from wids.shards.policy import remote_file
from wids.shards.specs.loader import Shards, load_with
from wids.shards.specs.model import DatasetSpec, IndexedShards, ShardSpec
from wids.shards.tars.headers import (
    KeySplit,
    TarBytes,
    TarMembers,
    is_metadata,
    links_text,
    split_names,
    to_text,
)
from wids.shards.tars.index import ShardIndex, TarIdentity, build_index, with_checksums
from wids.shards.tars.scan import scan
from wids.shards.tars.shard import Shard
from wids.storage import fetch
from wids.storage.cache.store import Cache
from wids.storage.download import Report
from wids.storage.files import file_digest
from wids.storage.progress import PartsBar
from wids.storage.remote_lengths import known_lengths, known_sum
from wids.storage.sizes import count_text, first_of
from wids.storage.transport import urls

_APPENDING: Final = (
    "has the indexes of {}, and the spec lists {}: more are being appended, or an append was "
    "interrupted, which can be run again"
)

DatasetIndexes = dict[int, tuple[IndexedShards, LocalDatasetIndex]]
"""The dataset index of each shard."""


_Findings = tuple[list[Problem], ShardRecord | None]
"""The problems of a shard, and its description with the index unless it is another file."""


def verify_spec(
    shards: Shards,
    *,
    base: str | os.PathLike[str] | None = None,
    decode: bool = False,
    executor: Executor | None = None,
    allow_pipe: bool = False,
    on_cost: Callable[[DownloadCost], object] = log_cost,
    on_remark: Callable[[Problem], None] = log_problem,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> list[Problem]:
    """Compare shards with what a spec and its dataset index state.

    Checks lengths, digests and counts, the checksums of headers, names that belong to no sample or
    occur twice, bytes after the end of the archive, the index in the dataset index, and keys that
    occur in several shards; optionally also that every field can be decoded.

    Args:
        shards: The shards, in any form that a dataset takes.
        base: Folder or URL that relative references start from.
        decode: Whether to decode every field too.
        executor: Where to do the work, as for `build_spec`.
        allow_pipe: Whether a document may name ``pipe:`` commands.
        on_cost: Called with what will be downloaded, before it is.
        on_remark: Called with each remark: a field that only some samples have, formats that are
            mixed, or members that are skipped as metadata. By default it is logged as a warning.
        storage_options: As for `ShardListDataset`.
        progress: Whether to show a progress bar; None for in terminals and notebooks only.

    Returns:
        The problems without the remarks, in the order of the shards; an empty list if there are
        none.

    Raises:
        SpecError: ``shards`` is malformed.
        FetchError: A document cannot be read. (A shard that cannot be read is a problem.)

    Examples:
        >>> import wids
        >>> with wids.TarWriter("cats.tar") as writer:
        ...     nbytes = writer.write({"__key__": "0001", "txt": "a cat"})
        >>> wids.verify_spec(["cats.tar"])
        []
        >>> for problem in wids.verify_spec([("cats.tar", 2)]):
        ...     print(problem.text)
        the spec says 2 samples, the shard has 1
    """
    fetcher = fetch.Fetcher(storage_options)
    spec = load_with(fetcher, shards, base, allow_pipe=allow_pipe)
    problems: list[Problem] = []
    indexed: list[ShardSpec] = []
    with ExitStack() as stack:
        stated = {shard.url: shard.nbytes for shard in spec.shards}
        sizes = known_lengths(fetcher, stated, is_tolerant=True)  # missing ones are problems
        if remote := {url: n for url, n in sizes.items() if not urls.is_local(url)}:
            on_cost(DownloadCost(remote))
        bar = stack.enter_context(
            PartsBar("verifying", len(sizes), known_sum(sizes.values()), wanted=progress)
        )
        dataset_indexes, index_problems = _opened_indexes(
            stack, fetcher, spec.all_dataset_indexes(), on_remark
        )
        # Workers report finished shards; this thread also reports progress within a shard.
        report = None if executor else bar.move
        examine = partial(_examined, fetcher, decode, report=report)
        results = results_of(
            executor, examine, spec.shards, lambda shard: urls.redact(shard.url), in_order=True
        )
        stack.enter_context(closing(results))

        def indexes() -> Iterator[tuple[str, int, ShardIndex]]:
            for number, (shard, (shard_problems, record)) in enumerate(results):
                problems.extend(shard_problems)
                if record is not None:
                    index_problems.extend(_index_mismatch(dataset_indexes, number, record))
                    if (shard_index := record.index()) is not None:
                        indexed.append(shard)
                        yield os.path.basename(urls.path_of(shard.url)), record.nbytes, shard_index
                bar.finish(sizes[shard.url])

        # Of what the shards have, since a published dataset index may be wrong, or have others.
        made = stack.enter_context(new_dataset_index(None, indexes()))
        in_several = dataset_problems(made, indexed, spec.name)
    remarks = [problem for problem in problems if problem.severity == "remark"]
    if len(remarks) > 1:  # one for all shards, which may be many
        others = f"such members are in {len(remarks) - 1:,} of the other shards too"
        remarks = [replace(remarks[0], text=f"{remarks[0].text}; {others}")]
    for problem in [*remarks, *in_several]:
        if problem.severity == "remark":
            on_remark(problem)
    shard_problems = [*problems, *in_several, *index_problems]
    return [problem for problem in shard_problems if problem.severity == "error"]


def _examined(
    fetcher: fetch.Fetcher, decode: bool, shard_spec: ShardSpec, *, report: Report | None
) -> _Findings:
    """Examine a shard, local or remote. Runs on the workers of an executor."""
    name = urls.redact(shard_spec.url)
    try:
        with fetch.downloaded(fetcher, shard_spec.url, report) as path:
            return _findings(shard_spec, path, name, decode)
    except FetchError as error:
        return [problem_of(name, error)], None


def _findings(shard_spec: ShardSpec, path: str, name: str, decode: bool) -> _Findings:
    """Examine a local file; ``name`` is the shard's in the problems."""
    key_split = shard_spec.key_split or "first"
    try:
        nbytes = os.stat(path).st_size
        mismatch = _mismatch(shard_spec, path, nbytes)
    except OSError as error:
        return [Problem(name, f"cannot be read: {error.strerror or error}")], None
    scanned: list[TarMembers] = []  # which has the names and the remarks

    def indexed(_: str, data: TarBytes, __: TarIdentity) -> ShardIndex:
        scanned.append(scan(data, path))
        return with_checksums(build_index(scanned[0], key_split, path), data)

    try:
        shard = Shard(path, find_index=indexed)
    except (FetchError, ShardFormatError) as error:
        reason = problem_of(path, error).text
        return [Problem(name, f"{mismatch}; {reason}" if mismatch else reason)], None
    with shard:
        stated, texts = shard_spec.num_samples, []
        if stated not in (None, len(shard)):
            texts.append(f"the spec says {stated} samples, the shard has {len(shard)}")
        texts += [*_odd_names(scanned[0], key_split), *scanned[0].remarks]
        problems = [*(Problem(name, text) for text in texts)]
        problems += _decode_problems(shard, name) if decode else []
        record = record_of(shard_spec.url, shard.index, nbytes, None)
    if mismatch:
        # The file is not the one that the spec describes: one problem, with the rest as details.
        text = "; ".join([mismatch, *(problem.text for problem in problems)])
        return [Problem(name, text, keys=tuple(key for p in problems for key in p.keys))], None
    skipped = [to_text(name) for name in scanned[0].names if is_metadata(name)]
    text = f"members skipped as metadata, as in webdataset ({len(skipped):,}): {first_of(skipped)}"
    remarks = [Problem(name, text, "remark")] if skipped else []
    if scanned[0].links:
        remarks.append(Problem(name, links_text(scanned[0].links), "remark"))
    return [*problems, *remarks], record


def _mismatch(shard_spec: ShardSpec, path: str, nbytes: int) -> str:
    """Return how a file differs from the one that the spec describes, or ``""``."""
    if shard_spec.nbytes not in (None, nbytes):
        return f"the spec says {shard_spec.nbytes} bytes, the file has {nbytes}"
    stated = (("sha256", "sha256", shard_spec.sha256), ("md5", "md5sum", shard_spec.md5sum))
    for algorithm, name, digest in stated:
        if digest is not None:
            found = file_digest(path, algorithm)
            is_same = found == digest.lower()
            return "" if is_same else f"the spec says the {name} {digest}, the file has {found}"
    return ""


def _odd_names(found: TarMembers, key_split: KeySplit) -> list[str]:
    dots = split_names(found.names, key_split).dots.tolist()
    names = zip(found.names, dots, strict=True)
    orphans = [to_text(name) for name, dot in names if not (dot or is_metadata(name))]
    repeated = [to_text(name) for name, count in Counter(found.names).items() if count > 1]
    texts = []
    if orphans:
        texts.append(f"{len(orphans)} members belong to no sample: {first_of(orphans)}")
    if repeated:
        texts.append(f"{len(repeated)} names occur more than once: {first_of(repeated)}")
    return texts


def _decode_problems(shard: Shard, name: str) -> list[Problem]:
    """Return the problems of fields that cannot be decoded, with the keys of their samples."""
    from wids.shards.fields.audio import check_audio
    from wids.shards.fields.video import check_film

    audio, video = (media_extensions(kind) for kind in ("audio", "video"))
    checks = {**dict.fromkeys(audio, check_audio), **dict.fromkeys(video, check_film)}
    decoder = Decoder(decoders=checks)
    first: dict[str, str] = {}
    keys: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for local_index, sample in enumerate(shard):
        try:
            decoder(dict(sample))
        except SampleError as error:
            text, key = str(error), sample["__key__"]
            first.setdefault(text, f'sample "{key}" (number {local_index}): {text}')
            counts[text] += 1
            # Neither a pickle nor a missing package, which every sample may have, is damage.
            if not isinstance(error.__cause__, ModuleNotFoundError | None):
                keys.setdefault(text, []).append(key)
    problems = []
    for text, count in counts.items():
        damaged = keys.get(text, [])
        others = f": {', '.join(damaged[1:])}" if damaged else ""
        more = f" (and {count - 1} more like it{others})" if count > 1 else ""
        problems.append(Problem(name, first[text] + more, keys=tuple(damaged)))
    return problems


def _opened_indexes(
    stack: ExitStack,
    fetcher: fetch.Fetcher,
    all_dataset_indexes: Iterable[IndexedShards],
    on_remark: Callable[[Problem], None],
) -> tuple[DatasetIndexes, list[Problem]]:
    """Open dataset indexes until the stack closes; return them by shard, and their problems."""
    dataset_indexes: DatasetIndexes = {}
    problems = []
    for shared in all_dataset_indexes:
        name, num_shards = urls.redact(shared.url), shared.stop - shared.start
        try:
            path = stack.enter_context(fetch.downloaded(fetcher, shared.url))
        except FetchError as error:
            problems.append(problem_of(name, error))
            continue
        indexes = load_dataset_index(path, None, num_shards)
        if indexes is None:
            found = "another or a damaged file" if os.path.exists(path) else "no file"
            problems.append(Problem(name, f"expected a dataset index, found {found}"))
            continue
        stack.callback(indexes.close)
        dataset_indexes.update(dict.fromkeys(range(shared.start, shared.stop), (shared, indexes)))
        texts = []
        if len(indexes) > num_shards:
            # As for readers: an append may be between its two steps (SPEC-36).
            text = _APPENDING.format(count_text(len(indexes), "shard"), f"{num_shards:,}")
            on_remark(Problem(name, text, "remark"))
        elif len(indexes) < num_shards:
            texts += [f"expected the indexes of {num_shards} shards, found {len(indexes)}"]
        if not indexes.has_sound_keys():
            texts += ["expected tables of keys, found them damaged; rebuild the dataset index"]
        problems += [Problem(name, text) for text in texts]
    return dataset_indexes, problems


def _index_mismatch(
    dataset_indexes: DatasetIndexes, number: int, record: ShardRecord
) -> list[Problem]:
    """Return what is wrong with the published index of a shard, as a list of at most one."""
    if number not in dataset_indexes:
        return []
    shared, indexes = dataset_indexes[number]
    indexes.release()  # of the shard before
    number -= shared.start
    if number >= len(indexes):  # a dataset index that is too short is a problem of its own
        return []
    name, identity = os.path.basename(urls.path_of(record.url)), TarIdentity(record.nbytes)
    found = indexes.index(number, record.nbytes, record.key_split)
    if found is not None and indexes.is_named(number, name):
        blob, made = record.blob, None if len(found.payload_crcs) else record.index()
        if made is not None:  # a dataset index need not have the checksums of members
            blob = index_file.dump(made.without_payload_crcs(), identity)
        if index_file.dump(found, identity) == blob:
            return []
    text = f"its index of {name} does not match the shard; rebuild the dataset index"
    return [Problem(urls.redact(shared.url), text)]


def check_copies(
    spec: DatasetSpec, folder: str, share: float | None
) -> tuple[int, int, list[Problem]]:
    """Compare the copies of a dataset with the spec and their checksums.

    Args:
        spec: The dataset.
        folder: The cache folder.
        share: Part of the samples to compare with checksums; None to read all bytes, and compare
            them with the digests that the spec states, or else with the checksums.

    Returns:
        How many shards have a copy, how many samples were compared with the checksums in the index
        of their copy, and what is damaged.
    """
    cache = Cache(folder, fetch.Fetcher())
    paths: set[str] = set()  # a spec may name a shard several times
    num_samples = 0
    problems: list[Problem] = []
    with PartsBar("checking copies", len(spec.shards), None) as bar:
        for shard in spec.shards:
            path = cache.find(remote_file(shard))
            if path is not None and path not in paths:
                paths.add(path)
                if share is None and (shard.sha256 or shard.md5sum):  # of all bytes
                    problems += _digest_problems(shard, path)
                else:
                    index_path = cache.index_path(remote_file(shard), path)
                    count, found = _check_copy(path, index_path, 1.0 if share is None else share)
                    num_samples, problems = num_samples + count, problems + found
                    if share is None:
                        problems += _findings(shard, path, path, decode=False)[0]
            bar.finish(None)
    return len(paths), num_samples, [each for each in problems if each.severity == "error"]


def _digest_problems(shard_spec: ShardSpec, path: str) -> list[Problem]:
    """Compare a copy with the length and the digest that the spec states."""
    try:
        mismatch = _mismatch(shard_spec, path, os.stat(path).st_size)
    except OSError as error:
        mismatch = f"cannot be read: {error.strerror or error}"
    return [Problem(path, mismatch)] if mismatch else []


def parse_share(text: str, name: str) -> float:
    """Return the share that ``"5%"`` or ``"0.05"`` stands for.

    Args:
        text: The share.
        name: How messages name the option.

    Raises:
        ValueError: It is not a share, or not in (0, 1].
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{name}: expected a share such as 5%, found {text!r}")
    return share


def _check_copy(path: str, index_path: str, share: float) -> tuple[int, list[Problem]]:
    """Compare some samples of a copy with the checksums in its index, even if it was modified.

    Args:
        path: The copy, as the cache fetched it.
        index_path: Its index in the cache.
        share: Part of the samples to read, more than 0 and at most 1; at least one is read.

    Returns:
        How many samples were compared, 0 if the copy has no index with checksums; and a problem for
        each damaged one.
    """
    recorded = index_file.load_recorded(index_path)
    if recorded is None or not len(recorded[0].payload_crcs):
        return 0, []
    shard_index, identity = recorded
    problems = []
    try:
        shard = Shard(path, raw="view", find_index=lambda *_: shard_index)
    except (FetchError, ShardFormatError) as error:
        return 0, [problem_of(path, error)]
    with shard:
        if shard.nbytes != identity.nbytes:
            text = f"expected {identity.nbytes} bytes as when it was fetched, found {shard.nbytes}"
            return 0, [Problem(path, text)]
        # Other samples each time, so that repeated checks reach all of them.
        count = min(len(shard), max(1, round(share * len(shard))))
        draw = random.sample(range(len(shard)), count)
        for local_index in sorted(draw):  # ascending, as a disk reads fastest
            try:
                shard.read(local_index, verify=True)
            except ShardFormatError as error:
                problems.append(problem_of(path, error))
    return len(draw), problems
