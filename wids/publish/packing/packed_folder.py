"""Pack a folder into shards, with their spec and dataset index, on any executor.

What is wrong with the folder is an error before anything is written. Which samples a shard has is
a pure function of keys, lengths, limits and seed, so the same samples make the same shards.

Files are read once, in pieces, and must be as they were listed. The shard is not read again: its
digest, its checksums and its index are made while it is written.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from io import FileIO
from typing import Any, Final

from wids.errors import FetchError, PackError, local_error
from wids.publish.describe import ShardRecord
from wids.publish.journal import ShardTask
from wids.publish.new_shard import PIECE_NBYTES, Publishing, ThreadedTar, write_published
from wids.publish.output import IfExists, Output, prefix_of
from wids.publish.packing.folder_listing import ListedFile, is_inside
from wids.publish.packing.pack_plan import Generated, PackReport, Sample, Source, plan_folder
from wids.publish.shard_job import ShardJob, plan_of
from wids.publish.tar_writer import finished_nbytes, header_function
from wids.shards.fields.images import ends_early
from wids.shards.tars.headers import BLOCK_NBYTES, KeySplit, padded, to_bytes
from wids.storage.sizes import first_of, parse_nbytes
from wids.storage.transport import urls


@dataclass(frozen=True)
class PackTask(ShardTask):
    """One shard to write. Its source are the names, lengths and times of files.

    Attributes:
        root: Absolute path of the folder that the files are in.
        samples: Its samples, in order.
    """

    root: str
    samples: tuple[Sample, ...]


def make_task(path: str, root: str, samples: tuple[Sample, ...], nbytes: int) -> PackTask:
    """Return the task for some samples."""
    parts = (
        f"{key}\0{field}\0{source.path}\0{source.nbytes}\0{source.mtime_ns}"
        if isinstance(source, ListedFile)
        else f"{key}\0{field}\0{source.data!r}"
        for key, members in samples
        for field, source in members
    )
    text = "\n".join((root, *parts)).encode("utf-8", "surrogatepass")
    source = hashlib.blake2b(text, digest_size=16).hexdigest()
    return PackTask(path, nbytes, len(samples), source, root, samples)


def ordered(samples: list[Sample], seed: int | None) -> list[Sample]:
    """Return samples in the order of a seed; None for the order of their keys."""
    if seed is None:
        return samples
    # Not `random.shuffle`, whose order may change between versions of Python. When sorted by
    # digest, adding or removing a sample does not change the order of the others.
    start = hashlib.blake2b(str(seed).encode("ascii"), digest_size=16)

    def digest(sample: Sample) -> bytes:
        found = start.copy()
        found.update(b"\0" + to_bytes(sample.key))
        return found.digest()

    return sorted(samples, key=digest)


def cut(
    samples: list[Sample], maxcount: int, maxsize: int
) -> Iterator[tuple[tuple[Sample, ...], int]]:
    """Yield the samples of each shard, and the length of its tar in bytes.

    Args:
        samples: The samples, in order.
        maxcount: Maximum number of samples in a shard.
        maxsize: Maximum length of a shard in bytes, unless a single sample is larger.
    """
    header = header_function(0o444, "", "", 0)  # as TarWriter has it
    start, nbytes = 0, 0
    for number, (key, members) in enumerate(samples):
        own = 0
        for field, source in members:
            size = nbytes_of(source)
            own += len(header(key + field, size)) + padded(size)
        is_full = number - start >= maxcount or finished_nbytes(nbytes + own) > maxsize
        if number > start and is_full:
            yield tuple(samples[start:number]), finished_nbytes(nbytes)
            start, nbytes = number, 0
        nbytes += own
    yield tuple(samples[start:]), finished_nbytes(nbytes)


def nbytes_of(source: Source) -> int:
    """Return the length of a member in bytes."""
    return len(source.data) if isinstance(source, Generated) else source.nbytes


_ZEROS: Final = bytes(BLOCK_NBYTES)

_HEAD_NBYTES: Final = 12
_TAIL_NBYTES: Final = 4096
"""How much of a file shows whether it is a picture, and whether it has its end."""


def write_shard(task: PackTask, *, how: Publishing) -> ShardRecord:
    """Write a shard and return its description. Runs on the workers of an executor.

    Args:
        task: The shard.
        how: How it is published.

    Raises:
        FetchError: A file cannot be read, or has changed since it was listed.
        FileExistsError: There is another file under the shard's name.
    """
    cut_short: list[str] = []
    append = partial(_TarOfFiles.append_files, root=task.root, cut_short=cut_short)
    record = write_published(task, task.samples, append, _TarOfFiles, how)
    return replace(record, cut_short=cut_short)


class _TarOfFiles(ThreadedTar):
    """A shard whose members are read from files."""

    def append_files(self, sample: Sample, *, root: str, cut_short: list[str]) -> None:
        """Append a sample whose members are files, or bytes that were made for it."""
        self._has_partial_sample = True
        for field, source in sample.members:
            name = sample.key + field
            size = nbytes_of(source)
            start, header = self.nbytes, self._header(name, size)
            self._put(header)
            if isinstance(source, ListedFile):
                crc, is_cut_short = self._put_file(f"{root}/{source.path}", source)
                if is_cut_short:
                    cut_short.append(source.path)
            else:
                self._put(source.data)
                crc = self._crc32(source.data)
            if size % BLOCK_NBYTES:
                self._put(_ZEROS[size % BLOCK_NBYTES :])
            self._members.add(to_bytes(name), start, header, size, crc)
        self._has_partial_sample = False
        self.num_samples += 1

    def _put_file(self, path: str, file: ListedFile) -> tuple[int, bool]:
        """Append a file; return its checksum, and whether it is a picture without its end."""
        num_left, crc, head, tail = file.nbytes, 0, b"", b""
        try:
            stream = FileIO(path)
        except FileNotFoundError:
            raise FetchError(f"{path}: expected the file that was listed, found none") from None
        except OSError as error:
            raise local_error(path, error) from error
        with stream:
            while num_left:
                # One byte more, so that a longer file is noticed.
                try:
                    piece = stream.read(min(num_left + 1, PIECE_NBYTES))
                except OSError as error:  # here, since the shard written meanwhile has its own
                    raise local_error(path, error) from error
                if not 0 < len(piece) <= num_left:
                    break
                self._put(piece)
                crc = self._crc32(piece, crc)
                head = head or piece[:_HEAD_NBYTES]
                tail = (tail + piece[-_TAIL_NBYTES:])[-_TAIL_NBYTES:]
                num_left -= len(piece)
            status = os.fstat(stream.fileno())
        if num_left or (status.st_size, status.st_mtime_ns) != file[1:]:
            raise FetchError(
                f"{path}: expected the {file.nbytes} bytes that were listed, found a file that has "
                "changed since; pack the folder again when nothing writes to it"
            )
        return crc, ends_early(file.nbytes, head, tail)


def pack_folder(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    maxcount: int = 10_000,
    maxsize: int | str = "1GB",
    seed: int | None = 0,
    classes: bool | Sequence[str] | None = None,
    key_split: KeySplit = "last",
    name: str | None = None,
    if_exists: IfExists = "error",
    storage_options: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> PackReport:
    """Pack the files of a folder into shards, and write their spec and their dataset index.

    Files of one stem in one folder are a sample: ``a/1.jpg`` and ``a/1.txt`` are the fields
    ``.jpg`` and ``.txt`` of the sample ``a/1``. The bytes of files are copied as they are, and the
    same files make the same shards, byte for byte. docs/packing.md explains the rules for names,
    classes and metadata.

    After an interruption, call it again with the same arguments to resume.

    Args:
        folder: The folder.
        output: Beginning of the paths that are written: ``"out/train"`` for
            ``out/train-000000.tar``, …, ``out/train.json`` and ``out/train.index``. Missing folders
            are made. Or a URL, such as ``"s3://bucket/train"``.
        maxcount: Maximum number of samples in a shard.
        maxsize: Maximum length of a shard, in bytes or as ``"500MB"``, unless a single sample is
            larger.
        seed: Chooses the order of the samples; None for that of their keys.
        classes: Whether the folders in the folder are classes, whose numbers become the field
            ``.cls`` and whose names become ``"classes"`` of the spec; None to decide by their
            content. A list of names says that they are, and numbers them: pass the list of one
            split, ``wids.load_spec("train.json").classes``, to pack the others.
        key_split: Where names are split into key and field, at the ``"last"`` or the ``"first"``
            dot. With the last one, other dots become ``_`` in the key.
        name: Name of the dataset; None for the last part of ``output``.
        if_exists: What to do if shards or the spec exist already: ``"error"``, or ``"replace"`` to
            overwrite them.
        storage_options: As for `ShardListDataset`, for a URL.
        executor: Where to write shards; any `concurrent.futures.Executor` whose workers see the
            same folders. None for this thread.
        progress: Whether to show a progress bar; None for in terminals and notebooks only.

    Returns:
        What was packed, what was left out, and remarks.

    Raises:
        NotFoundError: There is no such folder.
        PackError: Its files cannot become samples as they are.
        FetchError: A file cannot be read, or changes while it is packed.
        FileExistsError: The output exists already, or is of an interrupted run on other files.
        ValueError: An argument is invalid.

    Examples:
        >>> import pathlib, wids
        >>> for name in ("cat/1", "cat/2", "dog/1"):
        ...     path = pathlib.Path("pets", name + ".txt")
        ...     path.parent.mkdir(parents=True, exist_ok=True)
        ...     nbytes = path.write_text("a " + name[:3])
        >>> report = wids.pack_folder("pets", "out/pets")
        >>> report.num_samples, dict(report.fields), report.spec.classes
        (3, {'.cls': 3, '.txt': 3}, ['cat', 'dog'])
        >>> with wids.ShardListDataset("out/pets.json") as dataset:
        ...     sample = dataset.get_by_key("dog/1")
        >>> sample[".txt"], sample[".cls"]
        ('a dog', 1)
    """
    limit = parse_nbytes(maxsize, "maxsize")
    if not (maxcount >= 1 and limit):  # also NaN
        raise ValueError(
            f"expected a maxcount and a maxsize of at least 1, found {maxcount} and {maxsize}"
        )
    plan = plan_folder(folder, classes=classes, key_split=key_split)
    prefix = prefix_of(output)
    target = Output.for_pattern(
        *(prefix + "-%06d.tar", "packing"),
        name=name,
        if_exists=if_exists,
        storage_options=storage_options,
    )
    if target.is_local and is_inside(target.names.folder, plan.root):
        raise PackError(
            f"{os.fspath(output)}: expected an output outside the folder that is packed, found one "
            f"in {plan.root}; the shards would be packed the next time"
        )
    shards = cut(ordered(plan.samples, seed), maxcount, limit)
    tasks = [
        make_task(target.names.path(number), plan.root, samples, nbytes)
        for number, (samples, nbytes) in enumerate(shards)
    ]
    extras = {"classes": list(plan.classes)} if plan.classes else {}
    job = ShardJob(tasks, target.journal, plan_of(tasks), target, write_shard, extras)
    spec = job.run(executor, progress)
    remarks = list(plan.remarks)
    if names := sorted(job.cut_short):
        verb = "picture ends" if len(names) == 1 else "pictures end"
        remarks.append(
            f"{len(names):,} {verb} early: {first_of(names)}; `wids verify --decode "
            f"{urls.redact(prefix)}.json` names all that cannot be decoded"
        )
    if remark := target.remark_on_others({shard.url for shard in spec.shards}):
        remarks.append(remark)
    counts = Counter(field for sample in plan.samples for field, _ in sample.members)
    return PackReport(
        *(prefix + ".json", spec),
        dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        *(plan.skipped, tuple(remarks)),
    )
