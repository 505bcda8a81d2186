"""Name and lock the files of a new dataset, and replace the one that has their names.

`ShardNames` has the names of shards, and `Output` those of spec, dataset index and journal. Folders
are listed; no shard is opened. One writer at a time holds the lock of its names (`only_writer`),
and deletes unfinished files of killed writers at its beginning and its end: an executor may have
had another worker do the work of a killed one.

When a dataset is replaced, there is no spec between the first new shard and the last, so no reader
mixes shards of both. Only shards that the previous spec lists under the names of the new ones are
deleted. A rewrite that keeps shards leaves its input as it is; `left_behind` has the files that
the new dataset does not need.
"""

from __future__ import annotations

import hashlib
import logging
import os
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, Literal, get_args

from wids.errors import SpecError, WidsError
from wids.publish.journal import Journal, is_journal
from wids.publish.tar_writer import check_target
from wids.shards.specs.documents import is_document
from wids.shards.specs.loader import load_spec
from wids.shards.specs.model import DatasetSpec
from wids.storage import files, locks, upload
from wids.storage.fetch import Fetcher
from wids.storage.sizes import count_text
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)


_NUMBER: Final = r"%0?\d*d"


@dataclass(frozen=True)
class ShardNames:
    """The names of numbered shards in one folder.

    Attributes:
        folder: Absolute path of the folder, or its URL.
        file_name: File name with one ``%06d``, or another width, for the number.
    """

    folder: str
    file_name: str

    @classmethod
    def from_pattern(cls, pattern: str | os.PathLike[str]) -> ShardNames:
        """Parse a pattern.

        Raises:
            ValueError: Its file name has not exactly one number, or it is a URL without a folder.
        """
        name = upload.absolute(pattern)
        folder, file_name = os.path.split(name)
        if urls.is_local(folder) != urls.is_local(name):  # "s3:" would be a local folder
            raise ValueError(
                "pattern: expected a URL with a bucket or a folder before the file name, such as "
                f"s3://bucket/train-%06d.tar, found {urls.redact(name)!r}"
            )
        if len(re.findall(_NUMBER, file_name)) != 1 or file_name.count("%") != 1:
            raise ValueError(
                "pattern: expected a file name with one number such as %06d in it, found "
                f"{urls.redact(os.fspath(pattern))!r}"
            )
        return cls(folder, file_name)

    def path(self, number: int) -> str:
        """Return the path of a shard."""
        return posixpath.join(self.folder, self.file_name % number)

    def is_temporary(self, name: str) -> bool:
        """Whether this is the name of a temporary file that is written for one of these shards."""
        stem = files.stem_of_temporary(name) or ""
        head, _, tail = re.split(f"({_NUMBER})", self.file_name)
        # A stem may end within any of the three parts of a name.
        rest = stem[len(head) :].lstrip("0123456789")
        return bool(stem) and stem.startswith(head[: files.STEM_LENGTH]) and tail.startswith(rest)

    def spec_path(self, spec: str | os.PathLike[str] | bool) -> str:
        """Return the path of the spec: beside the shards for True, ``""`` for False."""
        if spec is False:
            return ""
        if spec is True:
            stem = re.sub(rf"[-_.]?{_NUMBER}", "", os.path.splitext(self.file_name)[0])
            return posixpath.join(self.folder, (stem or "shards") + ".json")
        path = upload.absolute(spec)
        if urls.is_local(self.folder) and not urls.is_local(path):
            raise ValueError(
                f"spec: expected a local path beside local shards, found {urls.redact(path)}; "
                "readers of a remote spec do not have them"
            )
        if not path.endswith(".json"):
            found = repr(urls.redact(os.fspath(spec)))
            raise ValueError(f"spec: expected a name that ends in .json, found {found}")
        return path

    def existing(self, start: int, storage_options: upload.Options = None) -> range:
        """Return the numbers of the existing shards, from ``start`` on.

        Raises:
            FileExistsError: A number is missing before the last one. A writer that fills the gap
                would overwrite the later shards.
        """
        numbers = self.existing_numbers(start, storage_options)
        stop = start
        while stop in numbers:
            stop += 1
        if numbers and max(numbers) > stop:
            raise FileExistsError(
                f"{self.path(max(numbers))}: already exists, but {self.path(stop)} does not; "
                "restore the missing shard, or move the later ones away"
            )
        return range(start, stop)

    def existing_numbers(self, start: int = 0, storage_options: upload.Options = None) -> set[int]:
        """Return the numbers from ``start`` on under which something exists."""
        numbers = map(self.number_of, upload.file_names(self.folder, storage_options))
        return {number for number in numbers if number is not None and number >= start}

    def number_of(self, name: str) -> int | None:
        """Return the number of the shard that has a file name; None for another file."""
        head, width, tail = re.split(f"({_NUMBER})", self.file_name)
        match = re.fullmatch(re.escape(head) + r"(\d+)" + re.escape(tail), name)
        # "%06d" names shard 7 000007, so a-7.tar is not one of these shards.
        return int(match[1]) if match and width % int(match[1]) == match[1] else None


