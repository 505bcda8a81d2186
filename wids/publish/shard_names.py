"""Convert numbers to shard names by a pattern such as ``train-%06d.tar``, and back.

Lists folders; opens no shard.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from typing import Final

from wids.storage import complete_files, upload
from wids.storage.transport import urls

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

    def lock_path(self) -> str:
        """Return the path of the file that a writer of these shards locks."""
        return os.path.join(self.folder, complete_files.lock_name(self.file_name))

    def is_temporary(self, name: str) -> bool:
        """Whether this is the name of a temporary file that is written for one of these shards."""
        stem = complete_files.stem_of_temporary(name) or ""
        head, _, tail = re.split(f"({_NUMBER})", self.file_name)
        # A stem may end within any of the three parts of a name.
        rest = stem[len(head) :].lstrip("0123456789")
        return (
            bool(stem)
            and stem.startswith(head[: complete_files.STEM_LENGTH])
            and tail.startswith(rest)
        )

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
