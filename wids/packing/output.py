"""The beginning of the output's names → paths, and what may not be there yet.

Looks at names alone; opens no shard.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from wids.errors import PackError
from wids.transport import upload, urls
from wids.writing.shard_names import ShardNames, pack_path
from wids.writing.tar_writer import check_target

IfExists = Literal["error", "replace"]


@dataclass(frozen=True)
class Output:
    """Where a dataset is written.

    Attributes:
        names: Names of the shards.
        prefix: The beginning of all names, as the caller wrote it: ``out/train``.
        name: Name of the dataset.
        if_exists: What to do with what exists.
    """

    names: ShardNames
    prefix: str
    name: str
    if_exists: IfExists

    @classmethod
    def parse(
        cls,
        output: str | os.PathLike[str],
        root: str,
        *,
        name: str | None = None,
        if_exists: IfExists = "error",
    ) -> Output:
        """Return the output for the beginning of its names.

        Args:
            output: ``out/train``, or ``out/train.json``.
            root: The folder that is packed.
            name: Name of the dataset; None for the last part of ``output``.
            if_exists: What to do with what exists.

        Raises:
            ValueError: It is a URL or a folder, or an argument is invalid.
            PackError: It is in the folder that is packed.
        """
        if if_exists not in get_args(IfExists):
            raise ValueError(f'if_exists: expected "error" or "replace", found {if_exists!r}')
        text = os.fspath(output)
        check_target(text, None)
        if not upload.is_local(text):
            raise ValueError(
                f"{urls.redact(text)}: expected a local path, found a URL; write to a local folder "
                "and copy the complete shards"
            )
        prefix = os.path.expanduser(text.removesuffix(".json"))
        last = os.path.basename(prefix)
        if not last or last in (".", "..") or "%" in last or last.endswith(".tar"):
            raise ValueError(
                'output: expected the beginning of file names, such as "out/train" for '
                f"out/train-000000.tar and out/train.json, found {text!r}"
            )
        names = ShardNames.from_pattern(prefix + "-%06d.tar")
        real_root = os.path.realpath(root)
        if os.path.commonpath([real_root, os.path.realpath(names.folder)]) == real_root:
            raise PackError(
                f"{text}: expected an output outside the folder that is packed, found one in "
                f"{root}; the shards would be packed the next time"
            )
        return cls(names, prefix, last if name is None else name, if_exists)

    @property
    def spec_path(self) -> str:
        """Absolute path of the spec."""
        return os.path.abspath(self.prefix + ".json")

    @property
    def pack_path(self) -> str:
        """Absolute path of the pack."""
        return pack_path(self.spec_path)

    @property
    def journal_path(self) -> str:
        """Absolute path of the journal of an unfinished run."""
        return os.path.abspath(self.prefix + ".packing")

    def check_absent(self) -> None:
        """Raise FileExistsError if a shard, the spec or the pack exists."""
        shards = sorted(self.names.existing_numbers())
        paths = [self.names.path(number) for number in shards[:1]]
        for path in (self.spec_path, self.pack_path, *paths):
            if os.path.lexists(path):
                raise already_exists(path)


def already_exists(path: str) -> FileExistsError:
    """Return the error for a file that is in the way."""
    return FileExistsError(
        f'{path}: already exists; choose another output, or pass if_exists="replace" (--replace) '
        "to overwrite the dataset"
    )
