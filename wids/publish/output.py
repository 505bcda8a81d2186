"""Derive the paths of an output from the beginning of their names, and check what exists there.

Looks only at names; opens no shard.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from wids.errors import SpecError
from wids.publish.shard_names import ShardNames
from wids.publish.tar_writer import check_target
from wids.shards.specs.loader import load_spec
from wids.shards.specs.model import DatasetSpec
from wids.storage import upload
from wids.storage.fetch import Fetcher
from wids.storage.transport import urls

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
        work: What is done, ``"packing"``, ``"rewriting"`` or ``"writing"``: the ending of the
            journal.
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
            ValueError: It is no pattern, or a URL that cannot be written, or an argument is
                invalid.
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
    def pack_path(self) -> str:
        """Absolute path of the pack, or its URL."""
        return os.path.splitext(self.spec_path)[0] + ".index"

    @property
    def journal_path(self) -> str:
        """Absolute path of the journal of an unfinished run; for a URL, in the current folder."""
        prefix = self.spec_path.removesuffix(".json")
        if not self.is_local:  # outputs in several folders may have the same last part
            digest = hashlib.sha256(prefix.encode("utf-8", "surrogatepass")).hexdigest()
            prefix = f"{os.path.basename(prefix)}-{digest[:8]}"
        return os.path.abspath(f"{prefix}.{self.work}")

    @property
    def journal_mode(self) -> int:
        """The permissions of journals, which for a URL contain the passwords in it."""
        return 0o666 if self.is_local else 0o600

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
        """Raise FileExistsError if the spec or the pack exists."""
        if self.spec_path:
            self.check_absent(self.spec_path, self.pack_path)

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
            f"{self.journal_path}: is of an interrupted run with other {others}; run that again to "
            f"finish it, choose another output, or {advice} to start over"
        )


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


def pattern_of(prefix: str) -> str:
    """Return the pattern of shards whose names begin alike."""
    return prefix + "-%06d.tar"