IfExists = Literal["error", "replace"]

_REPLACE: Final = 'pass if_exists="replace" (--replace)'
_ADVICE: Final = {
    "packing": f"choose another output, or {_REPLACE} to overwrite the dataset",
    "rewriting": "choose another output",  # it never replaces a dataset
    "writing": 'pass if_exists="resume" to keep it and continue after it, "append" to add shards '
    'to the dataset, "replace" to overwrite it, or choose another name',
}


@dataclass(frozen=True)
class Output:
    """Where a dataset is written.

    Attributes:
        names: Names of the shards.
        spec_path: Absolute path of the spec, or its URL; ``""`` for none.
        name: Name of the dataset.
        work: What is done: ``"packing"``, ``"rewriting"`` or ``"writing"``.
        if_exists: What to do with existing files.
        storage_options: For the server of a URL.
        start: Number of the first shard.
    """

    names: ShardNames
    spec_path: str
    name: str
    work: str
    if_exists: str = "error"
    storage_options: Mapping[str, Any] | None = None
    start: int = 0

    @classmethod
    def for_pattern(
        cls,
        pattern: str | os.PathLike[str],
        work: str,
        *,
        name: str | None = None,
        if_exists: IfExists = "error",
        storage_options: Mapping[str, Any] | None = None,
    ) -> Output:
        """Return the output for the pattern of its shards, such as ``out/train-%06d.tar``.

        Args:
            pattern: The pattern.
            work: What is done.
            name: Name of the dataset; None for the stem of its spec.
            if_exists: What to do with existing files.
            storage_options: For the server of a URL.

        Raises:
            ValueError: It is not a pattern, or a URL that cannot be written, or an argument
                is invalid.
        """
        if if_exists not in get_args(IfExists):
            raise ValueError(f'if_exists: expected "error" or "replace", found {if_exists!r}')
        check_target(pattern, None)
        names = ShardNames.from_pattern(pattern)
        spec_path = names.spec_path(spec=True)
        if name is None:
            name = os.path.basename(spec_path).removesuffix(".json")
        return cls(names, spec_path, name, work, if_exists, storage_options)

    @property
    def is_local(self) -> bool:
        """Whether it is a path, not a URL."""
        return upload.is_local(self.names.folder)

    @property
    def dataset_index_path(self) -> str:
        """Absolute path of the dataset index, or its URL."""
        return os.path.splitext(self.spec_path)[0] + ".index"

    @property
    def journal(self) -> Journal:
        """The journal of an unfinished run, which for a URL contains the passwords in it."""
        return Journal(unfinished_path(self.spec_path), 0o666 if self.is_local else 0o600)

    def make_folder(self) -> None:
        """Make the folder of a local output."""
        if self.is_local:
            os.makedirs(self.names.folder, exist_ok=True)

    def existing_shards(self) -> list[str]:
        """Return the paths of all shards that exist under names of the output."""
        numbers = self.names.existing_numbers(self.start, self.storage_options)
        return [self.names.path(number) for number in sorted(numbers)]

    def saved_spec(self) -> DatasetSpec | None:
        """Return the dataset whose spec exists; None if it is another document."""
        try:
            return self.spec_at(self.spec_path)
        except SpecError:
            return None

    def spec_at(self, path: str) -> DatasetSpec:
        """Return the dataset whose spec is at a path or URL, and belongs to that of the output."""
        data, _ = upload.read(path, self.storage_options)
        fetcher = Fetcher(self.storage_options)
        fetcher.bind_options(self.spec_path)

        def read(url: str, limit_nbytes: int) -> bytes:
            return data if url == self.spec_path else fetcher.read(url, limit_nbytes)

        # References are relative to its own place.
        return load_spec(self.spec_path, allow_pipe=True, read=read)

    def check_unpublished(self) -> None:
        """Raise FileExistsError if the spec or the dataset index exists."""
        if self.spec_path:
            self.check_absent(self.spec_path, self.dataset_index_path)

    def check_absent(self, *paths: str) -> None:
        """Raise FileExistsError if one of some files exists."""
        for path in paths:
            if upload.exists(path, self.storage_options):
                raise self.already_exists(path)

    def already_exists(self, path: str) -> FileExistsError:
        """Return the error for a file that is in the way."""
        return FileExistsError(f"{urls.redact(path)}: already exists; {_ADVICE[self.work]}")

    def of_another_run(self) -> FileExistsError:
        """Return the error for a journal of other work."""
        others, advice = "files or options", _REPLACE
        if self.work == "rewriting":
            others, advice = "samples, options or version", "pass resume=False (--restart)"
        return FileExistsError(
            f"{self.journal.path}: is of an interrupted run with other {others}; run that again to "
            f"finish it, choose another output, or {advice} to start over"
        )

    # A previous dataset, which may exist where this one is written.

    @property
    def aside_path(self) -> str:
        """Absolute path or URL of the spec while shards change."""
        return self.spec_path + ".replaced"

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Move the spec, if there is one, to another name before its shards are replaced.

        It is moved back if the block fails before any local shard was replaced.
        """
        spec_path, options = self.spec_path, self.storage_options
        if not upload.exists(spec_path, options):
            yield
            return
        # After a kill between the new spec and the deletion of the old shards.
        if upload.exists(self.aside_path, options):
            listed = self._listed(spec_path)
            if listed is not None:
                self.remove_others(listed)
        before = self._states()
        try:
            upload.move(spec_path, self.aside_path, options)
            yield
        except BaseException:
            if before is not None and before == self._states() and self.is_unfinished():
                upload.move(self.aside_path, spec_path, options)
            raise

    def is_unfinished(self) -> bool:
        """Whether a run was killed while it replaced shards, which may be of two datasets."""
        exists = partial(upload.exists, storage_options=self.storage_options)
        return exists(self.aside_path) and not exists(self.spec_path)

    def remove_others(self, kept: Collection[str]) -> None:
        """Delete the shards that the old spec lists and the new dataset lacks, then the old spec.

        Shards that cannot be deleted stay; see `remark_on_others`. If the old spec cannot be read,
        nothing is deleted.

        Args:
            kept: Paths or URLs of the shards of the new dataset, whose spec is published.
        """
        options = self.storage_options
        is_aside = upload.exists(self.aside_path, options)
        listed = self._listed(self.aside_path) if is_aside else None
        if listed is None:
            return
        for path in sorted(listed.intersection(self._others(kept))):
            with suppress(OSError):
                upload.remove(path, options)
        upload.remove(self.aside_path, options)

    def remark_on_others(self, kept: Collection[str]) -> str | None:
        """Return a remark on existing shards that are not in the new dataset, if there are any."""
        others = self._others(kept)
        if not others:
            return None
        first, count = os.path.basename(others[0]), count_text(len(others), "shard")
        return f"{count} of an earlier dataset, from {first} on, not in the spec: move them away"

    def _others(self, kept: Collection[str]) -> list[str]:
        return [path for path in self.existing_shards() if path not in kept]

    def _listed(self, spec_path: str) -> set[str] | None:
        """Return the shards that a spec lists; None, with a warning, if it cannot be read."""
        try:
            spec = self.spec_at(spec_path)
        except (WidsError, OSError) as error:
            _logger.warning(
                "%s: expected a spec, found: %s; no shard that only it lists is deleted",
                *(urls.redact(spec_path), error),
            )
            return None
        return {shard.url for shard in spec.shards}

    def _states(self) -> list[tuple[str, int, int]] | None:
        """Return what changes when a shard or the index is replaced; None if one is remote."""
        if not (urls.is_local(self.spec_path) and self.is_local):
            return None
        states = []
        for path in (*self.existing_shards(), self.dataset_index_path):
            with suppress(FileNotFoundError):
                status = os.stat(path)
                states.append((path, status.st_ino, status.st_mtime_ns))
        return states


def unfinished_path(spec_path: str) -> str:
    """Return the path of the journal of a dataset; of one at a URL, in the current folder."""
    prefix = spec_path.removesuffix(".json")
    if not urls.is_local(spec_path):  # outputs in several folders may have the same last part
        digest = hashlib.sha256(prefix.encode("utf-8", "surrogatepass")).hexdigest()
        prefix = f"{os.path.basename(urls.path_of(prefix))}-{digest[:8]}"
    return os.path.abspath(prefix + ".partial")


def prefix_of(output: str | os.PathLike[str]) -> str:
    """Return the beginning of all names: ``out/train`` for itself, and for ``out/train.json``.

    Raises:
        ValueError: It is a folder, or a URL that cannot be written.
    """
    text = os.fspath(output)
    check_target(text, None)
    prefix = text.removesuffix(".json")
    if upload.is_local(text):
        prefix = os.path.expanduser(prefix)
    last = os.path.basename(prefix)
    if not last or last in (".", "..") or "%" in last or last.endswith(".tar"):
        raise ValueError(
            'output: expected the beginning of file names, such as "out/train" for '
            f"out/train-000000.tar and out/train.json, found {urls.redact(text)!r}"
        )
    return prefix


@contextmanager
def only_writer(output: Output) -> Iterator[None]:
    """Lock out other writers of these shards, and delete what a killed one left.

    Raises:
        OSError: Another writer of these shards is open.
    """
    names = output.names
    if not output.is_local:  # the server does not replace an object that has to be new
        yield
        return
    lock_path = os.path.join(names.folder, files.lock_name(names.file_name))
    process = os.getpid()

    def delete() -> None:
        if os.getpid() == process:  # not a child that was forked meanwhile
            with suppress(OSError):
                os.unlink(lock_path)

    with ExitStack() as stack:
        if locks.REFUSES_DELETION:  # when nobody has it open
            stack.callback(delete)
        is_held = stack.enter_context(locks.lock_file(lock_path, mode=0o600))
        if is_held is False:
            raise OSError(
                f"{os.path.join(names.folder, names.file_name)}: expected to be the only writer of "
                "these shards, found another one that is open; close it, or give each process a "
                "pattern of its own"
            )
        if is_held:
            stack.callback(delete)
        sweep(output, 0 if is_held else None)
        yield
        if is_held:  # after an error, a task on an executor may still be writing
            sweep(output, 0)


def sweep(output: Output, min_age_s: float | None = None) -> None:
    """Delete unfinished files of killed writers of a local output; see `wids.storage.files.sweep`.

    Args:
        output: The output.
        min_age_s: As there.
    """
    names = output.names
    files.sweep(names.folder, names.is_temporary, min_age_s=min_age_s)
    for path in (output.spec_path, output.dataset_index_path) if output.spec_path else ():
        files.sweep_beside(path, min_age_s=min_age_s)


def left_behind(old: DatasetSpec, new: DatasetSpec, document: str) -> list[str]:
    """Return the files of a dataset that are not part of the one that replaces some of its shards.

    These are shards, the saved table, journals of interrupted runs, and dataset indexes. Indexes of
    other programs are not among them. Nothing is left behind if the new dataset has all shards of
    the old one.

    Args:
        old: The old dataset.
        new: The new one.
        document: Path or URL that the old one was loaded from.
    """
    shards = {real_path(shard.url) for shard in new.shards}
    if shards.issuperset(real_path(shard.url) for shard in old.shards):
        return []
    kept = shards.union(map(real_path, chain(_tables(new), _indexes(new))))
    found = dict.fromkeys(
        [*(shard.url for shard in old.shards), *_tables(old), *_journal(document), *_indexes(old)]
    )
    return [
        url
        for url in found
        if real_path(url) not in kept
        and (not urls.is_local(url) or os.path.lexists(urls.local_path(url)))
    ]


def _tables(spec: DatasetSpec) -> list[str]:
    return [] if spec.table is None else [spec.table.url]


def _indexes(spec: DatasetSpec) -> Iterator[str]:
    """Yield the dataset indexes that a spec names, without indexes of other programs."""
    own = (shard.index for shard in spec.shards if shard.index)
    own = (url for url in own if not urls.path_of(url).endswith((".idx", ".sqlite")))
    return chain((part.url for part in spec.all_dataset_indexes()), own)


def _journal(document: str) -> list[str]:
    """Return the journal of an interrupted run beside a local document, if there is one."""
    if not (urls.is_local(document) and is_document(document)):
        return []
    path = unfinished_path(os.path.abspath(urls.local_path(document)))
    return [path] if is_journal(path) else []


def real_path(url: str) -> str:
    """Return what two names of one local file have in common; a remote URL as it is."""
    return os.path.realpath(urls.local_path(url)) if urls.is_local(url) else url
